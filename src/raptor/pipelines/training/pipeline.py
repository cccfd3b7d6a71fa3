"""Wiring of the training stage."""

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.cards import mechanism_card
from raptor.pipelines.mechanism import mechanism_node
from raptor.pipelines.training.nodes import end_training, measure_public, plan_privacy, train_raptor


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            Node(
                measure_public,
                inputs=[
                    "base_model",
                    "public_corpus",
                    "layer_plan",
                    "public_constants",
                    "params:training",
                    "params:ingestion.owner_vote",
                    "params:ingestion.max_length",
                ],
                outputs="public_measures",
                name="measure_public",
                tags=["public"],
            ),
            Node(
                plan_privacy,
                inputs=[
                    "base_model",
                    "layer_plan",
                    "public_constants",
                    "params:privacy",
                    "params:training",
                    "params:evaluation",
                    "public_measures",
                ],
                outputs="privacy_plan",
                name="plan_privacy",
                tags=["public"],
            ),
            mechanism_node(
                train_raptor,
                inputs=[
                    "base_model",
                    "label_names",
                    "private_train",
                    "owner_partition",
                    "privacy_plan",
                    "release_journals",
                    "training_checkpoints",
                    "params:training",
                    "params:ingestion",
                    "params:launch",
                ],
                outputs=["raptor_model", "release_log"],
                name="train_raptor",
                releases=["raptor_model"],
                ledger="release_log",
                tags=["private"],
                preview_fn=mechanism_card("train_raptor", ["raptor_model"], "release_log"),
            ),
            Node(
                end_training,
                inputs=["raptor_model", "release_log", "training_checkpoints"],
                outputs=None,
                name="end_training",
                tags=["private"],
            ),
        ]
    )
