"""Wiring of the ingestion stage. Everything in it is private, except what the operator declares public."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.cards import declaration_card
from raptor.pipelines.ingestion.declared import CLASSES_ARE_PUBLIC, CONSTANTS_ARE_PUBLIC
from raptor.pipelines.ingestion.nodes import (
    assign_record_owners,
    declare_public_constants,
    encode_splits,
    read_records,
)
from raptor.pipelines.mechanism import declaration_node


def create_pipeline(**_: Any) -> Pipeline:
    """Source to encoded splits, owners, class names and public constants."""
    return Pipeline(
        [
            declaration_node(
                read_records,
                inputs={
                    "base_model": "base_model",
                    "config": "params:ingestion",
                    "split_key": "split_key",
                },
                outputs=["private_records", "label_names", "data_report"],
                name="read_records",
                declares=["label_names"],
                reason=CLASSES_ARE_PUBLIC,
                tags="private",
                preview_fn=declaration_card("read_records", ["label_names"], CLASSES_ARE_PUBLIC),
            ),
            Node(
                encode_splits,
                inputs={
                    "private_records": "private_records",
                    "base_model": "base_model",
                    "config": "params:ingestion",
                    "unit": "params:privacy.unit",
                    "records_per_user": "params:privacy.records_per_user",
                    "split_key": "split_key",
                    "encoding_cache": "encoding_cache",
                },
                outputs=["private_train", "private_heldout"],
                name="encode_splits",
                tags="private",
            ),
            declaration_node(
                declare_public_constants,
                inputs={
                    "private_train": "private_train",
                    "label_names": "label_names",
                    "population": "params:privacy.population",
                    "config": "params:ingestion",
                    "unit": "params:privacy.unit",
                    "records_per_user": "params:privacy.records_per_user",
                },
                outputs="public_constants",
                name="declare_public_constants",
                declares=["public_constants"],
                reason=CONSTANTS_ARE_PUBLIC,
                tags="private",
                preview_fn=declaration_card(
                    "declare_public_constants", ["public_constants"], CONSTANTS_ARE_PUBLIC
                ),
            ),
            Node(
                assign_record_owners,
                inputs={
                    "private_train": "private_train",
                    "base_model": "base_model",
                    "layer_plan": "layer_plan",
                    "config": "params:ingestion",
                },
                outputs="owner_partition",
                name="assign_record_owners",
                tags="private",
            ),
        ]
    )
