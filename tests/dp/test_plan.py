"""The plan: within the budget, and refused when its public constants do not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.plan import Accounting, StreamPlan, read_plan
from raptor.accounting.selection import Search, Selection
from raptor.accounting.types import Adjacency, Unit
from raptor.dp.config import PrivacyConfig
from raptor.dp.plan import EVALUATION, EXPERT, SHARED, StreamShape, make_plan
from raptor.errors import BudgetError, LedgerError, ParameterError

SHAPES = (
    StreamShape(SHARED, 40, 1.0, 512.0, 512),
    StreamShape(EXPERT, 40, 0.5, 64.0, 512, noise_weight=2.0, blocks=8),
)


def plan(**changes):
    given = {
        "shapes": SHAPES,
        "reserved": [StreamPlan(EVALUATION, 1.0, 20.0, 4, 1.0, 1.0)],
        "epsilon": 3.0,
        "delta": 1e-6,
        "adjacency": Adjacency.ADD_REMOVE,
        "unit": Unit.RECORD,
        "population": 40_000,
        "population_source": "declared",
        "layers": [1],
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


def test_streams_may_have_batch_sizes_of_their_own() -> None:
    large = plan(shapes=[SHAPES[0], replace(SHAPES[1], batch_size=2048, denominator=256.0)])
    assert [stream.rate for stream in large.streams] == [512 / 40_000, 2048 / 40_000, 1.0]
    # The ledger composes each stream at its own rate, in one ledger and within the budget.
    events = [event for stream in large.streams for event in stream.events(stream.steps)]
    assert {event.rate for event in events} == {512 / 40_000, 2048 / 40_000, 1.0}
    assert 2.99 < epsilon(events, large.delta, large.adjacency).epsilon <= 3.0
    common = plan()
    assert large.stream(EXPERT).noise_multiplier > common.stream(EXPERT).noise_multiplier
    # What counts is noise over denominator, and four times the batch is worth more than the noise it costs.
    assert large.stream(EXPERT).noise_multiplier / 256.0 < common.stream(EXPERT).noise_multiplier / 64.0


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
        ({"shapes": [replace(SHAPES[0], batch_size=40_001)]}, "training.batch_size is 40001"),
        ({"shapes": [SHAPES[0], replace(SHAPES[1], batch_size=40_001)]}, "training.batch_size is 40001"),
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


PLAIN = (StreamShape(SHARED, 40, 1.0, 512.0, 512), StreamShape(EXPERT, 40, 0.5, 64.0, 512, blocks=8))


@pytest.mark.parametrize("rho", [0.2, 0.8])
def test_the_split_of_the_paper(rho) -> None:
    made = plan(shapes=PLAIN, rho=rho)
    assert made.accounting is Accounting.SPLIT
    # Added stream by stream the budget is used up; in one ledger it is not.
    assert 3.0 * (1 - 2e-4) <= made.epsilon_split_sum <= 3.0
    assert made.epsilon_planned < made.epsilon_split_sum
    assert (made.stream(SHARED).noise_multiplier < made.stream(EXPERT).noise_multiplier) == (rho > 0.5)
    assert read_plan(made.to_json()) == made
    shapes = [
        replace(shape, noise_weight=noise)
        for shape, noise in zip(PLAIN, (stream.noise_multiplier for stream in made.streams), strict=False)
    ]
    joint = plan(shapes=shapes)
    assert all(
        joint.stream(name).noise_multiplier < made.stream(name).noise_multiplier for name in (SHARED, EXPERT)
    )
    # The evaluation is reserved as it is in one ledger.
    assert joint.stream(EVALUATION) == made.stream(EVALUATION)


def test_what_a_split_cannot_use_is_refused() -> None:
    with pytest.raises(ParameterError, match="noise_weight is set"):
        plan(rho=0.5)
    with pytest.raises(ParameterError, match="needs steps in both streams"):
        plan(shapes=PLAIN[:1], rho=0.5)


def test_a_search_changes_no_noise_and_stands_in_the_plan() -> None:
    made = plan(search=Search(5, Selection.GEOMETRIC))
    assert made.streams == plan().streams
    assert read_plan(made.to_json()).search == Search(5, Selection.GEOMETRIC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 0.5}, "rho of the privacy plan goes with accounting split"),
        ({"accounting": "split"}, "rho of the privacy plan goes with accounting split"),
        ({"accounting": "split", "rho": 1.0}, "rho of the privacy plan must be above 0 and below 1"),
        ({"accounting": "sum"}, "accounting of the privacy plan must be one of joint, split"),
        ({"search": {"runs": 3, "selection": "none"}}, "its selection is none"),
        ({"search": {"runs": 3}}, "lacks the field selection"),
    ],
)
def test_a_plan_with_a_wrong_split_or_search_is_refused(changes, message) -> None:
    with pytest.raises(LedgerError, match=message):
        read_plan({**plan().to_json(), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 0.5}, "privacy.rho is set, but privacy.accounting is joint"),
        ({"accounting": "split"}, "privacy.rho must say which share"),
        ({"accounting": "split", "rho": 1.0}, "less than 1"),
        ({"search": {"runs": 3}}, "go together"),
        ({"search": {"selection": "naive"}}, "go together"),
        ({"search": {"runs": 3, "selection": "best"}}, "naive"),
    ],
)
def test_parameters_that_change_nothing_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        PrivacyConfig(epsilon=3.0, delta=1e-6, **changes)
