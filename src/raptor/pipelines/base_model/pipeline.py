"""Wiring of the base_model stage: everything here is public."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.base_model.nodes import obtain_base_model, obtain_public_corpus


def create_pipeline(**_: Any) -> Pipeline:
    """Source names in the parameters to a model directory and a public corpus."""
    return Pipeline(
        [
            Node(
                obtain_base_model,
                inputs="params:base_model",
                outputs="base_model",
                name="obtain_base_model",
                tags="public",
            ),
            Node(
                obtain_public_corpus,
                inputs="params:selection",
                outputs="public_corpus",
                name="obtain_public_corpus",
                tags="public",
            ),
        ]
    )
