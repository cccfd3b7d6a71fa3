"""Where to look for epsilon: how much of each step's loss goes onto the grid, and how it is weighted.

All of it is a matter of tightness and speed: the figure is an upper bound for every choice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from raptor.accounting.loss import Direction, Limits, limits, log_moment, masses_above
from raptor.accounting.moments import renyi_bound, saddle_order
from raptor.accounting.types import Event

# How far epsilon may be above the guess for the bound on far losses to hold.
ABOVE = 1.05
# Share of delta that is given away as loss of a step beyond the grid where no better bound on it is needed.
_CUT = 1e-9
# Losses far above epsilon are cut off where they are so rare that two of them together do not matter, and the
# other steps so rarely outweigh one that this does not.
_REACH = 1.5
_FARTHER = 1.15
_TWICE = 1e-5
_OUTWEIGHED = 1e-5
# Log of the weighted mass below the grid that may be rounded up to its first point.
_LIFTED = 14.0
# The least order, over the largest loss of one step.
_FLAT = 0.01
# Events that stand for all in guesses.
_SKETCH = 80
_SCALES = 20


@dataclass(frozen=True)
class Aim:
    """Where on the line of losses epsilon is looked for.

    Attributes:
        about: a guess of epsilon.
        order: the weight is exp(order * loss).
        kept: what goes onto the grid.
        sketch: events that stand for all, where these are many; they guide and bound nothing.
        rough: what of their losses goes onto the grid.
    """

    about: float
    order: float
    kept: Limits
    sketch: tuple[Event, ...]
    rough: Limits


def outweighed(moment: Callable[[float], float], gap: float, order: float) -> float:
    """exp(moment(-1 - t) - t * gap) at the best t > 0, at most 1: Chernoff's bound on Q(-S > gap).

    Args:
        moment: log of E exp(order * S).
        order: where to start to look.
    """
    if gap <= 0:
        return 1.0
    least, scale = 0.0, order / 2
    for _ in range(_SCALES):
        exponent = moment(-1 - scale) - scale * gap
        if exponent >= least:
            break
        least, scale = exponent, 2 * scale
    return math.exp(least)


@dataclass(frozen=True)
class Problem:
    """What is to be accounted: events in one direction at one delta."""

    events: tuple[Event, ...]
    direction: Direction
    delta: float

    @property
    def count(self) -> int:
        return sum(event.steps for event in self.events)

    @functools.cached_property
    def sketch(self) -> tuple[Event, ...]:
        """Some of many events in place of all, to guide the search with."""
        size = -(-len(self.events) // _SKETCH)
        blocks = [self.events[start : start + size] for start in range(0, len(self.events), size)]
        return tuple(
            replace(block[len(block) // 2], steps=sum(event.steps for event in block)) for block in blocks
        )

    def guess(self) -> tuple[float, float]:
        """A first guess of epsilon, and of the order of its weight."""
        return renyi_bound(self.sketch, self.direction, self.delta, self._limits(self.sketch))

    def limits(self, floor: float = -math.inf, ceiling: float = math.inf) -> Limits:
        return self._limits(self.events, floor, ceiling)

    def _limits(
        self, events: tuple[Event, ...], floor: float = -math.inf, ceiling: float = math.inf
    ) -> Limits:
        return limits(events, self.direction, self.delta * _CUT / self.count, floor, ceiling)

    def aim(self, about: float, order: float) -> Aim:
        """Where to look for an epsilon of `about`; `order` is a first guess of the weight's."""
        top = float(self.limits().highest.max())
        for _ in range(2):
            ceiling = self._ceiling(about, order, top)
            floor = -max(_REACH * about, (_LIFTED + math.log(self.count)) / order)
            if self.direction is Direction.REPLACE:
                # A loss below -ceiling is as rare as one above it, so it takes two rare ones to make up for it.
                floor = max(floor, -ceiling)
            rough = self._limits(self.sketch, floor, ceiling)
            # Where epsilon is 0 or nearly so there is no best order, and too steep a weight sees little below the
            # guess. In usual settings the best one is far below this; where a step costs much it grows with the
            # number of steps.
            steepest = (
                max(300.0, -2 * math.log(self.delta), 20 * math.sqrt(self.count) * (about > 100)) / about
            )
            # Below the mean of the losses it would be negative; a weight that is hardly one does as well there.
            flattest = _FLAT / float(rough.highest.max())
            found = saddle_order(self.sketch, self.direction, about, order, rough)
            before, order = order, min(max(found, flattest), steepest)
            if order <= 1.5 * before:
                break
        return Aim(about, order, self.limits(floor, ceiling), self.sketch, rough)

    def _ceiling(self, about: float, order: float, top: float) -> float:
        """The least loss whose excess can be left out of the transform without a loss of accuracy."""
        ceiling = _REACH * about
        while ceiling < top:
            mass, other = masses_above(self.events, self.direction, ceiling)
            cost = mass - math.exp(min(about, 600.0)) * other
            if mass * cost <= _TWICE * self.delta:
                gap = ceiling - ABOVE * about
                allowed = _OUTWEIGHED * self.delta
                if mass <= allowed or mass * self._rest(ceiling, gap, order) <= allowed:
                    return ceiling
            ceiling *= _FARTHER
        return math.inf

    def _rest(self, ceiling: float, gap: float, order: float) -> float:
        """A guess of how often the other steps outweigh a loss that is `gap` above epsilon."""
        rough = self._limits(self.sketch, -ceiling, ceiling)
        rare, _ = masses_above(self.events, self.direction.reverse, ceiling)
        return rare + outweighed(lambda t: log_moment(self.sketch, self.direction, t, rough), gap, order)
