"""The plan: within the budget, and refused when its public constants do not fit together."""

from __future__ import annotations

import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.plan import StreamPlan, read_plan
from raptor.accounting.types import Adjacency, Unit
from raptor.dp.plan import EVALUATION, EXPERT, SHARED, StreamShape, make_plan
from raptor.errors import BudgetError

SHAPES = (StreamShape(SHARED, 40, 1.0, 512.0), StreamShape(EXPERT, 40, 0.5, 64.0, noise_weight=2.0, blocks=8))


def plan(**changes):
    given = {
        "shapes": SHAPES,
        "reserved": [StreamPlan(EVALUATION, 1.0, 20.0, 4, 1.0, 1.0)],
        "epsilon": 3.0,
        "delta": 1e-6,
        "adjacency": Adjacency.ADD_REMOVE,
        "unit": Unit.RECORD,
        "batch_size": 512,
        "population": 40_000,
        "population_source": "declared",
        "layer": 1,
        "generator": "secure:test",
        "taken_as_public": ["n"],
    }
    return make_plan(**{**given, **changes})


def test_all_streams_together_stay_just_within_the_budget() -> None:
    made = plan()
    events = [event for stream in made.streams for event in stream.events(stream.steps)]
    assert 2.99 < epsilon(events, made.delta, made.adjacency).epsilon <= 3.0
    assert made.epsilon_planned <= 3.0 < made.epsilon_split_sum
    shared, expert = made.stream(SHARED), made.stream(EXPERT)
    assert expert.noise_multiplier == pytest.approx(2 * shared.noise_multiplier)
    assert (expert.denominator, expert.blocks, shared.rate) == (64.0, 8, 512 / 40_000)


def test_a_reserved_evaluation_costs_training_noise() -> None:
    assert plan().stream(SHARED).noise_multiplier > plan(reserved=[]).stream(SHARED).noise_multiplier


def test_replace_one_needs_more_noise() -> None:
    made = plan(adjacency=Adjacency.REPLACE_ONE)
    assert made.stream(SHARED).noise_multiplier > plan().stream(SHARED).noise_multiplier


def test_the_plan_survives_its_json_form() -> None:
    assert read_plan(plan().to_json()) == plan()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 40_001}, "training.batch_size is 40001"),
        ({"delta": 1 / 40_000}, "privacy.delta"),
        ({"delta": 0.5}, "privacy.delta"),
        ({"epsilon": 0.05}, "noise"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words) -> None:
    with pytest.raises(BudgetError, match=words):
        plan(**changes)


def test_a_large_delta_is_allowed_by_name() -> None:
    assert plan(delta=1 / 40_000, allow_large_delta=True).delta == 1 / 40_000


def test_a_stream_outside_the_plan_is_refused() -> None:
    with pytest.raises(BudgetError, match="no stream 'monolithic'"):
        plan().stream("monolithic")
