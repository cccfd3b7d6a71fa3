"""Obtain the public base model and the public corpus."""

from raptor.pipelines.base_model.pipeline import create_pipeline

__all__ = ["create_pipeline"]
