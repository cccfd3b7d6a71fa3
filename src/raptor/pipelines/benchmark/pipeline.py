"""Wiring of the benchmark: with the stages that give it base model and layer, so that it is one command."""

from __future__ import annotations

from kedro.pipeline import Node, Pipeline

from raptor.pipelines import base_model, selection
from raptor.pipelines.benchmark.nodes import run_benchmark, summarise_benchmark


def create_pipeline() -> Pipeline:
    """Public sets in, tables and figures out. Everything here is public."""
    own = Pipeline(
        [
            Node(
                run_benchmark,
                inputs={
                    "base_model": "base_model",
                    "layer_plan": "layer_plan",
                    "benchmark_cells": "benchmark_cells",
                    "config": "params:benchmark",
                    "training": "params:training",
                    "owner_vote": "params:ingestion.owner_vote",
                    "max_length": "params:ingestion.max_length",
                },
                outputs="benchmark_results",
                name="run_benchmark",
                tags="public",
            ),
            Node(
                summarise_benchmark,
                inputs="benchmark_results",
                outputs=["benchmark_page", "benchmark_accuracy_figure", "benchmark_gain_figure"],
                name="summarise_benchmark",
                tags="public",
            ),
        ]
    )
    return base_model.create_pipeline() + selection.create_pipeline() + own
