from raptor.cli import cli

__all__ = ["cli"]
