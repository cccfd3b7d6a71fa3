"""Least epsilon of composed events on one grid, by an exponentially tilted Fourier transform.

The plain transform leaves rounding errors of about 1e-16 everywhere, which swamp the far tail that a small
delta looks at. Here the loss is weighted by exp(order * loss) first, with the order that puts the weighted
mean at epsilon; the weight is divided out after the transform.

One step's losses beyond its last grid point stay out of the transform, as a few rare ones of them would take all of
the weight. All steps with P, and with their losses cut to B, differ by at most the sum over the steps of (losses
beyond) * P^(the others). Of a loss r above epsilon this costs, over the sum S of the other steps,
E (1 - exp(epsilon - r - S))+ <= 1 - exp(epsilon - r) (1 - rest), as E exp(-S) = 1: in all
P(beyond) - exp(epsilon) (1 - rest) Q(beyond), two normal tails. `rest` bounds by Chernoff how often S outweighs r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.accounting.aim import ABOVE, Aim, outweighed
from raptor.accounting.composed import Composed
from raptor.accounting.loss import Direction, Floats, StepLoss, loss_between
from raptor.accounting.moments import reach
from raptor.accounting.types import Event
from raptor.errors import BudgetError

# Events in a group that is composed on a window of its own, and the log of the mass below that window.
GROUP = 40
_WRAPPED = 40.0
_WINDOW_POINTS = 1 << 24
# Share of delta that is given away as mass above the window.
_BEYOND = 1e-10
# Largest exponent of a table of weights: its products with masses neither overflow nor vanish.
_TABLE_REACH = 300.0
_LARGEST_EXPONENT = 600.0
_UNIT_ROUNDOFF = 2.0**-52
# What moves epsilon by less than this part of itself need not be looked at twice.
_NEGLIGIBLE = 1e-6


class UnsettledError(BudgetError):
    """No grid that fits into memory resolves these events together."""


def solve(events: tuple[Event, ...], direction: Direction, delta: float, grid: float, aim: Aim) -> float:
    """Least epsilon >= 0 whose delta on this grid is at most `delta`; infinity where the aim was too low to tell.

    Guarantee:
        An upper bound on epsilon for every grid and aim: grid losses dominate the true ones, and what is cut off,
        outside of the window or lost to rounding is added to delta.

    Raises:
        UnsettledError: the grid needs too many points.
    """
    order, kept = aim.order, aim.kept
    steps = [
        loss_between(event, direction, grid, float(low), float(high))
        for event, low, high in zip(events, kept.lowest, kept.highest, strict=True)
    ]
    counts = np.array([float(event.steps) for event in events])
    # Mass above the window is bounded and counted as lost. What wraps around only raises the figure; the
    # window holds nearly all of the weighted mass so that this does not show.
    high, far = reach(aim.sketch, direction, order, 1, aim.rough)
    low, _ = reach(aim.sketch, direction, order, -1, aim.rough)
    log_beyond = math.log(delta * _BEYOND)
    orders = [order + (far - order) * part for part in (1, 0.3, 0.1)]
    top, most = _ceiling(steps, counts, grid, orders, log_beyond)
    top = max(top, min(high, most))
    bottom = min(low, aim.about, top) - 8 * grid
    points = math.ceil((top - bottom) / grid) + 16
    if points > _WINDOW_POINTS:
        raise UnsettledError(f"a grid fine enough ({grid:.1e}) would need {points} points")
    size = _fast_length(points)
    first = math.floor(bottom / grid)
    lost = math.exp(log_beyond)
    parts = [
        _Part(step.first, *pair, event.steps)
        for event, step, pair in zip(events, steps, _tilt(steps, order, grid), strict=True)
    ]
    known = 0.0
    if len(parts) >= 2 * GROUP:
        parts, known = _grouped(parts, grid, order, log_beyond)
        lost += math.exp(log_beyond)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    norms = 0.0
    for part in parts:
        norms += part.steps * float(np.linalg.norm(part.weighted))
        factor = np.fft.rfft(_fold(part.weighted, size), size)
        spectrum *= factor if part.steps == 1 else factor**part.steps
    shift = sum(part.steps * part.first for part in parts)
    density = np.roll(np.fft.irfft(spectrum, size), shift - first)
    # A transform is off by a few units of roundoff times log2(size) in L2 norm ("Accuracy and Stability of
    # Numerical Algorithms", theorem 24.2). No factor of the product is above 1, so an error in one of them
    # is not enlarged by the others; powers and products add a unit each.
    rounding = 8 * _UNIT_ROUNDOFF * math.log2(size)
    rounding *= norms + (1 + float(counts.sum())) * float(np.linalg.norm(density))
    composed = Composed(
        np.maximum(density, 0),
        grid * np.arange(first, first + size, dtype=np.float64),
        grid,
        order,
        sum(part.steps * part.log_weight for part in parts) - math.log(delta),
        rounding + known,
        (lost + float(sum(event.steps * step.beyond for event, step in zip(events, steps, strict=True))))
        / delta,
    )
    relief = _relief(steps, counts, grid, aim)
    unsure = float(sum(event.steps * step.unsure for event, step in zip(events, steps, strict=True)))
    found = _found(composed, aim, relief / delta) + unsure
    if unsure > _NEGLIGIBLE * found:
        # Losses that are larger by so much raise delta by no more than that, which may be cheaper.
        composed = replace(composed, beyond=composed.beyond + unsure / delta)
        found = min(found, _found(composed, aim, relief / delta))
    return found


def _found(composed: Composed, aim: Aim, relief: float) -> float:
    """Epsilon with the relief, where that holds, or else without it."""
    if relief > 0:
        found = composed.epsilon(aim.about, relief)
        if found <= ABOVE * aim.about:
            return found
    return composed.epsilon(aim.about, 0.0)


def _relief(steps: Sequence[StepLoss], counts: Floats, grid: float, aim: Aim) -> float:
    """(1 - rest) Q(beyond) for every epsilon up to ABOVE times the guess.

    Losses beyond that are below epsilon, or not far above it, count in full. On the grid a moment of order below -1
    is not smaller than the true one, as it is convex in exp(-loss), whose mean in each cell is kept.
    """
    if not aim.kept.cut.any() or aim.about > _LARGEST_EXPONENT:
        return 0.0
    far = math.fsum(
        count * step.beyond_other for step, count, cut in zip(steps, counts, aim.kept.cut, strict=True) if cut
    )
    gap = float(aim.kept.highest[aim.kept.cut].min()) - ABOVE * aim.about
    rest = outweighed(lambda order: _log_moment(steps, counts, order, grid), gap, aim.order)
    rest += math.fsum(count * step.lifted_other for step, count in zip(steps, counts, strict=True))
    return far * max(0.0, 1 - rest)


def _log_moment(steps: Sequence[StepLoss], counts: Floats, order: float, grid: float) -> float:
    """log E exp(order * loss) of all steps together, on the grid."""
    low = min(step.first for step in steps)
    high = max(step.first + step.mass.size for step in steps)
    exponent = order * grid * np.arange(low, high)
    peak = float(exponent.max())
    if peak - float(exponent.min()) > _LARGEST_EXPONENT and len(steps) > 1:
        return math.fsum(_log_moment([step], counts[[at]], order, grid) for at, step in enumerate(steps))
    table = np.exp(exponent - peak)
    means = [
        float(np.dot(step.mass, table[step.first - low : step.first - low + step.mass.size]))
        for step in steps
    ]
    # No mean can be this small; a step whose weights all vanished would have to be left to infinity.
    return float(np.dot(counts, np.log(means) + peak)) if min(means) > 0 else math.inf


@dataclass(frozen=True)
class _Part:
    """One loss, weighted and with total 1, that is composed `steps` times; its total was exp(log_weight)."""

    first: int
    weighted: Floats
    log_weight: float
    steps: int


def _grouped(
    parts: Sequence[_Part], grid: float, order: float, log_beyond: float
) -> tuple[list[_Part], float]:
    """Neighbouring parts composed in groups, on windows that are much shorter than that of all together.

    Guarantee:
        The groups together lose at most exp(log_beyond) of mass above their windows, by Chernoff. Mass
        below a window wraps around, which raises its loss. So wrapping can lower the figure only where
        the last window wraps that mass again; all of it is counted as an error.

    Returns:
        The groups, and a bound on the L2 norm of what they may lack: rounding, and mass wrapped twice.
    """
    groups: list[_Part] = []
    lacking = 0.0
    log_share = log_beyond - math.log(-(-len(parts) // GROUP))
    extras = [order * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    for start in range(0, len(parts), GROUP):
        chosen = parts[start : start + GROUP]
        first = sum(part.steps * part.first for part in chosen)
        last = sum(part.steps * (part.first + part.weighted.size - 1) for part in chosen)
        log_weight = sum(part.steps * part.log_weight for part in chosen)
        top, low = last * grid, first * grid
        highest, ceiling = top, top
        for extra in extras:
            up = _log_growth(chosen, extra, grid)
            down = _log_growth(chosen, -extra, grid)
            highest = min(highest, (up + _WRAPPED) / extra)
            low = max(low, -(down + _WRAPPED) / extra)
            ceiling = min(ceiling, (up + log_weight - log_share) / (order + extra))
        top = min(top, max(ceiling, highest))
        base = math.floor(low / grid)
        size = _fast_length(math.ceil(top / grid) - base + 2)
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        norms = 0.0
        for part in chosen:
            factor = np.fft.rfft(_fold(part.weighted, size), size)
            spectrum *= factor if part.steps == 1 else factor**part.steps
            norms += part.steps * float(np.linalg.norm(part.weighted))
        density = np.roll(np.fft.irfft(spectrum, size), first - base)
        steps = sum(part.steps for part in chosen)
        norms += (1 + steps) * float(np.linalg.norm(density))
        lacking += 8 * _UNIT_ROUNDOFF * math.log2(size) * norms + math.exp(-_WRAPPED)
        groups.append(_Part(base, np.maximum(density, 0), log_weight, 1))
    return groups, lacking


def _log_growth(parts: Sequence[_Part], extra: float, grid: float) -> float:
    """Log of the mean of exp(extra * loss) under the weighted losses of all parts together."""
    low = min(part.first for part in parts)
    exponent = extra * grid * np.arange(low, max(part.first + part.weighted.size for part in parts))
    # What would overflow makes the bound infinite, which leaves the window as wide as the losses.
    table = (
        np.exp(np.clip(exponent, -_LARGEST_EXPONENT, None)) if exponent.max() < _LARGEST_EXPONENT else None
    )
    if table is None:
        return math.inf
    total = 0.0
    for part in parts:
        start = part.first - low
        total += part.steps * math.log(
            float(np.dot(part.weighted, table[start : start + part.weighted.size]))
        )
    return total


def _ceiling(
    steps: Sequence[StepLoss], counts: Floats, grid: float, orders: Sequence[float], log_mass: float
) -> tuple[float, float]:
    """Loss that the composed steps pass with mass at most exp(log_mass), by Chernoff; and their largest loss."""
    most = grid * sum(
        count * (step.first + step.mass.size - 1) for step, count in zip(steps, counts, strict=True)
    )
    least = most
    for order in orders:
        moment = sum(
            count * total for (_, total), count in zip(_tilt(steps, order, grid), counts, strict=True)
        )
        least = min(least, (moment - log_mass) / order)
    return float(least), float(most)


def _tilt(steps: Sequence[StepLoss], order: float, grid: float) -> list[tuple[Floats, float]]:
    """Each step weighted by exp(order * loss) with total 1, and the log of its total before."""
    low = min(step.first for step in steps)
    high = max(step.first + step.mass.size for step in steps)
    if order * grid * max(abs(low), abs(high)) > _TABLE_REACH:
        return [_weighted(step, order, grid) for step in steps]
    # One table of weights serves all steps where none of them can overflow.
    weights = np.exp(order * grid * np.arange(low, high))
    found = []
    for step in steps:
        weighted = step.mass * weights[step.first - low : step.first - low + step.mass.size]
        total = float(weighted.sum())
        found.append((weighted / total, math.log(total)))
    return found


def _weighted(step: StepLoss, order: float, grid: float) -> tuple[Floats, float]:
    """Step weighted by exp(order * loss), total 1, and the log of its total before."""
    with np.errstate(divide="ignore"):
        exponent = np.log(step.mass) + order * grid * (step.first + np.arange(step.mass.size))
    peak = float(exponent.max())
    weighted = np.exp(exponent - peak)
    total = float(weighted.sum())
    return weighted / total, peak + math.log(total)


def _fold(values: Floats, size: int) -> Floats:
    if values.size <= size:
        return values
    padded = np.zeros(-(-values.size // size) * size)
    padded[: values.size] = values
    folded: Floats = padded.reshape(-1, size).sum(axis=0)
    return folded


def _fast_length(least: int) -> int:
    """Smallest length of at least `least` whose only prime factors are 2, 3 and 5, and even."""
    best = 1 << max(4, (least - 1).bit_length())
    for five in range(0, 9):
        for three in range(0, 9):
            odd = 3**three * 5**five
            if odd > best:
                break
            length = odd << max(1, (-(-least // odd) - 1).bit_length())
            if least <= length < best:
                best = length
    return best
