"""Faults that are planted into the code one by one, to show that the test suite notices each of them."""
