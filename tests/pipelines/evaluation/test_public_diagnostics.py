"""Diagnostics of a released model on public texts: what they are made of, and that nothing private is an input."""

from __future__ import annotations

import json
import random
from typing import Any

import datasets
import numpy as np
import pytest

from raptor.accounting.certificate import model_digest
from raptor.accounting.plan import read_plan
from raptor.errors import BudgetError, DataError
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.evaluation import create_pipeline
from raptor.pipelines.evaluation.config import FailureModesConfig
from raptor.pipelines.evaluation.consistency import require_same_model
from raptor.pipelines.evaluation.nodes import diagnose_failure_modes
from raptor.pipelines.evaluation.public_diagnostics import drawn_labels, public_records
from raptor.pipelines.selection.config import SelectionConfig
from raptor.pipelines.selection.nodes import profile_routing
from raptor.reporting.diagnostics import read_diagnosis
from tests.pipelines.directories import WORDS
from tests.pipelines.evaluation.world import TRAINING, World, make_world

TEXTS = 60


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), "own.csv", failure_modes={"records": 40})


@pytest.fixture(scope="module", name="corpus")
def _corpus() -> datasets.Dataset:
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 12))) for _ in range(TEXTS)]
    return datasets.Dataset.from_dict({"text": texts})


@pytest.fixture(scope="module", name="profile")
def _profile(world: World, corpus: datasets.Dataset) -> dict[str, Any]:
    return profile_routing(world.base_model, corpus, SelectionConfig(bootstrap=2), "weight", 8)


def diagnosed(
    world: World, corpus: datasets.Dataset, profile: dict[str, Any], **changes: Any
) -> dict[str, Any]:
    training = TRAINING.model_copy(update=changes)
    return diagnose_failure_modes(
        world.base_model, world.raptor_model, corpus, profile, world.plan, training, world.evaluation
    )


def test_a_model_is_diagnosed_and_the_report_can_tell_it(
    world: World, corpus: datasets.Dataset, profile: dict[str, Any]
) -> None:
    found = diagnosed(world, corpus, profile)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["records"] == 40
    assert sum(found["loads"]) == pytest.approx(1.0)
    # The encoder of this world is the base model's, so nothing has drifted.
    assert (found["drift"]["median"], found["drift"]["moved"], found["drift"]["missed"]) == (0.0, 0.0, 0.0)
    assert len(read_diagnosis(found, profile).pictures) == 6
    assert found == diagnosed(world, corpus, profile)
    require_same_model(found, {"model": {"digest": model_digest(world.raptor_model)}})
    with pytest.raises(DataError, match="different models"):
        require_same_model(found, {"model": {"digest": "another"}})


def test_owners_are_those_of_the_profile_and_labels_are_the_models(
    world: World, corpus: datasets.Dataset, profile: dict[str, Any]
) -> None:
    model = MoEClassifier.from_pretrained(world.raptor_model)
    layer = read_plan(world.plan).layers[0]
    records = public_records(corpus["text"][:], world.base_model, model, layer, "weight", 8)
    (row,) = (row for row in profile["layers"] if row["layer"] == layer)
    assert np.bincount(records.owners.numpy(), minlength=4).tolist() == list(row["counts"])
    assert set(records.labels.tolist()) <= {0, 1, 2}


def test_labels_are_drawn_by_their_probabilities() -> None:
    shares = np.array([0.6, 0.0, 0.3, 0.1])
    drawn = drawn_labels(np.tile(shares, (40_000, 1)), np.random.default_rng(0))
    assert np.bincount(drawn, minlength=4) / 40_000 == pytest.approx(shares, abs=0.012)
    assert (drawn != 1).all()


def test_they_can_be_switched_off(world: World, corpus: datasets.Dataset, profile: dict[str, Any]) -> None:
    off = world.evaluation.model_copy(update={"failure_modes": FailureModesConfig(enabled=False)})
    found = diagnose_failure_modes(
        world.base_model, world.raptor_model, corpus, profile, world.plan, TRAINING, off
    )
    assert found == {"enabled": False}
    require_same_model(found, {"model": {"digest": "any"}})


def test_parameters_of_another_plan_are_refused(
    world: World, corpus: datasets.Dataset, profile: dict[str, Any]
) -> None:
    with pytest.raises(BudgetError, match="batch_size"):
        diagnosed(world, corpus, profile, batch_size=20)


def test_no_private_entry_is_an_input() -> None:
    (node,) = (node for node in create_pipeline().nodes if node.name == "diagnose_failure_modes")
    assert {name for name in node.inputs if not name.startswith("params:")} == {
        "base_model",
        "raptor_model",
        "public_corpus",
        "routing_profile",
        "privacy_plan",
    }
