"""Evaluation stage: the private model against its baselines, figures and the report."""

from raptor.pipelines.evaluation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
