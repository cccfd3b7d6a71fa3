"""Wiring of the audit: the public plan in, public results out."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Node, Pipeline

from raptor.pipelines.audit.nodes import audit_mechanism, draw_audit, refuse_violation


def create_pipeline(**_: Any) -> Pipeline:
    """Plan to audit results and a figure; an error at the end when the claim is contradicted."""
    return Pipeline(
        [
            Node(
                audit_mechanism,
                inputs=["privacy_plan", "params:audit"],
                outputs="audit_results",
                name="audit_mechanism",
                tags="public",
            ),
            Node(
                draw_audit,
                inputs="audit_results",
                outputs="audit_figure",
                name="draw_audit",
                tags="public",
            ),
            Node(
                refuse_violation,
                inputs=["audit_results", "audit_figure"],
                outputs=None,
                name="refuse_violation",
                tags="public",
            ),
        ]
    )
