"""Finds the pipelines; ``__default__`` is the whole job in the order of its stages."""

from __future__ import annotations

from kedro.framework.project import find_pipelines
from kedro.pipeline import Pipeline

STAGES = ("base_model", "selection", "ingestion", "training", "audit", "accounting", "evaluation")


def register_pipelines() -> dict[str, Pipeline]:
    """Name to pipeline. When `--pipelines` names some, only those are imported and returned."""
    pipelines = find_pipelines(raise_errors=True)
    if "__default__" in pipelines:
        pipelines["__default__"] = sum(
            (pipelines[stage] for stage in STAGES if stage in pipelines), start=Pipeline([])
        )
    return pipelines
