"""What must hold for all events: more privacy for more noise, no order, no loss by joint accounting."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.accounting.accountant import epsilon
from raptor.accounting.calibration import calibrate, split_sum
from raptor.accounting.types import Adjacency, Event, EventShape

# Figures are upper bounds within 1e-4 of the truth, or of delta where that is larger: two of them compare up to it.
SLACK = 1.5e-4
LARGEST_DELTA = 1e-3
quick = settings(max_examples=15, deadline=None)

rates = st.one_of(st.just(1.0), st.floats(-5, -0.2).map(lambda power: 10.0**power))
noises = st.floats(0.2, 30.0)
steps = st.integers(1, 500)
deltas = st.floats(-15, -3).map(lambda power: 10.0**power)
adjacencies = st.sampled_from(list(Adjacency))
events = st.builds(Event, rates, noises, steps)


def cost(items, delta, adjacency) -> float:
    """A tight figure: everywhere here some grid settles."""
    bound = epsilon(items, delta, adjacency, confirm=False)
    assert (bound.method, bound.note) == ("pld", "")
    return bound.epsilon


def at_most(small: float, large: float) -> bool:
    return small <= large * (1 + SLACK) + SLACK * LARGEST_DELTA


@quick
@given(events, deltas, adjacencies, st.floats(1.01, 3.0))
def test_more_noise_never_costs_more(event, delta, adjacency, factor) -> None:
    louder = Event(event.rate, event.noise_multiplier * factor, event.steps)
    assert at_most(cost([louder], delta, adjacency), cost([event], delta, adjacency))


@quick
@given(events, deltas, adjacencies, st.floats(0.1, 0.99))
def test_a_lower_rate_never_costs_more(event, delta, adjacency, factor) -> None:
    rarer = Event(event.rate * factor, event.noise_multiplier, event.steps)
    assert at_most(cost([rarer], delta, adjacency), cost([event], delta, adjacency))


@quick
@given(events, deltas, adjacencies, st.integers(1, 500))
def test_more_steps_never_cost_less(event, delta, adjacency, more) -> None:
    longer = Event(event.rate, event.noise_multiplier, event.steps + more)
    assert at_most(cost([event], delta, adjacency), cost([longer], delta, adjacency))


@quick
@given(events, deltas, adjacencies, st.floats(1.1, 100.0))
def test_a_larger_delta_never_costs_more(event, delta, adjacency, factor) -> None:
    assert at_most(cost([event], min(0.5, delta * factor), adjacency), cost([event], delta, adjacency))


@quick
@given(events, deltas)
def test_replacing_never_costs_less_than_adding(event, delta) -> None:
    assert at_most(cost([event], delta, Adjacency.ADD_REMOVE), cost([event], delta, Adjacency.REPLACE_ONE))


@quick
@given(st.lists(events, min_size=2, max_size=3), deltas, adjacencies, st.randoms())
def test_order_and_grouping_do_not_matter(items, delta, adjacency, random) -> None:
    shuffled = [Event(item.rate, item.noise_multiplier, item.steps - item.steps // 2) for item in items]
    shuffled += [Event(item.rate, item.noise_multiplier, item.steps // 2) for item in items]
    random.shuffle(shuffled)
    assert cost(shuffled, delta, adjacency) == cost(items, delta, adjacency)


@quick
@given(st.lists(events, min_size=2, max_size=3), deltas, adjacencies)
def test_joint_is_never_above_the_split_sum(items, delta, adjacency) -> None:
    split = split_sum([[item] for item in items], delta, adjacency)
    assert at_most(cost(items, delta, adjacency), split.epsilon)
    assert sum(split.deltas) == pytest.approx(delta)


@quick
@given(events, deltas, adjacencies)
def test_renyi_is_never_below(event, delta, adjacency) -> None:
    found = epsilon([event], delta, adjacency, confirm=False)
    assert found.epsilon <= found.renyi * (1 + SLACK)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.builds(EventShape, rates, steps, st.floats(0.3, 3.0)), min_size=1, max_size=2),
    st.floats(-2.3, 1.3).map(lambda power: 10.0**power),
    st.floats(-11, -3).map(lambda power: 10.0**power),
    adjacencies,
)
def test_calibration_lands_just_inside_the_budget(shapes, target, delta, adjacency) -> None:
    found = calibrate(shapes, target, delta, adjacency, confirm=False)
    assert target * (1 - 1e-4) <= found.epsilon <= target
    again = [
        Event(shape.rate, noise, shape.steps)
        for shape, noise in zip(shapes, found.noise_multipliers, strict=True)
    ]
    assert cost(again, delta, adjacency) == found.epsilon
    assert [noise / shape.weight for shape, noise in zip(shapes, found.noise_multipliers, strict=True)] == (
        pytest.approx([found.factor] * len(shapes))
    )
