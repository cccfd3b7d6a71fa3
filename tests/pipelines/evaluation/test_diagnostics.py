"""Private diagnostics: paid for in the plan, of stated sensitivity, released once, and refused otherwise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from raptor.accounting.certificate import build_certificate, model_digest
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.plan import PrivacyPlan, read_plan
from raptor.dp.config import TrainingConfig
from raptor.dp.records import EncodedRecords
from raptor.errors import BudgetError
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.evaluation.config import evaluation_scope
from raptor.pipelines.evaluation.diagnostics import exact_tallies
from raptor.pipelines.evaluation.nodes import release_diagnostics
from raptor.pipelines.training.planning import raptor_plan
from raptor.pipelines.training.records import encoded_records
from tests.pipelines.evaluation.world import CONSTANTS, LAYER_PLAN, PRIVACY, TRAINING, World, make_world

ALL = ("loss", "clipped_fraction", "expert_load")
ASKED = TRAINING.model_copy(update={"diagnostics": ALL})


def plan_for(world: World, training: TrainingConfig = ASKED) -> PrivacyPlan:
    scope = evaluation_scope(world.evaluation, "own.csv")
    return raptor_plan(LAYER_PLAN, CONSTANTS, PRIVACY, training, world.evaluation, scope)


def owners(size: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"layer_1": [number % 4 for number in range(size)]})


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return make_world(tmp_path, "own.csv")


def released(world: World, training: TrainingConfig = ASKED, plan: PrivacyPlan | None = None) -> Any:
    made = (plan or plan_for(world)).to_json()
    ledger = compose_ledger(made, [], model_digest(world.raptor_model))
    return release_diagnostics(
        world.raptor_model, world.train, owners(60), made, ledger, world.journals, training
    )


def test_they_are_reserved_in_the_plan_and_cost_noise(world: World) -> None:
    plan = plan_for(world)
    stream = plan.stream("diagnostics")
    assert (stream.rate, stream.steps, stream.noise_multiplier) == (1.0, 3, 30 / PRIVACY.epsilon)
    without = plan_for(world, TRAINING)
    assert without.find("diagnostics") is None
    assert plan.stream("shared").noise_multiplier > without.stream("shared").noise_multiplier
    assert plan.epsilon_planned <= PRIVACY.epsilon
    ledger = compose_ledger(plan.to_json(), [], "m")
    (charged,) = (item for item in build_certificate(ledger)["streams"] if item["name"] == "diagnostics")
    assert (charged["steps_executed"], charged["steps_charged"]) == (0, 3)


def test_each_figure_is_one_noisy_release(world: World) -> None:
    figures, log = released(world)
    assert list(figures) == list(ALL)
    assert set(figures["clipped_fraction"]["values"]) == {"shared", "expert"}
    assert set(figures["expert_load"]["values"]) == {f"expert_{number}" for number in range(4)}
    assert figures["expert_load"]["deviation"] == pytest.approx(7.5)
    assert figures["loss"]["deviation"] == pytest.approx(7.5 * 2 * np.log(3) / 60)
    assert [line["data"]["stream"] for line in log if line["kind"] == "release"] == ["diagnostics"] * 3
    # The exact loads are 15 each; the noise is seeded in this test, and there.
    assert all(value != 15 for value in figures["expert_load"]["values"].values())


def test_they_are_released_once_for_a_model(world: World) -> None:
    assert released(world) == released(world)
    (journal,) = world.journals.glob("diagnostics-*.jsonl")
    journal.with_suffix(".json").unlink()
    with pytest.raises(BudgetError, match="diagnostics of this model was cut off"):
        released(world)


def test_none_are_released_where_none_are_asked_for(world: World) -> None:
    figures, log = released(world, TRAINING, plan_for(world, TRAINING))
    assert figures == {}
    assert log[0]["releases"] == 0
    assert not list(world.journals.iterdir())


def test_what_the_plan_has_not_reserved_is_refused(world: World) -> None:
    with pytest.raises(BudgetError, match="number of diagnostics is 3 by the present parameters, but 0"):
        released(world, ASKED, plan_for(world, TRAINING))


@pytest.mark.parametrize("layers", [(1,), (1, 0)])
def test_one_record_moves_a_figure_by_its_sensitivity_at_most(world: World, layers: tuple[int, ...]) -> None:
    plan = dataclasses.replace(plan_for(world), layers=layers)
    owned = owners(60).add_column("layer_0", [row % 3 for row in range(60)])
    records = encoded_records(world.train, owned, layers)
    model = MoEClassifier.from_pretrained(world.raptor_model)
    # A head so large that losses pass the bound, and gradients the clipping norm.
    with torch.no_grad():
        model.head.weight.mul_(60)
    whole = exact_tallies(model, records, plan, ASKED)
    farthest = dict.fromkeys(ALL, 0.0)
    for left_out in range(0, 60, 4):
        keep = torch.arange(60) != left_out
        fewer = EncodedRecords(*(value[keep] for value in records.tensors()))
        for name, less in exact_tallies(model, fewer, plan, ASKED).items():
            moved = float(np.linalg.norm(whole[name].values - less.values))
            assert moved <= whole[name].sensitivity * (1 + 1e-6)
            farthest[name] = max(farthest[name], moved)
    assert farthest["expert_load"] == 1
    assert farthest["clipped_fraction"] == pytest.approx(np.sqrt(2))
    assert farthest["loss"] == pytest.approx(whole["loss"].sensitivity, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"diagnostics": ["accuracy"]}, "loss"),
        ({"diagnostics": ["loss", "loss"]}, "twice"),
        ({"diagnostics": ["expert_load"], "expert": {"steps_per_cycle": 0}}, "no expert is trained"),
        (
            {"diagnostics": ["clipped_fraction"], "trainable": "lora"},
            "cannot be told with training.trainable=lora",
        ),
    ],
)
def test_anything_else_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**changes)


def test_the_plan_survives_its_json_form(world: World) -> None:
    assert read_plan(plan_for(world).to_json()) == plan_for(world)
