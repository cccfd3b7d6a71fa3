"""Model, papers and card in one directory that others can load."""

from raptor.pipelines.export.pipeline import create_pipeline

__all__ = ["create_pipeline"]
