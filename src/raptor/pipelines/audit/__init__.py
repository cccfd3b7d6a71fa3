"""Attack the mechanism on canaries, and compare with the claim."""

from raptor.pipelines.audit.pipeline import create_pipeline

__all__ = ["create_pipeline"]
