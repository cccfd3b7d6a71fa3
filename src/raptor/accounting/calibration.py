"""Noise for a budget: the least common factor on the noise multipliers that keeps the joint epsilon in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raptor.accounting import checks
from raptor.accounting.accountant import epsilon as bound
from raptor.accounting.compose import renyi_epsilon
from raptor.accounting.types import Adjacency, Calibration, EpsilonBound, Event, EventShape
from raptor.errors import BudgetError, ParameterError

# The search aims between 1 - _SLACK and 1 - _MARGIN of the target. The margin is above what another grid
# or dp-accounting may add to our figure.
_SLACK = 8e-5
_MARGIN = 1e-5
_LARGEST_FACTOR = 1e7
_ROUNDS = 60


@dataclass(frozen=True)
class SplitSum:
    """The published way to account streams: each alone at its share of delta, and the epsilons added.

    Sound by basic composition, but above the joint figure. Reported for comparison.
    """

    epsilon: float
    delta: float
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]


@dataclass(frozen=True)
class SplitCalibration:
    """Noise multipliers of streams that were calibrated alone.

    Attributes:
        noise_multipliers: one per shape.
        epsilons: what each shape, then each fixed stream, costs alone at `delta_part`.
        delta_part: the delta of each stream; all of them add up to that of the budget.
    """

    noise_multipliers: tuple[float, ...]
    epsilons: tuple[float, ...]
    delta_part: float


def calibrate(
    shapes: Sequence[EventShape],
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    fixed: Sequence[Event] = (),
    *,
    confirm: bool = True,
) -> Calibration:
    """Noise multipliers `factor * weight` whose joint epsilon, with `fixed`, is just within the budget.

    Args:
        shapes: events that share the factor; those of 0 steps get a multiplier but cost nothing.
        epsilon: the target. The result is at most it, and at least 1e-4 of it below.
        fixed: events with noise of their own that are charged in the same ledger.
        confirm: check the result with dp-accounting.

    Raises:
        ParameterError: there is nothing to calibrate.
        BudgetError: epsilon or delta is out of range, or `fixed` alone leaves nothing of the budget.
    """
    target = checks.budget_epsilon(epsilon)
    delta = checks.budget_delta(delta)
    adjacency = checks.member(Adjacency, adjacency, "adjacency")
    _require_steps(shapes)
    _require_room(fixed, target, delta, adjacency)

    def events(factor: float) -> list[Event]:
        return [shape.at(factor) for shape in shapes] + list(fixed)

    def cost(factor: float) -> float:
        return bound(events(factor), delta, adjacency, confirm=False).epsilon

    enough = _enough_noise(lambda factor: renyi_epsilon(events(factor), delta, adjacency), target)
    factor = _search(cost, target, enough)
    achieved = bound(events(factor), delta, adjacency, confirm=confirm)
    while achieved.epsilon > target:
        factor *= 1 + _MARGIN
        achieved = bound(events(factor), delta, adjacency, confirm=confirm)
    multipliers = tuple(shape.at(factor).noise_multiplier for shape in shapes)
    return Calibration(multipliers, achieved.epsilon, target, factor, achieved)


def calibrate_split(
    shapes: Sequence[EventShape],
    shares: Sequence[float],
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    fixed: Sequence[Sequence[Event]] = (),
) -> SplitCalibration:
    """Noise multipliers as the published method finds them: each stream alone at its share of the budget.

    Delta is shared evenly by all streams. What `fixed` costs at its part is taken from epsilon first; of the rest,
    each shape gets its share. The weights of the shapes play no part.

    Args:
        shapes: one event for each stream that is to be calibrated, all with steps.
        shares: parts of what is left of epsilon, which add up to 1.
        fixed: streams with noise of their own.

    Raises:
        ParameterError: the shares do not fit the shapes, or a shape has no step.
        BudgetError: epsilon or delta is out of range, or `fixed` leaves nothing of the budget.
    """
    target, delta = checks.budget_epsilon(epsilon), checks.budget_delta(delta)
    parts = [checks.positive(share, "share of epsilon") for share in shares]
    if len(parts) != len(shapes) or not math.isclose(sum(parts), 1):
        raise ParameterError("the shares of epsilon must be one per stream and add up to 1")
    if not all(shape.steps for shape in shapes):
        raise ParameterError("a stream without steps has no share of the budget: leave it out")
    used = [events for events in fixed if any(event.steps for event in events)]
    part = delta / (len(shapes) + len(used))
    spent = [bound(events, part, adjacency, confirm=False).epsilon for events in used]
    left = target - math.fsum(spent)
    if left <= target * _SLACK:
        raise BudgetError(
            f"the events with fixed noise alone cost epsilon {math.fsum(spent):.6g} at their part of delta, and the "
            f"target is {target:g}: raise the target, or give these events more noise or fewer steps"
        )
    found = [
        calibrate([shape], left * share, part, adjacency, confirm=False)
        for shape, share in zip(shapes, parts, strict=True)
    ]
    return SplitCalibration(
        noise_multipliers=tuple(one.noise_multipliers[0] for one in found),
        epsilons=(*(one.epsilon for one in found), *spent),
        delta_part=part,
    )


def split_sum(
    streams: Sequence[Sequence[Event]],
    delta: float,
    adjacency: Adjacency,
    shares: Sequence[float] | None = None,
) -> SplitSum:
    """Epsilon of `streams` as the published method adds it: each alone at its share of delta.

    Args:
        streams: the events of each stream.
        shares: parts of delta, which add up to 1; equal parts when left out.

    Raises:
        ParameterError: the shares do not fit the streams.
        BudgetError: delta is out of range.
    """
    delta = checks.budget_delta(delta)
    used = [index for index, events in enumerate(streams) if any(event.steps for event in events)]
    if shares is None:
        parts = [1 / len(used) if index in used else 0.0 for index in range(len(streams))]
    else:
        parts = [checks.positive(share, "share of delta") for share in shares]
        if len(parts) != len(streams) or not math.isclose(sum(parts), 1):
            raise ParameterError("the shares of delta must be one per stream and add up to 1")
    deltas = tuple(delta * part for part in parts)
    epsilons = tuple(
        bound(events, deltas[index], adjacency, confirm=False).epsilon if index in used else 0.0
        for index, events in enumerate(streams)
    )
    return SplitSum(math.fsum(epsilons), delta, epsilons, deltas)


def _require_steps(shapes: Sequence[EventShape]) -> None:
    for shape in shapes:
        if not isinstance(shape, EventShape):
            raise ParameterError(f"a shape must be an EventShape, not {type(shape).__name__}")
    if not any(shape.steps for shape in shapes):
        raise ParameterError("there is nothing to calibrate: no event has a step")


def _require_room(fixed: Sequence[Event], target: float, delta: float, adjacency: Adjacency) -> None:
    spent: EpsilonBound = bound(fixed, delta, adjacency, confirm=False)
    if spent.epsilon >= target * (1 - _SLACK):
        raise BudgetError(
            f"the events with fixed noise alone cost epsilon {spent.epsilon:.6g} at delta {delta:g}, and the "
            f"target is {target:g}: raise the target, or give these events more noise or fewer steps"
        )


def _enough_noise(cost: Callable[[float], float], target: float) -> float:
    """A factor, at most 5 % above the least one, whose Renyi epsilon is within the target."""
    low, high = 1.0, 1.0
    while cost(high) > target:
        low, high = high, high * 2
        if high > _LARGEST_FACTOR:
            raise BudgetError(
                f"no noise multiplier below {_LARGEST_FACTOR:g} reaches epsilon {target:g}: raise the target, "
                "or take fewer steps or a lower rate"
            )
    while low == high or cost(low) <= target:
        low, high = low / 2, low
        if low < 1 / _LARGEST_FACTOR:
            return high
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > target else (low, middle)
    return high


def _search(cost: Callable[[float], float], target: float, enough: float) -> float:
    """Factor whose cost is within [1 - _SLACK, 1 - _MARGIN] of the target, by secants on logarithms."""
    aim = math.log(target) + math.log1p(-(_SLACK + _MARGIN) / 2)
    low: tuple[float, float] | None = None
    high = (math.log(enough), _log(cost(enough)) - aim)
    step = 0.1
    for _ in range(_ROUNDS):
        if abs(high[1]) <= (_SLACK - _MARGIN) / 2:
            return math.exp(high[0])
        if low is None:
            slope = 1.5
            guess = high[0] + max(-step, high[1] / slope * 1.1)
            step *= 2
        else:
            guess = low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])
            inner = 0.02 * (high[0] - low[0])
            guess = min(max(guess, low[0] + inner), high[0] - inner)
        value = _log(cost(math.exp(guess))) - aim
        if abs(value) <= (_SLACK - _MARGIN) / 2:
            return math.exp(guess)
        if value > 0:
            low = (guess, value)
        else:
            high = (guess, value)
    return math.exp(high[0])


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -50.0
