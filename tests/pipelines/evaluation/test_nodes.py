"""The nodes of the stage on a small model: public and private records, refusals, figures, report."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor.accounting.certificate import model_digest
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.plan import read_plan
from raptor.errors import BudgetError, DataError, ModelError
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.evaluation.config import evaluation_scope
from raptor.pipelines.evaluation.nodes import draw_figures, evaluate_model, train_baselines
from raptor.pipelines.training.planning import blurred_evaluation, raptor_plan
from raptor.reporting.comparison import comparison_from_json
from tests.pipelines.evaluation.world import (
    LABELS,
    LAYER_PLAN,
    PRIVACY,
    TRAINING,
    World,
    constants,
    make_world,
)


def baselines(world: World) -> dict[str, Any]:
    results = train_baselines(
        world.base_model,
        LABELS,
        world.train,
        world.heldout,
        LAYER_PLAN,
        constants(world.ingestion.source),
        world.plan,
        PRIVACY,
        TRAINING,
        world.evaluation,
    )
    return json.loads(json.dumps(results, allow_nan=False))


def evaluate(world: World, results: dict[str, Any], **changes: Any) -> tuple[dict[str, Any], list[Any]]:
    arguments = {
        "raptor_model": world.raptor_model,
        "label_names": LABELS,
        "private_heldout": world.heldout,
        "baseline_results": results,
        "public_constants": constants(world.ingestion.source),
        "privacy_plan": world.plan,
        "release_journals": world.journals,
        "training": TRAINING,
        "evaluation": world.evaluation,
    }
    given = {**arguments, **changes}
    given.setdefault(
        "privacy_ledger", compose_ledger(given["privacy_plan"], [], model_digest(given["raptor_model"]))
    )
    return evaluate_model(**given)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, dict[str, Any]]:
    world = make_world(tmp_path_factory.mktemp("public"), "embedded")
    return world, baselines(world)


@pytest.fixture
def private(tmp_path: Path) -> tuple[World, dict[str, Any]]:
    world = make_world(tmp_path, "own.csv", heldout=400, noise_multiplier=3.0)
    return world, baselines(world)


def test_public_records_are_evaluated_exactly_with_all_baselines(public) -> None:
    world, results = public
    assert set(results["tables"]) == {"base_model", "nonprivate", "monolithic"}
    metrics, log = evaluate(world, results)
    assert metrics["records_are_public"] is True
    assert set(metrics["methods"]) == {
        "raptor",
        "largest_class",
        "base_model",
        "nonprivate",
        "monolithic",
    }
    assert metrics["records"] == 50
    counts = Counter(world.heldout["label"])
    assert metrics["methods"]["largest_class"]["accuracy"] == pytest.approx(max(counts.values()) / 50)
    # The untrained head is zero, so it always answers the first class.
    assert metrics["methods"]["base_model"]["accuracy"] == pytest.approx(counts[0] / 50)
    assert log == [{"stream": "evaluation", "releases": 0, "why": metrics["evaluation"]}]
    assert list(world.journals.iterdir()) == []
    json.dumps(metrics, allow_nan=False)


def test_the_tables_are_those_of_the_models_own_answers(public) -> None:
    import torch

    world, results = public
    metrics, _ = evaluate(world, results)
    model = MoEClassifier.from_pretrained(world.raptor_model).eval()
    expected = np.zeros((3, 3))
    with torch.no_grad():
        for row in world.heldout:
            ids = torch.tensor([row["input_ids"]])
            expected[row["label"], int(model(ids, torch.ones_like(ids)).argmax())] += 1
    assert metrics["tables"]["raptor"]["confusion"] == expected.tolist()


def test_passes_of_any_size_give_the_same_metrics(public) -> None:
    world, results = public
    one = world.evaluation.model_copy(update={"batch_size": 1})
    first, _ = evaluate(world, results)
    second, _ = evaluate(world, results, evaluation=one)
    for name in ("confusion", "reliability"):
        np.testing.assert_allclose(
            first["tables"]["raptor"][name], second["tables"]["raptor"][name], atol=1e-5
        )


def test_private_records_get_noise_and_no_other_baseline(private) -> None:
    world, results = private
    assert set(results["tables"]) == {"base_model"}
    metrics, log = evaluate(world, results)
    assert set(metrics["methods"]) == {"raptor", "base_model", "largest_class"}
    assert "gain_kept" not in metrics
    assert metrics["tables"]["raptor"]["confusion_noise"] == 3.0
    cells = np.array(metrics["tables"]["base_model"]["confusion"])
    assert not np.array_equal(cells, np.round(cells))
    assert [line["kind"] for line in log] == ["header", *["release"] * 4]
    again, same = evaluate(world, results)
    assert (again, same) == (metrics, log)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_small_held_out_set_never_stops_a_run_after_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """Nine records under noise of 500: whatever comes out, the metrics say so and the budget was not in vain."""
    world = make_world(tmp_path, "own.csv", heldout=9, noise_multiplier=500.0)
    training = TRAINING.model_copy(update={"seed": seed})
    metrics, log = evaluate(world, baselines(world), training=training)
    json.dumps(metrics, allow_nan=False)
    assert [line["kind"] for line in log] == ["header", *["release"] * 4]
    assert "not measurable at this noise" in caplog.text
    assert metrics["measurable"] is False
    assert metrics["records"] is None
    assert {name: found["accuracy"] for name, found in metrics["methods"].items()} == {
        "raptor": None,
        "base_model": None,
        "largest_class": None,
    }
    assert metrics["noise_deviation"]["confusion_cell"] == 500.0
    assert metrics["noise_deviation"]["records"] > 500
    assert not comparison_from_json(metrics).is_measurable
    figures = draw_figures(metrics, LABELS, {"epsilon": 2.5})
    assert {figure.texts[0].get_text() for figure in figures} == {"Not measurable at this noise"}


def test_the_plan_keeps_the_noise_that_follows_from_the_budget(tmp_path: Path) -> None:
    world = make_world(tmp_path, "own.csv")
    (planned,) = [stream for stream in world.plan["streams"] if stream["name"] == "evaluation"]
    assert planned["noise_multiplier"] == 30 / PRIVACY.epsilon


@pytest.mark.parametrize(("noise", "warned"), [(0.1, False), (100.0, True)])
def test_noise_that_hides_a_usual_held_out_set_is_told_when_planned(
    tmp_path: Path, noise: float, warned: bool
) -> None:
    world = make_world(tmp_path, "own.csv", noise_multiplier=max(noise, 3.0))
    plan = read_plan(world.plan)
    streams = [dataclasses.replace(stream, noise_multiplier=noise) for stream in plan.streams]
    told = blurred_evaluation(
        dataclasses.replace(plan, streams=tuple(streams)), {"num_classes": 3}, world.evaluation
    )
    assert (told is not None) is warned
    if told is not None:
        assert "evaluation.noise_multiplier" in told


def test_calling_the_records_public_after_training_is_refused(private) -> None:
    world, results = private
    declared = world.evaluation.model_copy(update={"records_are_public": True})
    with pytest.raises(BudgetError, match="plan was made for private"):
        evaluate(world, results, evaluation=declared)


def test_calling_the_records_private_after_training_is_refused(public) -> None:
    world, results = public
    declared = world.evaluation.model_copy(update={"records_are_public": False})
    with pytest.raises(BudgetError, match="made for public records"):
        evaluate(world, results, evaluation=declared)


def test_results_of_another_plan_or_scope_are_refused(public) -> None:
    world, results = public
    with pytest.raises(DataError, match="another privacy plan"):
        evaluate(world, {**results, "plan": "0" * 64})
    fewer = {**results, "tables": {"base_model": results["tables"]["base_model"]}}
    with pytest.raises(DataError, match="lacks nonprivate, monolithic"):
        evaluate(world, fewer)


def test_a_model_of_other_classes_is_refused(public) -> None:
    world, results = public
    with pytest.raises(ModelError, match="3 classes"):
        evaluate(world, results, label_names=("x", "y"))


def test_training_without_privacy_learns_what_the_tokens_show(tmp_path: Path) -> None:
    world = make_world(tmp_path, "embedded", baselines=("nonprivate",))
    training = TRAINING.model_copy(
        update={
            "cycles": 30,
            "shared": TRAINING.shared.model_copy(update={"learning_rate": 0.05}),
        }
    )
    scope = evaluation_scope(world.evaluation, "embedded")
    results = train_baselines(
        world.base_model,
        LABELS,
        world.train,
        world.heldout,
        LAYER_PLAN,
        constants("embedded"),
        raptor_plan(LAYER_PLAN, constants("embedded"), PRIVACY, training, world.evaluation, scope).to_json(),
        PRIVACY,
        training,
        world.evaluation,
    )
    assert set(results["tables"]) == {"nonprivate"}
    confusion = np.array(results["tables"]["nonprivate"]["confusion"])
    assert np.trace(confusion) / confusion.sum() > 0.8


def test_figures_are_drawn_from_released_values(public) -> None:
    world, results = public
    metrics, _ = evaluate(world, results)
    figures = draw_figures(metrics, LABELS, {"epsilon": 2.5})
    assert len(figures) == 3
    labels = [label.get_text() for label in figures[0].axes[0].get_yticklabels()]
    assert any("epsilon 2.50" in label for label in labels)
    assert comparison_from_json(metrics).kept is None or "gain_kept" in metrics
