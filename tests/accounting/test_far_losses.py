"""Losses far above epsilon stay out of the transform: the same figure without the rounding, at every delta."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from raptor.accounting import transform
from raptor.accounting.accountant import epsilon
from raptor.accounting.aim import outweighed
from raptor.accounting.compose import compose
from raptor.accounting.composed import Composed
from raptor.accounting.loss import Direction, limits, loss_between, masses_above
from raptor.accounting.types import Adjacency, Event

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE

# Rare steps whose losses reach far above epsilon.
RARE = [
    (1e-4, 0.6, 10_000, 1e-6, ADD),
    (1e-5, 1.0, 10, 1e-9, REPLACE),
    (1e-3, 0.5, 200, 1e-5, REPLACE),
    (0.02, 0.4, 3, 1e-4, ADD),
]


def exact(*arguments) -> Composed:
    """A transform without the bound on its rounding, which hides differences between the two ways."""
    return dataclasses.replace(Composed(*arguments), rounding=0.0)


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "adjacency"), RARE)
def test_far_losses_apart_or_within(monkeypatch, rate, noise, steps, delta, adjacency) -> None:
    events = [Event(rate, noise, steps)]
    apart = compose(events, delta, adjacency)
    monkeypatch.setattr("raptor.accounting.aim._REACH", 1e9)
    within = compose(events, delta, adjacency)
    assert apart.epsilon <= within.epsilon * (1 + 2e-5)
    monkeypatch.setattr(transform, "Composed", exact)
    assert apart.epsilon == pytest.approx(compose(events, delta, adjacency).epsilon, rel=5e-5)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "adjacency"),
    [
        (1e-5, 1.0, 1000, 1e-9, ADD),
        (1e-5, 1.0, 1000, 1e-15, ADD),
        (1e-5, 1.0, 1000, 1e-15, REPLACE),
        (1e-5, 0.4, 1000, 1e-3, ADD),
        (1e-5, 0.4, 1000, 1e-3, REPLACE),
        (0.1, 0.1, 10_000, 1e-15, ADD),
    ],
)
def test_corners_settle(rate, noise, steps, delta, adjacency) -> None:
    found = epsilon([Event(rate, noise, steps)], delta, adjacency, confirm=False)
    assert (found.method, found.note) == ("pld", "")
    assert found.refined < 1e-3
    assert 0 < found.epsilon <= found.renyi


def test_all_corners_of_the_range_have_a_finite_tight_figure() -> None:
    corners = list(
        itertools.product(
            (1e-5, 1e-3, 0.1, 1.0),
            (0.1, 0.5, 2.0, 100.0),
            (1, 7, 1000, 20_000),
            (1e-3, 1e-9, 1e-15),
            list(Adjacency),
        )
    )
    for rate, noise, steps, delta, adjacency in random.Random(5).sample(corners, 40):
        found = epsilon([Event(rate, noise, steps)], delta, adjacency, confirm=False)
        assert math.isfinite(found.epsilon), (rate, noise, steps, delta, adjacency)
        assert (found.method, found.note) == ("pld", ""), (rate, noise, steps, delta, adjacency)
        assert 0 <= found.epsilon <= found.renyi * (1 + 1.5e-4)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("rate", [1e-4, 0.3, 1.0])
def test_masses_beyond_the_grid_are_those_of_the_closed_form(direction, rate) -> None:
    event = Event(rate, 0.7, 1)
    grid = 1e-3
    kept = limits([event], direction, 1e-12, ceiling=0.2)
    step = loss_between(event, direction, grid, float(kept.lowest[0]), float(kept.highest[0]))
    last = grid * (step.first + step.mass.size - 1)
    p, other = masses_above([event], direction, last)
    assert (step.beyond, step.beyond_other) == pytest.approx((p, other), rel=1e-9, abs=1e-300)
    assert step.mass.sum() + step.beyond == pytest.approx(1, abs=1e-12)
    # All losses beyond are above the last point, so Q has at most exp(-last) of what P has.
    assert other <= p * math.exp(-last) * (1 + 1e-9)


def test_how_often_other_steps_outweigh_is_a_chernoff_bound() -> None:
    # S is the loss of one Gaussian release of multiplier 1: under Q, -S is N(1/2, 1).
    def moment(order: float) -> float:
        return order * (order + 1) / 2

    found = outweighed(moment, 6.0, 1.0)
    truth = 0.5 * math.erfc(5.5 / math.sqrt(2))
    assert truth <= found <= 1e3 * truth
    assert outweighed(moment, 0.0, 1.0) == 1.0
    assert outweighed(moment, 0.3, 1.0) == 1.0
