"""Wiring: what the stage releases, and that its figures and report start from released values alone."""

from __future__ import annotations

from raptor.pipelines.evaluation import create_pipeline
from raptor.pipelines.mechanism import exemption


def test_two_nodes_release_and_each_keeps_a_log() -> None:
    marked = {
        node.name: mark.names(node)
        for node in create_pipeline().nodes
        if (mark := exemption(node)) is not None
    }
    assert marked == {
        "evaluate_model": {"evaluation_metrics", "evaluation_release_log"},
        "release_diagnostics": {"training_diagnostics", "diagnostics_release_log"},
    }


def test_figures_and_report_never_see_private_entries() -> None:
    nodes = {node.name: node for node in create_pipeline().nodes}
    private = {"private_train", "private_heldout", "baseline_results", "owner_partition", "release_journals"}
    for name in ("draw_figures", "write_report"):
        assert not private & set(nodes[name].inputs)
        # The source may be the name of a user's file.
        assert "params:ingestion" not in nodes[name].inputs


def test_baselines_are_kept_apart_from_what_is_released() -> None:
    nodes = {node.name: node for node in create_pipeline().nodes}
    assert nodes["train_baselines"].outputs == ["baseline_results"]
    assert "raptor_model" not in nodes["train_baselines"].inputs


def test_the_card_says_what_the_noise_is_scaled_to() -> None:
    (node,) = (node for node in create_pipeline().nodes if node.name == "evaluate_model")
    text = node._preview_fn().content
    assert "1 for a confusion matrix, sqrt(3) for a reliability table" in text
