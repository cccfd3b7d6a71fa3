"""Wiring of the accounting stage."""

from __future__ import annotations

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.accounting.nodes import certify, compose_ledger


def create_pipeline() -> Pipeline:
    """Release log, plan and model to the ledger, and the ledger to the certificate; nothing private is read."""
    return Pipeline(
        [
            Node(
                compose_ledger,
                inputs=["privacy_plan", "release_log", "raptor_model"],
                outputs="privacy_ledger",
                name="compose_ledger",
                tags=["released"],
            ),
            Node(
                certify,
                inputs=["privacy_ledger", "audit_results"],
                outputs=["privacy_certificate", "privacy_certificate_page"],
                name="certify",
                tags=["released"],
            ),
        ]
    )
