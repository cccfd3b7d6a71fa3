"""The charged evaluation: what one record moves, how large the noise is, and that it is spent once."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from raptor.accounting.journal import read_journal
from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Adjacency, Unit
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.streams import RandomSource
from raptor.errors import BudgetError
from raptor.pipelines.evaluation.noise import noised_table, noised_tables, release_tables
from raptor.reporting.tables import EvaluationTables, tables_from_probabilities

SIGMA = 3.0
SEEDED = "seeded:aes-256-ctr"


def plan(steps: int = 4, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> PrivacyPlan:
    return PrivacyPlan(
        unit=Unit.RECORD,
        adjacency=adjacency,
        epsilon_target=1.0,
        delta=1e-6,
        epsilon_planned=1.0,
        epsilon_split_sum=1.0,
        population=100,
        population_source="declared",
        layers=(1,),
        generator=SEEDED,
        taken_as_public=(),
        streams=(StreamPlan("evaluation", 1.0, SIGMA, steps, 1.0, 1.0),),
    )


def mechanism(sink: list, given: PrivacyPlan | None = None, seed: int = 0) -> GaussianMechanism:
    noise = RandomSource.seeded(seed).stream("evaluation/noise")
    return GaussianMechanism((given or plan()).stream("evaluation"), noise, SEEDED, sink)


def answers(records: int = 40) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    return generator.dirichlet(np.ones(3), size=records), generator.integers(0, 3, size=records)


def test_with_the_noise_frozen_one_record_moves_a_release_by_its_sensitivity() -> None:
    probabilities, labels = answers()
    whole = noised_tables(tables_from_probabilities(probabilities, labels, 5), mechanism([]), plan())
    for index in range(len(labels)):
        keep = np.arange(len(labels)) != index
        exact = tables_from_probabilities(probabilities[keep], labels[keep], 5)
        less = noised_tables(exact, mechanism([]), plan())
        assert np.linalg.norm(whole.confusion - less.confusion) == pytest.approx(1.0)
        moved = np.linalg.norm(whole.reliability - less.reliability)
        assert 1.0 - 1e-9 <= moved <= math.sqrt(3) + 1e-9


def test_the_noise_has_the_deviation_that_the_tables_state() -> None:
    big = EvaluationTables(np.zeros((120, 120)), np.zeros((5000, 3)))
    noisy = noised_tables(big, mechanism([]), plan())
    assert (noisy.confusion_noise, noisy.reliability_noise) == (SIGMA, SIGMA * math.sqrt(3))
    assert noisy.confusion.std() == pytest.approx(noisy.confusion_noise, rel=0.02)
    assert noisy.reliability.std() == pytest.approx(noisy.reliability_noise, rel=0.02)
    assert abs(noisy.confusion.mean()) < 4 * SIGMA / 120


def test_every_cell_gets_its_own_noise_and_no_table_shares_it() -> None:
    zero = np.zeros((6, 6))
    shared = mechanism([])
    first, second = (noised_table(zero, 1.0, shared, plan()) for _ in range(2))
    assert len(np.unique(np.concatenate([first, second]))) == 72


def test_denominator_and_norm_of_the_stream_cancel() -> None:
    other = dataclasses.replace(
        plan(), streams=(StreamPlan("evaluation", 1.0, SIGMA, 4, clipping_norm=2.0, denominator=5.0),)
    )
    table = np.arange(12.0).reshape(4, 3)
    usual = noised_table(table, 1.5, mechanism([]), plan())
    assert noised_table(table, 1.5, mechanism([], other), other) == pytest.approx(usual)


def test_releases_state_the_adjacency_that_the_accountant_doubles() -> None:
    sink: list = []
    given = plan(adjacency=Adjacency.REPLACE_ONE)
    noised_tables(tables_from_probabilities(*answers(), 5), mechanism(sink, given), given)
    assert [release.step for release in sink] == [0, 1]
    assert [release.dimension for release in sink] == [9, 15]
    for release in sink:
        assert release.sensitivity.adjacency is Adjacency.REPLACE_ONE
        assert release.sensitivity.distance == 2.0
        assert release.rate == 1.0
        assert release.noise_multiplier == SIGMA


@pytest.fixture
def model(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / "model.safetensors").write_bytes(b"weights")
    return place


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    place = tmp_path / "journals"
    place.mkdir()
    return place


def exact_tables(*names: str) -> dict[str, EvaluationTables]:
    return {name: tables_from_probabilities(*answers(), 5) for name in names}


def test_each_table_is_released_once_and_recorded_before_use(model: Path, journals: Path) -> None:
    noisy, log = release_tables(
        exact_tables("raptor", "base_model"), plan(), model, journals, RandomSource.seeded(1)
    )
    (journal,) = journals.glob("*.jsonl")
    header, releases = read_journal(journal)
    assert header == plan().to_json()
    assert [release.step for release in releases] == [0, 1, 2, 3]
    assert len(log) == 5
    assert not noisy["raptor"].is_exact
    assert not np.array_equal(noisy["raptor"].confusion, noisy["base_model"].confusion)


def test_evaluating_again_reads_back_and_spends_nothing(model: Path, journals: Path) -> None:
    names = ("raptor", "base_model")
    first, log = release_tables(exact_tables(*names), plan(), model, journals, RandomSource.seeded(1))
    before = {file.name: file.read_bytes() for file in journals.iterdir()}
    again, same = release_tables(exact_tables(*names), plan(), model, journals, RandomSource.seeded(2))
    assert same == log
    assert all(np.array_equal(again[name].confusion, first[name].confusion) for name in names)
    assert {file.name: file.read_bytes() for file in journals.iterdir()} == before
    alone, _ = release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.seeded(2))
    assert list(alone) == ["raptor"]


def test_another_model_has_its_own_releases(model: Path, journals: Path) -> None:
    release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.seeded(1))
    (model / "model.safetensors").write_bytes(b"other weights")
    release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.seeded(2))
    assert len(list(journals.glob("*.jsonl"))) == 2


def test_more_than_was_reserved_is_refused_before_anything_is_released(model: Path, journals: Path) -> None:
    with pytest.raises(BudgetError, match=r"needs 4 noisy tables.*reserved 2"):
        release_tables(
            exact_tables("raptor", "base_model"), plan(steps=2), model, journals, RandomSource.seeded(1)
        )
    assert list(journals.iterdir()) == []


def test_a_model_that_was_left_out_cannot_be_added_afterwards(model: Path, journals: Path) -> None:
    release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.seeded(1))
    with pytest.raises(BudgetError, match="base_model"):
        release_tables(exact_tables("raptor", "base_model"), plan(), model, journals, RandomSource.seeded(1))


def test_a_cut_off_evaluation_stays_spent(model: Path, journals: Path) -> None:
    release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.seeded(1))
    for file in journals.glob("*.json"):
        file.unlink()
    with pytest.raises(BudgetError, match="spent"):
        release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.seeded(1))


def test_a_plan_of_another_generator_is_refused(model: Path, journals: Path) -> None:
    with pytest.raises(BudgetError, match="generator"):
        release_tables(exact_tables("raptor"), plan(), model, journals, RandomSource.secure())
    assert list(journals.iterdir()) == []


def test_a_plan_without_the_stream_is_refused(model: Path, journals: Path) -> None:
    without = dataclasses.replace(plan(), streams=(StreamPlan("shared", 0.1, 1.0, 4, 1.0, 8.0),))
    with pytest.raises(BudgetError, match="no stream 'evaluation'"):
        release_tables(exact_tables("raptor"), without, model, journals, RandomSource.seeded(1))


def test_what_is_kept_beside_the_journal_holds_noisy_tables_only(model: Path, journals: Path) -> None:
    exact = exact_tables("raptor")
    noisy, _ = release_tables(exact, plan(), model, journals, RandomSource.seeded(1))
    (kept,) = journals.glob("*.json")
    stored = json.loads(kept.read_text())["tables"]["raptor"]
    assert stored["confusion"] == noisy["raptor"].confusion.tolist()
    assert stored["confusion"] != exact["raptor"].confusion.tolist()
