"""Epsilon of composed events by an exponentially tilted Fourier transform, an upper bound at any delta.

The plain transform leaves rounding errors of about 1e-16 everywhere, which swamp the far tail that a small
delta looks at. Here the loss is weighted by exp(order * loss) first, with the order that puts the weighted
mean at epsilon; the weight is divided out after the transform. What could pull the figure below the truth
is added to delta: loss cut off at the top, mass beyond the window, rounding. What wraps around into the
window only adds.

Guarantee: the figure of every grid is an upper bound, and so is the bound by Renyi divergences, so the least
of them is one. A finer grid loses less to the grid and more to rounding; where rounding takes over before
epsilon has settled, the figure is marked as not settled: sound, but perhaps not tight. A single step needs
no grid and is answered by `one_step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from raptor.accounting.loss import Direction, Floats, StepLoss, directions, spread, step_loss
from raptor.accounting.moments import least_of, reach, renyi_bound, saddle_order
from raptor.accounting.one_step import one_step_epsilon
from raptor.accounting.types import Adjacency, Event
from raptor.errors import BudgetError

Spectrum = npt.NDArray[np.complex128]

# Points of the loss of one step, of all steps together, and of the window of the composed loss.
_STEP_POINTS = 1 << 22
_ALL_POINTS = 1 << 26
_WINDOW_POINTS = 1 << 24
# Shares of delta that are given away: loss of a step rounded up to infinity, mass above the window, small
# losses alone.
_CUT = 1e-9
_BEYOND = 1e-10
_BULK = 1e-7
# How much more of the tail is given away where rounding is the trouble: far losses weigh most.
_ROUGH = 1e3
# A grid h raises epsilon by about steps * (order + 1) * h^2 / 12; it is chosen so that this is _ERROR * epsilon.
_ERROR = 1e-5
_SETTLED = 1e-4
_REFINED_ENOUGH = 1e-3
# Events in a group that is composed on a window of its own, and the log of the mass below that window.
_GROUP = 40
_WRAPPED = 40.0
# Largest exponent of a table of weights: its products with masses neither overflow nor vanish.
_TABLE_REACH = 300.0
_LARGEST_EXPONENT = 600.0
_UNIT_ROUNDOFF = 2.0**-52


class UnsettledError(BudgetError):
    """No grid that fits into memory resolves these events together."""


@dataclass(frozen=True)
class Figure:
    """An upper bound on epsilon and what is known about it.

    Attributes:
        epsilon: the bound; where it has not settled, never above `renyi`.
        grid: width of the last grid; for a single step, which needs none, the one to compare others on.
        moved: relative change of epsilon in the last halving of the grid.
        renyi: bound by Renyi divergences alone.
        settled: whether `moved` is small enough to call the figure tight.
    """

    epsilon: float
    grid: float
    moved: float
    renyi: float
    settled: bool = True


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

    The grid is halved until epsilon moves by less than 1e-4 of itself, or as far as memory and rounding allow.

    Raises:
        UnsettledError: not even the coarsest grid fits into memory.
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
    if count == 1:
        exact = one_step_epsilon(events[0], direction, delta)
        width = max(finest, _grid(exact, count, order)) if exact > 0 else 0.0
        return _larger(Figure(exact, width, 0.0, so_far.renyi), so_far)
    problem = _Problem(events, direction, delta, tail, steepest, finest)
    best, grid, moved = _refine(problem, guess, order, so_far.epsilon)
    if moved > _REFINED_ENOUGH and so_far.epsilon < best < math.inf:
        rough = replace(problem, tail=tail * _ROUGH)
        rare, rare_grid, rare_moved = _refine(rough, best, order, so_far.epsilon, bulk=True)
        if rare <= best:
            best, grid, moved = rare, rare_grid, rare_moved
    settled = best == 0 or moved <= _REFINED_ENOUGH
    # A settled figure above the Renyi bound would be a defect, which the accountant is to see.
    value = best if settled else min(best, renyi)
    return _larger(Figure(value, grid, moved, so_far.renyi, settled), so_far)


@dataclass(frozen=True)
class _Problem:
    """What is to be accounted: events in one direction at one delta, and the limits of the search."""

    events: tuple[Event, ...]
    direction: Direction
    delta: float
    tail: float
    steepest: float
    finest: float

    @property
    def error(self) -> float:
        """Relative error of the first grids; with many events a wider one saves most of the time."""
        return _ERROR if len(self.events) < 2 * _GROUP else 2 * _ERROR

    @property
    def count(self) -> int:
        return sum(event.steps for event in self.events)


def _refine(
    problem: _Problem, guess: float, order: float, enough: float, bulk: bool = False
) -> tuple[float, float, float]:
    """Least figure over finer and finer grids, the last grid, and how much the last halving moved it.

    Args:
        enough: stop once the figure is at most this.
        bulk: keep the steps' small losses out of the transform, see `_solve`.
    """
    grid = max(problem.finest, 2 * _grid(guess, problem.count, order, problem.error))
    coarse = best = _solve(problem, grid, order, guess, bulk)
    while True:
        if best <= enough:
            return best, grid, 0.0
        order = min(
            saddle_order(problem.events, problem.direction, coarse, order, problem.tail),
            problem.steepest / coarse,
        )
        grid = max(grid / 2, problem.finest)
        try:
            fine = _solve(problem, grid, order, coarse, bulk)
        except UnsettledError:
            return best, grid, math.inf
        moved = abs(coarse - fine) / max(fine, 1e-300)
        best = min(best, fine)
        # Once a finer grid raises the figure, rounding outweighs what the grid costs.
        if fine == 0 or moved < _SETTLED or grid == problem.finest or fine > coarse:
            return best, grid, moved
        coarse = fine
        grid = min(grid, 2 * _grid(fine, problem.count, order, problem.error))


def _larger(figure: Figure, other: Figure) -> Figure:
    return figure if figure.epsilon > other.epsilon else other


def _grid(epsilon: float, count: int, order: float, error: float = _ERROR) -> float:
    """Width that raises an epsilon of `count` steps by about `error` of itself."""
    return math.sqrt(12 * error * epsilon / (count * (order + 1)))


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
            count * total for (_, total), count in zip(_tilt(steps, order, grid), counts, strict=True)
        )
        least = min(least, (moment - log_mass) / order)
    return float(least), float(most)


def _solve(problem: _Problem, grid: float, order: float, about: float, bulk: bool) -> float:
    """Least epsilon >= 0 whose delta on this grid is at most `delta`.

    Where a rare step decides epsilon, nearly all of the weighted mass lies near loss 0 and its rounding
    hides the rest. With `bulk` each step is split into losses small enough that all steps together do not
    pass epsilon by them alone (but for a part of delta, by Chernoff) and the others; only what has at least
    one of the others is transformed, and its rounding is relative to their mass.
    """
    events, direction, delta, tail = problem.events, problem.direction, problem.delta, problem.tail
    steps = [step_loss(event, direction, grid, tail) for event in events]
    counts = np.array([float(event.steps) for event in events])
    least, cut, log_bulk = _bulk(steps, counts, grid, about, delta) if bulk else (0.0, None, -math.inf)
    if cut is not None:
        order = min(_rare_order(steps, counts, grid, cut, about, order), problem.steepest / about)
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
    tilted = _tilt(steps, order, grid)
    infinite = sum(
        event.steps * math.log1p(-step.infinite) for event, step in zip(events, steps, strict=True)
    )
    lost = math.exp(log_beyond) + math.exp(log_bulk) - math.expm1(infinite)
    parts = [
        _Part(step.first, *pair, event.steps) for event, step, pair in zip(events, steps, tilted, strict=True)
    ]
    # `spectrum` of the sums that count, `small` of those of small losses alone, which are left out.
    spectrum = np.full(size // 2 + 1, 1.0 if cut is None else 0.0, dtype=np.complex128)
    small = np.ones(size // 2 + 1, dtype=np.complex128) if cut is not None else spectrum
    norms, known = 0.0, 0.0
    if cut is None and len(parts) >= 2 * _GROUP:
        parts, known = _grouped(parts, grid, order, log_beyond)
        lost += math.exp(log_beyond)
    for part in parts:
        norm = part.steps * float(np.linalg.norm(part.weighted))
        if cut is None:
            norms += norm
            factor = np.fft.rfft(_fold(part.weighted, size), size)
            spectrum *= factor if part.steps == 1 else factor**part.steps
        else:
            split = min(max(cut - part.first + 1, 0), part.weighted.size)
            rare = np.concatenate([np.zeros(split), part.weighted[split:]])
            norms += part.steps * float(np.linalg.norm(rare)) * (1 + float(counts.sum()))
            with_rare, of_small, all_of_it = _at_least_one(
                np.fft.rfft(_fold(rare, size), size),
                np.fft.rfft(_fold(part.weighted[:split], size), size),
                part.steps,
            )
            spectrum = spectrum * all_of_it + small * with_rare
            small = small * of_small
    log_scale = sum(part.steps * part.log_weight for part in parts)
    shift = sum(part.steps * part.first for part in parts)
    density = np.roll(np.fft.irfft(spectrum, size), shift - first)
    loss: Floats = grid * np.arange(first, first + size, dtype=np.float64)
    # A transform is off by a few units of roundoff times log2(size) in L2 norm ("Accuracy and Stability of
    # Numerical Algorithms", theorem 24.2). No factor of the product is above 1, so an error in one of them
    # is not enlarged by the others; powers and products add a unit each. With a bulk every term has a
    # factor of the rare losses, whose norm all errors are relative to, once for each step and factor.
    rounding = 8 * _UNIT_ROUNDOFF * math.log2(size)
    rounding *= norms + (1 + float(counts.sum())) * float(np.linalg.norm(density))
    rounding += known
    return _epsilon(np.maximum(density, 0), loss, order, log_scale, delta - lost, about, rounding, least)


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
    log_share = log_beyond - math.log(-(-len(parts) // _GROUP))
    extras = [order * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    for start in range(0, len(parts), _GROUP):
        chosen = parts[start : start + _GROUP]
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


def _bulk(
    steps: Sequence[StepLoss], counts: Floats, grid: float, about: float, delta: float
) -> tuple[float, int | None, float]:
    """Epsilon from which on small losses do not count, the last grid point that is small, what they may add.

    Returns:
        The least epsilon that may be answered, the index on the grid (None where no split helps), and the
        log of a bound on the mass of small losses alone that pass this epsilon.
    """
    least = 0.8 * about
    log_allowed = math.log(delta * _BULK)
    part = 1.0
    while part < 256:
        cut = math.floor(least / (part * grid))
        part *= 1.4
        if cut < 1:
            break
        if float(counts.sum()) * cut * grid <= least:
            return least, cut, -math.inf
        kept = [(step.mass[: max(cut - step.first + 1, 0)], step.first) for step in steps]
        for times in (5.0, 10.0, 20.0, 40.0, 80.0):
            slope = times / (cut * grid)
            total = -slope * least
            for (mass, start), count in zip(kept, counts, strict=True):
                growth = np.exp(np.maximum(slope * grid * (start + np.arange(mass.size)), -700.0))
                total += float(count) * math.log(max(float(np.dot(mass, growth)), 1e-300))
            if total <= log_allowed:
                return least, cut, total
    return 0.0, None, -math.inf


def _rare_order(
    steps: Sequence[StepLoss], counts: Floats, grid: float, cut: int, about: float, start: float
) -> float:
    """Order that shows the losses near `about` best among sums with one loss above the cut: a guide, no bound."""
    losses, masses = [], []
    for step, count in zip(steps, counts, strict=True):
        index = np.arange(step.first, step.first + step.mass.size)
        chosen = (index > cut) & (step.mass > 0)
        losses.append(grid * index[chosen])
        masses.append(np.log(step.mass[chosen]) + math.log(count))
    loss, log_mass = np.concatenate(losses), np.concatenate(masses)
    if loss.size == 0:
        return start
    order, _ = least_of(lambda order: float(logsumexp(log_mass + order * (loss - about))), start)
    return order


def _at_least_one(rare: Spectrum, small: Spectrum, steps: int) -> tuple[Spectrum, Spectrum, Spectrum]:
    """(rare + small)^steps - small^steps without subtraction, small^steps and (rare + small)^steps."""
    both = rare + small
    # `series` is the sum of both^j small^(n - 1 - j), which times `rare` is both^n - small^n.
    series, of_small, of_both = np.ones_like(both), small, both
    for bit in bin(steps)[3:]:
        series = series * (of_both + of_small)
        of_small, of_both = of_small * of_small, of_both * of_both
        if bit == "1":
            series = series * both + of_small
            of_small, of_both = of_small * small, of_both * both
    return rare * series, of_small, of_both


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
    density: Floats,
    loss: Floats,
    order: float,
    log_scale: float,
    delta: float,
    about: float,
    rounding: float,
    least: float,
) -> float:
    """Solve sum over loss > epsilon of (1 - exp(epsilon - loss)) * exp(log_scale - order * loss) * density = delta.

    Args:
        rounding: L2 norm of what rounding may have taken from `density`; added at its worst, by
            Cauchy-Schwarz, so that the solution is not below the true one.
        least: no epsilon below this is answered.
    """
    if delta <= 0:
        return math.inf
    # Far below `about` the weights overflow; when the answer lies there, `least` is returned, a bound too.
    least = max(least, about - 300.0 / (1 + order))
    start = int(np.searchsorted(loss, least, side="right"))
    if start == loss.size:
        return max(least, float(loss[-1]))
    loss, density = loss[start:], density[start:]
    apart = loss - about
    scaled = math.exp(min(math.log(delta) - log_scale + order * about, 700.0))
    weight = np.exp(-order * apart)
    upper = np.cumsum((density * weight)[::-1])[::-1]
    lower = np.cumsum((density * weight * np.exp(-apart))[::-1])[::-1]
    unsure = rounding * np.sqrt(np.cumsum((weight * weight)[::-1]))[::-1]
    # Between two points delta is upper - exp(epsilon) * lower over the points above; `before` is the lower one.
    before = np.concatenate([[least], loss[:-1]]) - about
    enough = upper + unsure - np.exp(np.minimum(before, 600.0)) * lower <= scaled
    first = int(np.argmax(enough)) if enough.any() else density.size
    if first == 0:
        return least
    # Epsilon is below the first point at which it is enough; that point itself is a bound as well.
    over, under = float(upper[first - 1] + unsure[first - 1] - scaled), float(lower[first - 1])
    solved = about + math.log(over / under) if over > 0 and under > 0 else math.inf
    return max(least, min(solved, float(loss[first - 1])))


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
