"""Private training: the plan that fixes the budget, and the mechanism that spends it."""

from raptor.pipelines.training.pipeline import create_pipeline

__all__ = ["create_pipeline"]
