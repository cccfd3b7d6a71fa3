"""Measurements to run by hand on an idle machine; nothing here is installed."""
