"""Few rare steps at a tiny delta, where a plain transform loses the tail in its rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from raptor.accounting.accountant import epsilon
from raptor.accounting.loss import Direction, _loss, _threshold
from raptor.accounting.types import Adjacency, Event


def two_step_epsilon(rate: float, noise: float, delta: float) -> float:
    """Epsilon of removing one unit in two steps: one step in closed form, averaged over the other's losses."""
    x = np.linspace(-14 * noise, 1 + 14 * noise, 400_001)
    first = (1 - rate) * np.exp(-0.5 * (x / noise) ** 2) + rate * np.exp(-0.5 * ((x - 1) / noise) ** 2)
    first *= (x[1] - x[0]) / (noise * math.sqrt(2 * math.pi))
    loss = _loss(x, rate, noise, Direction.REMOVE)

    def excess(value: float) -> float:
        left = value - loss
        edge = _threshold(left, rate, noise, Direction.REMOVE)
        one = rate * ndtr(-(edge - 1) / noise) - (np.expm1(left) + rate) * ndtr(-edge / noise)
        return math.log(float(np.dot(first, one))) - math.log(delta)

    return brentq(excess, 1e-6, 20, xtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "noise", "delta"),
    [(1e-5, 0.6, 1e-12), (1e-5, 1.0, 1e-14), (1e-4, 1.0, 1e-14), (2.5e-4, 1.0, 1e-14), (1e-3, 0.6, 1e-13)],
)
def test_two_rare_steps_match_their_integral(rate, noise, delta) -> None:
    found = epsilon([Event(rate, noise, 2)], delta, Adjacency.ADD_REMOVE, confirm=False)
    truth = two_step_epsilon(rate, noise, delta)
    assert truth * (1 - 1e-7) <= found.epsilon <= truth * (1 + 1e-4)
    assert (found.method, found.note) == ("pld", "")


@pytest.mark.parametrize("steps", [3, 10, 100, 1000])
@pytest.mark.parametrize("rate", [1e-4, 2.5e-4])
def test_more_rare_steps_settle(rate, steps) -> None:
    found = epsilon([Event(rate, 1.0, steps)], 1e-14, Adjacency.ADD_REMOVE, confirm=False)
    fewer = epsilon([Event(rate, 1.0, steps - 1)], 1e-14, Adjacency.ADD_REMOVE, confirm=False)
    assert found.refined < 1e-3
    assert fewer.epsilon <= found.epsilon * (1 + 1e-4)


def test_different_rare_steps_are_accounted_together() -> None:
    events = [Event(2.5e-4, 1.0, 2), Event(1e-4, 0.9, 3)]
    found = epsilon(events, 1e-14, Adjacency.ADD_REMOVE, confirm=False)
    alone = [epsilon([event], 1e-14, Adjacency.ADD_REMOVE, confirm=False).epsilon for event in events]
    halves = [epsilon([event], 5e-15, Adjacency.ADD_REMOVE, confirm=False).epsilon for event in events]
    assert max(alone) < found.epsilon < sum(halves)
