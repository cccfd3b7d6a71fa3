"""Empirical privacy audit: attacks on the mechanism with known records, and lower bounds on epsilon from them."""
