"""Metrics, figures and the report: everything here starts from released tables and public facts."""
