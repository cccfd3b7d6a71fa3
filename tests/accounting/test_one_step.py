"""The closed form of one step against arithmetic of many digits."""

from __future__ import annotations

import math

import mpmath
import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.loss import Direction
from raptor.accounting.one_step import one_step_epsilon
from raptor.accounting.types import Adjacency, Event

DIGITS = 60


def exact_delta(value: float, event: Event, direction: Direction) -> mpmath.mpf:
    """Hockey-stick divergence of the pair in `loss`, from its definition; the threshold by bisection."""
    q, s, level = mpmath.mpf(event.rate), mpmath.mpf(event.noise_multiplier), mpmath.mpf(value)

    def above(t, mean):
        return mpmath.erfc((t - mean) / (s * mpmath.sqrt(2))) / 2

    def below(t, mean):
        return above(-t, -mean)

    def ratio(x, mean):
        return 1 - q + q * mpmath.exp((2 * mean * x - 1) / (2 * s * s))

    def mixture(side, t, mean):
        return (1 - q) * side(t, 0) + q * side(t, mean)

    def loss(x):
        if direction is Direction.REPLACE:
            return mpmath.log(ratio(x, 1) / ratio(x, -1))
        return mpmath.log(ratio(x, 1)) * (-1 if direction is Direction.ADD else 1)

    rising = direction is not Direction.ADD
    low, high = mpmath.mpf(-(10**7)), mpmath.mpf(10**7)
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (low, middle) if (loss(middle) > level) == rising else (middle, high)
    if direction is Direction.REMOVE:
        return mixture(above, low, 1) - mpmath.exp(level) * above(low, 0)
    if direction is Direction.ADD:
        return below(high, 0) - mpmath.exp(level) * mixture(below, high, 1)
    return mixture(above, low, 1) - mpmath.exp(level) * mixture(above, low, -1)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("rate", [1e-5, 2.5e-4, 0.02, 0.6, 1.0])
@pytest.mark.parametrize("noise", [0.4, 1.0, 6.0, 300.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-14, 1e-40])
def test_the_figure_is_above_the_truth_and_next_to_it(direction, rate, noise, delta) -> None:
    event = Event(rate, noise, 1)
    found = one_step_epsilon(event, direction, delta)
    with mpmath.workdps(DIGITS):
        assert exact_delta(found, event, direction) <= delta
        if found > 0:
            assert exact_delta(found * (1 - 1e-6), event, direction) > delta


def test_a_delta_above_all_that_a_step_can_lose_costs_nothing() -> None:
    assert one_step_epsilon(Event(1e-5, 1.0, 1), Direction.REMOVE, 1e-5) == 0
    assert one_step_epsilon(Event(1e-5, 1.0, 1), Direction.ADD, 1e-5) == 0


def test_noise_without_a_bound_that_floating_point_can_hold_gives_infinity() -> None:
    assert one_step_epsilon(Event(0.5, 1e-200, 1), Direction.REMOVE, 1e-6) == math.inf


def test_a_rare_step_at_a_tiny_delta_is_tight() -> None:
    # No grid settles here: nearly all of the mass lies near loss 0 and its rounding hides the tail.
    rare, four_times = (
        epsilon([Event(rate, 1.0, 1)], 1e-14, Adjacency.ADD_REMOVE) for rate in (2.5e-4, 1e-3)
    )
    assert (rare.method, rare.refined) == ("pld", 0)
    assert rare.epsilon == pytest.approx(0.18317827, rel=1e-6)
    assert rare.epsilon < four_times.epsilon == pytest.approx(0.68968246, rel=1e-6)
