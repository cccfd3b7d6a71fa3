"""The attack study on a tiny bed: what is trained, what is kept, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from raptor.accounting.accountant import epsilon
from raptor.accounting.types import Adjacency, Event
from raptor.errors import BudgetError
from raptor.pipelines.benchmark import attacks, cells
from raptor.pipelines.benchmark.attack_report import attack_curves, attack_section, contradictions
from raptor.pipelines.benchmark.attacks import Arm, answers, arms_of, collect, curve_rates, members_of
from raptor.pipelines.benchmark.cells import Bed, Cell
from raptor.pipelines.benchmark.config import AttackConfig, BenchmarkConfig
from raptor.pipelines.benchmark.nodes import attack_benchmark
from raptor.pipelines.benchmark.recipes import RECIPES
from raptor.pipelines.benchmark.sets import BenchmarkSet, load_set
from tests.pipelines.benchmark.test_benchmark import LAYERS, TRAINING, write_set
from tests.pipelines.directories import save_base_model

RECORDS, MODELS = 80, 4
ATTACKED = {
    "sets": ["some"],
    "methods": ["raptor", "nonprivate_b"],
    "epsilons": [4.0],
    "models": MODELS,
    "records": RECORDS,
    "control_methods": [],
    "control_batch_size": 30,
    "false_rates": [0.1],
}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> BenchmarkSet:
    place = write_set(tmp_path_factory.mktemp("sets") / "some.parquet")
    return load_set(place, base_model, [0], max_length=12, train_records=80, test_records=20, vote="weight")


@pytest.fixture(autouse=True)
def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second for each method, and has its own tests for all of them."""
    monkeypatch.setattr(cells, "require_isolated", lambda *_given: None)


def run(folder: Path, base_model: Path, **changed: object) -> dict:
    folder.mkdir(exist_ok=True)
    attacked = AttackConfig.model_validate({**ATTACKED, **changed})
    config = BenchmarkConfig(folder=str(folder.parent), sets=("some",), attacks=attacked)
    return attack_benchmark(base_model, LAYERS, folder, config, TRAINING, "weight", 12)


def made_up(method: str, gap: float, models: int = 16, records: int = 300):
    """Answers of models whose members answer better by `gap` than others."""
    generator = np.random.default_rng(0)
    difficulty = generator.normal(size=records)
    noise = generator.normal(size=(models, records))
    members = np.array([members_of(model, records) for model in range(models)])
    margins = difficulty + gap * members + noise
    events = [[0.2, 2.0, 4]] if RECIPES[method].is_private else []

    def cell_of(arm: Arm, model: int) -> dict:
        return {
            "members": members[model].astype(int).tolist(),
            "margins": margins[model].tolist(),
            "accuracy_in": 0.75,
            "accuracy_out": 0.5,
            "delta": 1e-5,
            "events": events,
        }

    return cell_of


