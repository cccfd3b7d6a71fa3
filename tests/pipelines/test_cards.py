"""The cards of kedro-viz: one on each node that releases or declares something, with public facts only."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from kedro.pipeline import Node

import raptor.pipelines
from raptor.pipelines.cards import GAUSSIAN_SUMS, MechanismFacts, declaration_card, mechanism_card
from raptor.pipelines.mechanism import exemption

STAGES = [module.name for module in pkgutil.iter_modules(raptor.pipelines.__path__) if module.ispkg]
NODES = [
    node
    for stage in STAGES
    for node in importlib.import_module(f"raptor.pipelines.{stage}").create_pipeline().nodes
]
EXEMPT = [node for node in NODES if exemption(node) is not None]


def lines(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)


def test_a_mechanism_card_names_what_is_released_and_how() -> None:
    text = mechanism_card("sum_votes", ["votes", "shares"], "log")().content
    facts = lines(text)
    assert text.startswith("Differentially private mechanism: sum_votes\n")
    assert facts["Releases"] == "votes, shares"
    assert facts["Recorded in"].startswith("log,")
    assert (facts["Sensitivity"], facts["Noise"]) == (GAUSSIAN_SUMS.sensitivity, GAUSSIAN_SUMS.noise)
    assert "privacy.adjacency" in facts["Adjacency"]


def test_own_facts_win() -> None:
    facts = MechanismFacts(sampling="s", sensitivity="t", noise="u", after="v")
    shown = lines(mechanism_card("train_raptor", ["m"], "log", facts)().content)
    assert (shown["Sampling"], shown["Sensitivity"], shown["Noise"], shown["After the noise"]) == tuple(
        "stuv"
    )


def test_a_declaration_card_gives_the_reason_and_no_guarantee() -> None:
    facts = lines(declaration_card("declare", ["n"], "it is published")().content)
    assert (facts["Declares"], facts["Reason"]) == ("n", "it is published")
    assert facts["Guarantee"].startswith("none")


@pytest.mark.parametrize("node", EXEMPT, ids=lambda node: node.name)
def test_every_release_and_declaration_has_a_card(node: Node) -> None:
    preview = node.preview()
    assert preview is not None, f"{node.name} has no card"
    assert preview.to_dict()["kind"] == "text"
    mark = exemption(node)
    assert mark is not None
    title = "Differentially private mechanism" if mark.kind == "mechanism" else "Declared public"
    assert preview.content.startswith(f"{title}: {node.name}\n")
    shown = lines(preview.content)
    if mark.ledger is None:
        assert set(shown["Declares"].split(", ")) == mark.names(node)
        assert shown["Reason"] == mark.reason
    else:
        ledger = node.outputs[mark.ledger]
        assert {*shown["Releases"].split(", "), ledger} == mark.names(node)
        assert shown["Recorded in"].startswith(f"{ledger},")


def test_no_other_node_has_a_card() -> None:
    assert [node.name for node in NODES if exemption(node) is None and node.preview() is not None] == []


def test_training_and_evaluation_are_mechanisms() -> None:
    assert {"train_raptor", "evaluate_model"} <= {node.name for node in EXEMPT}


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)
def test_every_node_says_its_privacy_class(node: Node) -> None:
    """kedro-viz shows tags as filters; the class of a node's inputs decides."""
    assert len(node.tags & {"public", "private", "released"}) == 1
    assert all(len(tag) > 1 for tag in node.tags)
