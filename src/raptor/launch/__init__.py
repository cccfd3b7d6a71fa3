"""Training in several processes: who starts them, how they share one step, and how they ask before a release."""
