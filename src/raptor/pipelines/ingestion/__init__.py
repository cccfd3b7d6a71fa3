"""Read the private records, split and encode them, and give each its owner expert."""

from raptor.pipelines.ingestion.pipeline import create_pipeline

__all__ = ["create_pipeline"]
