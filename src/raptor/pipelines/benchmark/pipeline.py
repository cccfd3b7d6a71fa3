"""Wiring of the benchmark: with the stages that give it base model and layer, so that it is one command."""

from __future__ import annotations

from kedro.pipeline import Node, Pipeline

from raptor.pipelines import base_model, selection
from raptor.pipelines.benchmark.nodes import (
    attack_benchmark,
    diagnose_benchmark,
    run_benchmark,
    summarise_benchmark,
)


def create_pipeline() -> Pipeline:
    """Public sets in, tables and figures out. Everything here is public."""
    given = {
        "base_model": "base_model",
        "layer_plan": "layer_plan",
        "config": "params:benchmark",
        "training": "params:training",
        "owner_vote": "params:ingestion.owner_vote",
        "max_length": "params:ingestion.max_length",
        "public_corpus": "public_corpus",
    }
    own = Pipeline(
        [
            Node(
                run_benchmark,
                inputs={**given, "benchmark_cells": "benchmark_cells"},
                outputs="benchmark_results",
                name="run_benchmark",
                tags="public",
            ),
            Node(
                diagnose_benchmark,
                inputs=given,
                outputs="benchmark_diagnostics",
                name="diagnose_benchmark",
                tags="public",
            ),
            Node(
                attack_benchmark,
                inputs={**given, "benchmark_cells": "benchmark_cells"},
                outputs="benchmark_attacks",
                name="attack_benchmark",
                tags="public",
            ),
            Node(
                summarise_benchmark,
                inputs=[
                    "benchmark_results",
                    "benchmark_diagnostics",
                    "benchmark_attacks",
                    "params:benchmark",
                ],
                outputs=[
                    "benchmark_page",
                    "benchmark_accuracy_figure",
                    "benchmark_gain_figure",
                    "benchmark_attack_figure",
                ],
                name="summarise_benchmark",
                tags="public",
            ),
        ]
    )
    return base_model.create_pipeline() + selection.create_pipeline() + own
