"""A project of a few nodes that uses the real hooks, datasets, command line and logging."""
