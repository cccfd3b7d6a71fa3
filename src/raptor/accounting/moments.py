"""Moments of the composed privacy loss: the bound by Renyi divergences, and where to look for epsilon.

`kept` everywhere is the part of each step's loss that is on the grid. With it the values guide the search; without
it they are bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from raptor.accounting.loss import Direction, Limits, log_moment
from raptor.accounting.types import Event

_REACH = 40.0
"""Log of the weighted mass that a window may leave out on each side; it only loosens the figure."""


def renyi_bound(
    events: Sequence[Event], direction: Direction, delta: float, kept: Limits | None = None
) -> tuple[float, float]:
    """Renyi epsilon and its order less 1; with limits a guess, no bound."""

    def bound(order: float) -> float:
        moment = log_moment(events, direction, order, kept)
        alpha = order + 1
        return moment / order + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / order

    order, value = least_of(bound, start=_scale(events))
    return max(0.0, value), order


def saddle_order(
    events: Sequence[Event], direction: Direction, epsilon: float, start: float, kept: Limits
) -> float:
    """Order whose weighted mean loss is `epsilon`."""
    order, _ = least_of(
        lambda order: log_moment(events, direction, order, kept) - order * epsilon, start=start
    )
    return order


def reach(
    events: Sequence[Event], direction: Direction, order: float, side: int, kept: Limits
) -> tuple[float, float]:
    """Loss that exp(-40) of the distribution weighted by `order` passes on this side, and the order to show it."""
    here = log_moment(events, direction, order, kept)

    def bound(extra: float) -> float:
        return (log_moment(events, direction, order + side * extra, kept) - here + _REACH) / extra

    extra, value = least_of(bound, start=order / 4 + _scale(events) / 8, tolerance=0.2, doublings=16)
    return side * value, order + side * extra


def _scale(events: Sequence[Event]) -> float:
    """Order of magnitude of the best order: it grows with the noise."""
    return max(1.0, min(event.noise_multiplier for event in events))


def least_of(
    function: Callable[[float], float], start: float, tolerance: float = 0.03, doublings: int = 40
) -> tuple[float, float]:
    """Where a function of one valley is least over positive arguments, and the least value."""
    ratio = 2.0
    best, low, high = start, start / ratio, start * ratio
    value, below, above = function(best), function(low), function(high)
    while above < value and high < start * ratio**doublings:
        low, best, high = best, high, high * ratio
        below, value, above = value, above, function(high)
    while below <= value and low > start / ratio**doublings:
        high, best, low = best, low, low / ratio
        above, value, below = value, below, function(low)
    while high / low > 1 + tolerance:
        for end in (low, high):
            middle = math.sqrt(best * end)
            trial = function(middle)
            if trial < value:
                low, high = (low, best) if middle < best else (best, high)
                best, value = middle, trial
                break
            low, high = (middle, high) if middle < best else (low, middle)
    return best, value
