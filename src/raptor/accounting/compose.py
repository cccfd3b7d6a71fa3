"""Epsilon of composed events at any delta: the search for the grid on which it settles.

Guarantee: the figure of every grid is an upper bound (see `transform`), and so is the bound by Renyi divergences, so
the least of them is one. A finer grid loses less to the grid and more to rounding; where rounding takes over before
epsilon has settled, the figure is marked as not settled: sound, but perhaps not tight. A single step needs
no grid and is answered by `one_step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raptor.accounting.aim import ABOVE, Problem
from raptor.accounting.composed import lowest
from raptor.accounting.loss import Direction, Limits, directions
from raptor.accounting.moments import renyi_bound
from raptor.accounting.one_step import one_step_epsilon
from raptor.accounting.transform import GROUP, UnsettledError, solve
from raptor.accounting.types import Adjacency, Event
from raptor.errors import BudgetError

# Points of the loss of one step, and of all steps together.
_STEP_POINTS = 1 << 22
_ALL_POINTS = 1 << 26
# A grid h raises epsilon by about steps * (order + 1) * h^2 / 12; it is chosen so that this is _ERROR * epsilon.
_ERROR = 1e-5
_SETTLED = 1e-4
_REFINED_ENOUGH = 1e-3
# The guess is near enough to look for the grid, and how often it is bettered.
_NEAR = 0.7
_GUESSES = 12
# What numbers can express: a rarer sample counts as one of this rate, and larger noise as this, which never lowers
# epsilon. Less noise is refused.
LEAST_RATE, LEAST_NOISE, MOST_NOISE = 1e-12, 1e-15, 1e12


@dataclass(frozen=True)
class Figure:
    """An upper bound on epsilon and what is known about it.

    Attributes:
        epsilon: the bound; where it has not settled, never above `renyi`.
        grid: width of the last grid; for a single step, which needs none, the one to compare others on.
        moved: change of epsilon in the last halving of the grid, relative to epsilon, or to delta where that is larger.
        renyi: bound by Renyi divergences alone.
        settled: whether `moved` is small enough to call the figure tight.
    """

    epsilon: float
    grid: float
    moved: float
    renyi: float
    settled: bool = True


def merge(events: Sequence[Event]) -> tuple[Event, ...]:
    """Equal events as one, no event of 0 steps, and all unsampled Gaussians as the one they compose to.

    Raises:
        BudgetError: a noise multiplier is too small for any bound.
    """
    steps: dict[tuple[float, float], int] = {}
    for event in events:
        if event.steps:
            if event.noise_multiplier < LEAST_NOISE:
                raise BudgetError(
                    f"the noise is too small to account for: a noise multiplier is {event.noise_multiplier}"
                )
            key = max(event.rate, LEAST_RATE), min(event.noise_multiplier, MOST_NOISE)
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
    worst = Figure(0.0, 0.0, 0.0, 0.0)
    for direction in directions(merged, adjacency) if merged else ():
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
    problem = Problem(events, direction, delta)
    guess, order = problem.guess()
    guess = guess or renyi
    if problem.count == 1:
        exact = one_step_epsilon(events[0], direction, delta)
        width = max(_finest_grid(problem.limits()), _grid(exact, 1, order)) if exact > 0 else 0.0
        return _larger(Figure(exact, width, 0.0, so_far.renyi), so_far)
    best, grid, moved = _refine(problem, guess, order, so_far.epsilon, renyi)
    settled = best == 0 or moved <= _REFINED_ENOUGH
    # A settled figure above the Renyi bound would be a defect, which the accountant is to see.
    value = best if settled else min(best, renyi)
    return _larger(Figure(value, grid, moved, so_far.renyi, settled), so_far)


def _refine(
    problem: Problem, guess: float, order: float, enough: float, renyi: float
) -> tuple[float, float, float]:
    """Least figure over finer and finer grids, the last grid, and how much the last halving moved it.

    Args:
        enough: stop once the figure is at most this.
        renyi: no guess needs to be above it.
    """
    events = problem.events
    many = len(events) >= 2 * GROUP
    # With many events a wider grid, and a much wider one to begin with, save most of the time.
    error = 2 * _ERROR if many else _ERROR
    # Where the other direction has an answer a rough look mostly shows that this one is not above it.
    width = 8.0 if enough > 0 else 4.0 if many else 2.0
    about, best = guess, math.inf
    for _ in range(_GUESSES):
        aim = problem.aim(about, order)
        order = aim.order
        grid = max(_finest_grid(aim.kept), width * _grid(about, problem.count, order, error))
        coarse = solve(events, problem.direction, problem.delta, grid, aim)
        best = min(best, coarse)
        if best <= enough:
            return best, grid, 0.0
        if max(_NEAR * about, lowest(about, order)) < coarse <= about * ABOVE:
            break
        about = coarse if coarse < math.inf else min(2 * about, renyi)
    while True:
        aim = problem.aim(min(best, renyi), order)
        order, finest = aim.order, _finest_grid(aim.kept)
        if grid <= finest:
            return best, grid, math.inf
        before = grid
        wanted = (1.0 if many else 2.0) * _grid(aim.about, problem.count, order, error)
        grid = max(min(grid / 2, wanted), finest)
        try:
            fine = solve(events, problem.direction, problem.delta, grid, aim)
        except UnsettledError:
            return best, grid, math.inf
        # delta rises by at most as much as epsilon falls, so less than a part of delta is as good as nothing.
        moved = abs(coarse - fine) / max(fine, problem.delta) if fine < math.inf else math.inf
        best = min(best, fine)
        # What the grid costs falls with its square, so moving from a wider one may move epsilon by more.
        settled = moved < min(_SETTLED * ((before / grid) ** 2 - 1) / 3, _REFINED_ENOUGH)
        # Once a finer grid raises the figure, rounding outweighs what the grid costs.
        if best <= enough or fine == 0 or settled or grid == finest or fine > coarse:
            return best, grid, moved
        coarse = fine


def _larger(figure: Figure, other: Figure) -> Figure:
    return figure if figure.epsilon > other.epsilon else other


def _grid(epsilon: float, count: int, order: float, error: float = _ERROR) -> float:
    """Width that raises an epsilon of `count` steps by about `error` of itself."""
    return math.sqrt(12 * error * epsilon / (count * (order + 1)))


def _finest_grid(kept: Limits) -> float:
    widths = kept.highest - kept.lowest
    return max(float(widths.max()) / _STEP_POINTS, float(widths.sum()) / _ALL_POINTS)
