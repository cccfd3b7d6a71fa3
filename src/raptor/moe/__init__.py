"""What a mixture-of-experts model is to us: families, roles, routing, ownership and the classifier on top."""
