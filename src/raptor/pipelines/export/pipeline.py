"""Wiring of the export stage."""

from __future__ import annotations

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.export.nodes import export_model


def create_pipeline() -> Pipeline:
    """Model, ledger and certificate to one directory; not part of the default run."""
    return Pipeline(
        [
            Node(
                export_model,
                inputs=["raptor_model", "privacy_ledger", "privacy_certificate", "audit_results"],
                outputs="exported_model",
                name="export_model",
                tags=["released"],
            )
        ]
    )
