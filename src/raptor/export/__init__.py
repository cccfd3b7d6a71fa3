"""A trained model as others take it home: weights, papers, and a card that says how to load it."""