def test_a_model_is_trained_on_its_own_half_and_asked_about_all(
    base_model: Path, data: BenchmarkSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = Bed(base_model, LAYERS, (0, 1), TRAINING, BenchmarkConfig())
    seen: list[tuple[BenchmarkSet, int]] = []
    train = Bed.train

    def spy(self: Bed, cell: Cell, part: BenchmarkSet, population: int):
        seen.append((part, population))
        return train(self, cell, part, population)

    monkeypatch.setattr(Bed, "train", spy)
    found = answers(bed, Cell("some", "raptor", 4.0, 3), data)
    members = members_of(3, RECORDS)
    part, population = seen[0]
    assert found["members"] == members.astype(int).tolist()
    assert torch.equal(part.train.input_ids, data.train.input_ids[torch.from_numpy(members)])
    assert torch.equal(part.owned([0]).owners, data.owned([0]).owners[torch.from_numpy(members)])
    # Rates, noise and delta rest on half of the records, whatever the coins chose.
    assert (population, len(part.train)) == (RECORDS // 2, members.sum())
    assert {event[0] for event in found["events"]} == {TRAINING.batch_size / (RECORDS // 2)}
    assert found["delta"] == pytest.approx((RECORDS // 2) ** -1.1)
    events = [Event(rate, noise, steps) for rate, noise, steps in found["events"]]
    assert 3.9 < epsilon(events, found["delta"], Adjacency.ADD_REMOVE).epsilon <= 4.0
    # A margin above 0 is a probability above one half; there are two classes.
    right = np.array(found["margins"]) > 0
    assert right[members].mean() == pytest.approx(found["accuracy_in"])
    assert right[~members].mean() == pytest.approx(found["accuracy_out"])


def test_halves_are_by_fair_coins_and_differ() -> None:
    drawn = np.array([members_of(model, 2000) for model in range(20)])
    assert abs(drawn.mean() - 0.5) < 0.01
    agree = [(first == second).mean() for first in drawn for second in drawn if first is not second]
    assert max(abs(share - 0.5) for share in agree if share < 1) < 0.06


def test_a_model_that_cost_more_than_its_budget_is_refused(
    base_model: Path, data: BenchmarkSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = Bed(base_model, LAYERS, (0, 1), TRAINING, BenchmarkConfig())
    monkeypatch.setattr(cells, "spent_epsilon", lambda *_given: 4.1)
    with pytest.raises(BudgetError, match=r"spent epsilon 4\.1"):
        answers(bed, Cell("some", "raptor", 4.0, 0), data)


def test_trained_models_are_not_trained_again(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "some.parquet")
    asked: list[Cell] = []
    original = attacks.answers
    monkeypatch.setattr(
        attacks, "answers", lambda bed, cell, data: asked.append(cell) or original(bed, cell, data)
    )
    folder = tmp_path / "cells"
    first = run(folder, base_model)
    assert len(asked) == 2 * MODELS
    assert {(row["method"], row["epsilon"]) for row in first["attacks"]} == {
        ("raptor", 4.0),
        ("nonprivate_b", 0.0),
    }
    asked.clear()
    assert run(folder, base_model) == first
    assert not asked
    next(folder.glob("attack-some-raptor-4-2-*.json")).unlink()
    assert run(folder, base_model) == first
    assert [(cell.method, cell.seed) for cell in asked] == [("raptor", 2)]
    asked.clear()
    # A longer training is another model, and so is one of other records; the rest is found.
    control = run(folder, base_model, control_methods=["nonprivate_b"], control_cycles=3)
    assert [(cell.method, cell.seed) for cell in asked] == [("nonprivate_b", seed) for seed in range(MODELS)]
    assert [row["control"] for row in control["attacks"]] == [False] * 6 + [True] * 3
    asked.clear()
    run(folder, base_model, methods=["nonprivate_b"], records=90)
    assert len(asked) == MODELS


def test_only_sets_of_the_comparison_are_attacked(tmp_path: Path, base_model: Path) -> None:
    write_set(tmp_path / "some.parquet")
    found = run(tmp_path / "cells", base_model, sets=["another"])
    assert found == {"attacks": [], "points": []}
    assert attack_section(found, AttackConfig()) == []
    attack_curves(found)


def test_arms_are_methods_at_their_budgets_and_the_control() -> None:
    config = AttackConfig(sets=("a", "c"), methods=("raptor", "nonprivate"), epsilons=(8.0, 1.0))
    assert arms_of(config, ["a", "b"]) == [
        Arm("a", "raptor", 1.0, False),
        Arm("a", "raptor", 8.0, False),
        Arm("a", "nonprivate", None, False),
        Arm("a", "nonprivate_a", None, True),
    ]
    with pytest.raises(ValueError, match="unknown methods raptr"):
        AttackConfig(methods=("raptr",))


def test_rates_of_a_curve_hold_those_that_were_asked_for() -> None:
    rates = curve_rates(10_000, (0.001, 0.1))
    assert rates == sorted(rates)
    assert {0.001, 0.1} <= set(rates)
    assert rates[0] == 0.001
    assert 0 < min(curve_rates(3, (0.1,))) <= max(curve_rates(3, (0.1,))) < 1


def test_results_are_beside_their_bounds_and_are_json() -> None:
    config = AttackConfig(false_rates=(0.01, 0.1))
    arm = Arm("a", "raptor", 2.0, False)
    found = collect([arm], made_up("raptor", 0.0), config)
    json.dumps(found, allow_nan=False)
    for row in found["points"]:
        rate = row["false_rate"]
        assert row["claim_bound"] <= min(1.0, np.exp(2.0) * rate + 1e-5) + 1e-12
        assert rate < row["ledger_bound"] <= 1
        assert row["low"] <= row["true_rate"] <= row["high"]
        assert row["false_positives"] <= rate * row["non_members"]
    assert contradictions(found) == []
    section = "\n".join(attack_section(found, config))
    assert "RAPTOR, one ledger, epsilon 2" in section
    assert "More than the ledger" not in section


def test_an_attack_that_finds_more_than_the_ledger_allows_is_told() -> None:
    arm = Arm("a", "raptor", 0.5, False)
    found = collect([arm], made_up("raptor", 6.0), AttackConfig())
    broken = contradictions(found)
    assert broken[0] == "loss threshold on RAPTOR, one ledger, epsilon 0.5, a"
    assert f"found: {broken[0]}" in "\n".join(attack_section(found, AttackConfig()))
    without = collect([Arm("a", "nonprivate", None, True)], made_up("nonprivate", 6.0), AttackConfig())
    assert contradictions(without) == []
    assert all(row["claim_bound"] is None for row in without["points"])
    assert max(row["epsilon_found"] for row in without["attacks"]) > 1


def test_the_figure_has_a_panel_for_each_budget_and_all_methods() -> None:
    arms = [
        Arm("a", "raptor", 1.0, False),
        Arm("a", "scope_a", 1.0, False),
        Arm("a", "raptor", 8.0, False),
        Arm("a", "nonprivate_a", None, False),
        Arm("a", "nonprivate_a", None, True),
    ]
    kept = {arm: made_up(arm.method, 1.0) for arm in arms}
    found = collect(arms, lambda arm, model: kept[arm](arm, model), AttackConfig())
    figure = attack_curves(found)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "a, epsilon 1",
        "a, epsilon 8",
        "a, without privacy",
    ]
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert labels == [
        "budget allows",
        "ledger allows",
        "guessing",
        *(RECIPES[name].title for name in ("raptor", "scope_a")),
    ]
    last = [line.get_label() for line in figure.axes[2].get_lines()]
    assert last == ["guessing", RECIPES["nonprivate_a"].title, RECIPES["nonprivate_a"].title + ", control"]
