"""Wiring of the selection stage: public model, public corpus, no budget."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.selection.nodes import plot_routing, profile_routing, select_layers


def create_pipeline(**_: Any) -> Pipeline:
    """Base model and public corpus to the routing profile, the layer plan and a figure."""
    return Pipeline(
        [
            Node(
                profile_routing,
                inputs={
                    "base_model": "base_model",
                    "public_corpus": "public_corpus",
                    "config": "params:selection",
                    # The owners of private records are voted in the same way, so the two stages share these.
                    "owner_vote": "params:ingestion.owner_vote",
                    "max_length": "params:ingestion.max_length",
                },
                outputs="routing_profile",
                name="profile_routing",
                tags="public",
            ),
            Node(
                select_layers,
                inputs={"routing_profile": "routing_profile", "config": "params:selection"},
                outputs="layer_plan",
                name="select_layers",
                tags="public",
            ),
            Node(
                plot_routing,
                inputs={"routing_profile": "routing_profile", "layer_plan": "layer_plan"},
                outputs="routing_figure",
                name="plot_routing",
                tags="public",
            ),
        ]
    )
