"""RAPTOR against every baseline, on public labelled sets, with error bars."""

from raptor.pipelines.benchmark.pipeline import create_pipeline

__all__ = ["create_pipeline"]
