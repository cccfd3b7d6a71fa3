"""Choose the sparse layer whose experts share the public records most evenly."""

from raptor.pipelines.selection.pipeline import create_pipeline

__all__ = ["create_pipeline"]
