"""Epsilon of composed events by an exponentially tilted Fourier transform, an upper bound at any delta.

The plain transform leaves rounding errors of about 1e-16 everywhere, which swamp the far tail that a small
delta looks at. Here the loss is weighted by exp(order * loss) first, with the order that puts the weighted
mean at epsilon; the weight is divided out after the transform. What could pull the figure below the truth
is added to delta: loss cut off at the top, mass beyond the window, rounding. What wraps around into the
window only adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.accounting.loss import Direction, Floats, StepLoss, directions, spread, step_loss
from raptor.accounting.moments import reach, renyi_bound, saddle_order
from raptor.accounting.types import Adjacency, Event
from raptor.errors import BudgetError

# Points of the loss of one step, of all steps together, and of the window of the composed loss.
_STEP_POINTS = 1 << 22
_ALL_POINTS = 1 << 26
_WINDOW_POINTS = 1 << 24
# Shares of delta that are given away: loss of a step rounded up to infinity, mass above the window.
_CUT = 1e-9
_BEYOND = 1e-10
# A grid h raises epsilon by about steps * (order + 1) * h^2 / 12; it is chosen so that this is _ERROR * epsilon.
_ERROR = 1e-5
_SETTLED = 1e-4
_REFINED_ENOUGH = 1e-3
_UNIT_ROUNDOFF = 2.0**-52


class UnsettledError(BudgetError):
    """No grid that fits into memory resolves these events together."""


@dataclass(frozen=True)
class Figure:
    """An upper bound on epsilon, the grid it came from and how much the last halving of the grid moved it."""

    epsilon: float
    grid: float
    moved: float
    renyi: float


def merge(events: Sequence[Event]) -> tuple[Event, ...]:
    """Equal events as one, no event of 0 steps, and all unsampled Gaussians as the one they compose to."""
    steps: dict[tuple[float, float], int] = {}
    for event in events:
        if event.steps:
            key = (event.rate, event.noise_multiplier)
            steps[key] = steps.get(key, 0) + event.steps
    merged = [Event(rate, noise, count) for (rate, noise), count in sorted(steps.items()) if rate < 1]
    precision = math.fsum(count / noise**2 for (rate, noise), count in sorted(steps.items()) if rate == 1)
    if precision > 0:
        merged.append(Event(1.0, precision**-0.5, 1))
    return tuple(merged)


def renyi_epsilon(events: Sequence[Event], delta: float, adjacency: Adjacency) -> float:
    """Epsilon by Renyi divergences at the best order above 1, worst direction: sound at every delta, not tight.

    Conversion of "The Discrete Gaussian for Differential Privacy" (arXiv 2004.00010), Proposition 12.
    """
    merged = merge(events)
    if not merged:
        return 0.0
    return max(renyi_bound(merged, direction, delta)[0] for direction in directions(merged, adjacency))


def compose(events: Sequence[Event], delta: float, adjacency: Adjacency) -> Figure:
    """Upper bound on epsilon at `delta` for all events together, worst direction.

    The grid is halved until epsilon moves by less than 1e-4 of itself, or as far as memory allows.

    Raises:
        UnsettledError: epsilon still moves by more than 0.1 % at the finest grid.
        BudgetError: a noise multiplier is too small for any bound.
    """
    merged = merge(events)
    if not merged:
        return Figure(0.0, 0.0, 0.0, 0.0)
    worst = Figure(0.0, 0.0, 0.0, 0.0)
    for direction in directions(merged, adjacency):
        worst = _worse(worst, merged, delta, direction)
    return worst


def _worse(so_far: Figure, events: tuple[Event, ...], delta: float, direction: Direction) -> Figure:
    """The larger of `so_far` and the figure of this direction, which is refined only if it may be larger."""
    renyi, _ = renyi_bound(events, direction, delta)
    so_far = replace(so_far, renyi=max(renyi, so_far.renyi))
    if renyi <= so_far.epsilon:
        return so_far
    if not math.isfinite(renyi):
        raise BudgetError(
            "the noise is too small to account for: "
            f"the least noise multiplier is {min(event.noise_multiplier for event in events)}"
        )
    count = sum(event.steps for event in events)
    tail = delta * _CUT / count
    guess, order = renyi_bound(events, direction, delta, tail)
    guess = guess or renyi
    # Beyond this the weights would overflow before they reach epsilon 0; the best order is far below it
    # unless epsilon is 0 or nearly so.
    steepest = max(300.0, -2 * math.log(delta))
    order = min(order, steepest / guess)
    finest = _finest_grid(events, direction, tail)
    grid = max(finest, math.sqrt(48 * _ERROR * guess / (count * (order + 1))))
    coarse = best = _solve(events, direction, delta, grid, tail, order, guess)
    while True:
        if best <= so_far.epsilon:
            return so_far
        order = min(saddle_order(events, direction, coarse, order, tail), steepest / coarse)
        grid = max(grid / 2, finest)
        fine = _solve(events, direction, delta, grid, tail, order, coarse)
        moved = abs(coarse - fine) / max(fine, 1e-300)
        best = min(best, fine)
        if fine == 0 or moved < _SETTLED or grid == finest:
            break
        coarse = fine
        grid = min(grid, 2 * math.sqrt(12 * _ERROR * fine / (count * (order + 1))))
    if fine > 0 and moved > _REFINED_ENOUGH:
        raise UnsettledError(
            f"epsilon still moves by {moved:.1e} of itself at the finest grid ({grid:.1e}): "
            "the events differ too much to be accounted together"
        )
    figure = Figure(best, grid, moved, so_far.renyi)
    return figure if figure.epsilon > so_far.epsilon else so_far


def _finest_grid(events: Sequence[Event], direction: Direction, tail: float) -> float:
    widths = [high - low for low, high in (spread(event, direction, tail) for event in events)]
    return max(max(widths) / _STEP_POINTS, sum(widths) / _ALL_POINTS)


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
            count * _weighted(step, order, grid)[1] for step, count in zip(steps, counts, strict=True)
        )
        least = min(least, (moment - log_mass) / order)
    return float(least), float(most)


def _solve(
    events: Sequence[Event],
    direction: Direction,
    delta: float,
    grid: float,
    tail: float,
    order: float,
    about: float,
) -> float:
    """Least epsilon >= 0 whose delta on this grid is at most `delta`."""
    steps = [step_loss(event, direction, grid, tail) for event in events]
    counts = np.array([float(event.steps) for event in events])
    # Mass above the window is bounded and counted as lost. What wraps around only raises the figure; the
    # window holds nearly all of the weighted mass so that this does not show.
    high, far = reach(events, direction, order, 1, tail)
    low, _ = reach(events, direction, order, -1, tail)
    log_beyond = math.log(delta * _BEYOND)
    orders = [order + (far - order) * part for part in (1, 0.3, 0.1)]
    top, most = _ceiling(steps, counts, grid, orders, log_beyond)
    top = max(top, min(high, most))
    bottom = min(low, about, top) - 8 * grid
    points = math.ceil((top - bottom) / grid) + 16
    if points > _WINDOW_POINTS:
        raise UnsettledError(f"a grid fine enough ({grid:.1e}) would need {points} points")
    size = _fast_length(points)
    first = math.floor(bottom / grid)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    log_scale, shift, infinite = 0.0, 0, 0.0
    for event, step in zip(events, steps, strict=True):
        weighted, log_weight = _weighted(step, order, grid)
        spectrum *= np.fft.rfft(_fold(weighted, size), size) ** event.steps
        log_scale += event.steps * log_weight
        shift += event.steps * step.first
        infinite += event.steps * math.log1p(-step.infinite)
    density = np.roll(np.fft.irfft(spectrum, size), shift - first)
    loss: Floats = grid * np.arange(first, first + size, dtype=np.float64)
    # Rounding: each transform is off by a few units of roundoff times log2(size); powers multiply that.
    rounding = (
        8 * _UNIT_ROUNDOFF * math.log2(size) * (1 + float(counts.sum())) * float(np.abs(spectrum).mean())
    )
    lost = math.exp(log_beyond) - math.expm1(infinite)
    return _epsilon(np.maximum(density, 0) + rounding, loss, order, log_scale, delta - lost, about)


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


def _epsilon(
    density: Floats, loss: Floats, order: float, log_scale: float, delta: float, about: float
) -> float:
    """Solve sum over loss > epsilon of (1 - exp(epsilon - loss)) * exp(log_scale - order * loss) * density = delta."""
    if delta <= 0:
        return math.inf
    # Far below `about` the weights overflow; when the answer lies there, `least` is returned, a bound too.
    least = max(0.0, about - 300.0 / (1 + order))
    start = int(np.searchsorted(loss, least, side="right"))
    if start == loss.size:
        return max(0.0, float(loss[-1]))
    loss, density = loss[start:], density[start:]
    apart = loss - about
    scaled = math.exp(min(math.log(delta) - log_scale + order * about, 700.0))
    upper = np.cumsum((density * np.exp(-order * apart))[::-1])[::-1]
    lower = np.cumsum((density * np.exp(-(order + 1) * apart))[::-1])[::-1]
    # Between two points delta is upper - exp(epsilon) * lower over the points above; `before` is the lower one.
    before = np.concatenate([[least], loss[:-1]]) - about
    enough = upper - np.exp(np.minimum(before, 600.0)) * lower <= scaled
    first = int(np.argmax(enough)) if enough.any() else density.size
    if first == 0:
        return least
    return max(0.0, about + math.log((upper[first - 1] - scaled) / lower[first - 1]))


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
