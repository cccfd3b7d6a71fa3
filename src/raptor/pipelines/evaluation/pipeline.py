"""Wiring of the evaluation stage."""

from __future__ import annotations

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.cards import MechanismFacts, mechanism_card
from raptor.pipelines.evaluation.nodes import (
    diagnose_failure_modes,
    draw_figures,
    evaluate_model,
    release_diagnostics,
    train_baselines,
    write_report,
)
from raptor.pipelines.mechanism import mechanism_node

RELEASES = ["evaluation_metrics"]
LEDGER = "evaluation_release_log"
FACTS = MechanismFacts(
    sampling="none: every held-out record is in every table; public records are evaluated exactly",
    sensitivity="1 for a confusion matrix, sqrt(3) for a reliability table, 2 for a table of completions",
    noise="normal, standard deviation sigma times the sensitivity in every cell",
    after="metrics and their standard errors from the noisy tables",
)

DIAGNOSTICS = ["training_diagnostics"]
DIAGNOSTICS_LEDGER = "diagnostics_release_log"
DIAGNOSTICS_FACTS = MechanismFacts(
    sampling="none: every training record is in every figure",
    sensitivity="2 ln(classes or tokens) for the loss, root of the number of streams for clipped ones, 1 for loads",
    noise="normal, standard deviation sigma times the sensitivity in every number",
    after="division by the public number of records",
)


def create_pipeline() -> Pipeline:
    """Baselines, released metrics, figures and the report."""
    return Pipeline(
        [
            Node(
                train_baselines,
                inputs=[
                    "base_model",
                    "label_names",
                    "private_train",
                    "private_heldout",
                    "layer_plan",
                    "public_constants",
                    "privacy_plan",
                    "params:privacy",
                    "params:training",
                    "params:evaluation",
                ],
                outputs="baseline_results",
                name="train_baselines",
                tags=["private"],
            ),
            mechanism_node(
                evaluate_model,
                inputs=[
                    "raptor_model",
                    "label_names",
                    "private_heldout",
                    "baseline_results",
                    "public_constants",
                    "privacy_plan",
                    "privacy_ledger",
                    "release_journals",
                    "params:training",
                    "params:evaluation",
                ],
                outputs=["evaluation_metrics", "evaluation_release_log"],
                name="evaluate_model",
                releases=RELEASES,
                ledger=LEDGER,
                tags=["private"],
                preview_fn=mechanism_card("evaluate_model", RELEASES, LEDGER, FACTS),
            ),
            mechanism_node(
                release_diagnostics,
                inputs=[
                    "raptor_model",
                    "private_train",
                    "owner_partition",
                    "privacy_plan",
                    "privacy_ledger",
                    "release_journals",
                    "params:training",
                ],
                outputs=[*DIAGNOSTICS, DIAGNOSTICS_LEDGER],
                name="release_diagnostics",
                releases=DIAGNOSTICS,
                ledger=DIAGNOSTICS_LEDGER,
                tags=["private"],
                preview_fn=mechanism_card(
                    "release_diagnostics", DIAGNOSTICS, DIAGNOSTICS_LEDGER, DIAGNOSTICS_FACTS
                ),
            ),
            Node(
                diagnose_failure_modes,
                inputs={
                    "base_model": "base_model",
                    "raptor_model": "raptor_model",
                    "public_corpus": "public_corpus",
                    "routing_profile": "routing_profile",
                    "privacy_plan": "privacy_plan",
                    "training": "params:training",
                    "evaluation": "params:evaluation",
                },
                outputs="failure_modes",
                name="diagnose_failure_modes",
                tags=["released"],
            ),
            Node(
                draw_figures,
                inputs=["evaluation_metrics", "label_names", "privacy_certificate"],
                outputs=[
                    "accuracy_comparison_figure",
                    "confusion_matrix_figure",
                    "calibration_figure",
                ],
                name="draw_figures",
                tags=["released"],
            ),
            Node(
                write_report,
                inputs=[
                    "evaluation_metrics",
                    "label_names",
                    "privacy_plan",
                    "privacy_certificate",
                    "routing_profile",
                    "layer_plan",
                    "audit_results",
                    "failure_modes",
                    "params:privacy",
                    "params:training",
                    "params:evaluation",
                ],
                outputs="report",
                name="write_report",
                tags=["released"],
            ),
        ]
    )
