"""Epsilon of everything that was released, as one upper bound.

The claim is the figure of dp-accounting's privacy loss distributions. Three limits of it are closed here:
the grid is chosen and refined until epsilon settles, a delta below its numerical floor is answered by the
tilted transform of `compose` alone, and two other computations (the tilted transform and Renyi divergences)
must agree with it. The larger of the two distribution figures is returned, so one library's rounding
cannot take the claim below the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from raptor.accounting import checks
from raptor.accounting.compose import LEAST_RATE, MOST_NOISE, Figure, compose, merge, renyi_epsilon
from raptor.accounting.loss import LOSS_ROUNDING, directions, spread
from raptor.accounting.transform import UnsettledError
from raptor.accounting.types import Adjacency, EpsilonBound, Event
from raptor.errors import BudgetError, ParameterError

OWN = "raptor tilted PLD 1"
LIBRARY_FLOOR = 1e-10
LIBRARY_CEILING = 600.0
_AGREEMENT = 1e-3
_LIBRARY_POINTS = 1_500_000
_LIBRARY_TAIL = math.exp(-50)
# Rounding is part of epsilon worth telling where epsilon is less than so many times its bound.
_ROUNDED = 1e4


def epsilon(
    events: Sequence[Event], delta: float, adjacency: Adjacency, *, confirm: bool = True
) -> EpsilonBound:
    """Smallest upper bound on epsilon at `delta` for all `events` together.

    Args:
        events: Poisson-subsampled Gaussian sums, in any order; none, or 0 steps, is epsilon 0.
        delta: between 0 and 1, the probability that the guarantee is allowed to miss.
        adjacency: which data sets are neighbours. Under replace-one the pair is the double mixture, not
            the add/remove pair at half the noise.
        confirm: ask dp-accounting too (it takes 1.5 s to load). Without it the figure is our own.

    Raises:
        ParameterError: an event or the adjacency is of the wrong kind.
        BudgetError: delta is out of range, the noise is too small for any bound, or accountants disagree.
    """
    events, delta, adjacency = _checked(events, delta, adjacency)
    bound = _bound(events, delta, adjacency, confirm)
    notes = [bound.note]
    if any(event.rate < LEAST_RATE or event.noise_multiplier > MOST_NOISE for event in events):
        notes.append(f"rates below {LEAST_RATE:g} and noise multipliers above {MOST_NOISE:g} count as these")
    if bound.grid and bound.epsilon < _ROUNDED * LOSS_ROUNDING * sum(event.steps for event in events):
        notes.append("perhaps looser than need be: the rounding of so many steps is not small beside it")
    return replace(bound, note="; ".join(filter(None, notes)))


def _bound(events: Sequence[Event], delta: float, adjacency: Adjacency, confirm: bool) -> EpsilonBound:
    merged = merge(events)
    if not merged:
        return EpsilonBound(0.0, delta, adjacency, "none", OWN, note="nothing was released")
    try:
        figure = compose(merged, delta, adjacency)
    except UnsettledError as error:
        value = renyi_epsilon(merged, delta, adjacency)
        note = f"looser bound by Renyi divergences: {error}"
        return EpsilonBound(value, delta, adjacency, "rdp", OWN, renyi=value, note=note)
    if not figure.settled:
        return _unsettled(figure, delta, adjacency)
    if figure.renyi < figure.epsilon * (1 - _AGREEMENT) - 1e-9:
        raise BudgetError(
            f"the accountants disagree: epsilon is at most {figure.renyi} by Renyi divergences but "
            f"{figure.epsilon} by privacy loss distributions; report these events: {list(merged)}"
        )
    value, library, note = figure.epsilon, OWN, ""
    if confirm:
        value, library, note = _confirmed(merged, delta, adjacency, figure)
    return EpsilonBound(
        value,
        delta,
        adjacency,
        "pld",
        library,
        grid=figure.grid or None,
        refined=figure.moved,
        renyi=figure.renyi,
        note=note,
    )


def _unsettled(figure: Figure, delta: float, adjacency: Adjacency) -> EpsilonBound:
    """The least bound that was found, where no grid gives a tight one."""
    by_renyi = figure.epsilon >= figure.renyi
    note = (
        f"perhaps looser than need be: epsilon still moves by {figure.moved:.1e} of itself on the last grid"
    )
    return EpsilonBound(
        figure.epsilon,
        delta,
        adjacency,
        "rdp" if by_renyi else "pld",
        OWN,
        grid=None if by_renyi else figure.grid,
        refined=None if by_renyi or not math.isfinite(figure.moved) else figure.moved,
        renyi=figure.renyi,
        note=note,
    )


def _checked(
    events: Sequence[Event], delta: float, adjacency: Adjacency
) -> tuple[tuple[Event, ...], float, Adjacency]:
    for event in events:
        if not isinstance(event, Event):
            raise ParameterError(f"an event must be an Event, not {type(event).__name__}")
    kind = checks.member(Adjacency, adjacency, "adjacency")
    return tuple(events), checks.budget_delta(delta), kind


def _confirmed(
    events: tuple[Event, ...], delta: float, adjacency: Adjacency, figure: Figure
) -> tuple[float, str, str]:
    """The larger of our figure and dp-accounting's on the same grid, who was asked, and what to note."""
    if figure.epsilon == 0:
        return 0.0, OWN, ""
    if delta < LIBRARY_FLOOR:
        note = f"delta is below {LIBRARY_FLOOR:g}, where dp-accounting's transform is not reliable: not asked"
        return figure.epsilon, OWN, note
    if figure.epsilon > LIBRARY_CEILING:
        note = f"epsilon is above {LIBRARY_CEILING:g}, where dp-accounting's exponentials overflow: not asked"
        return figure.epsilon, OWN, note
    grid = figure.grid
    points = sum(
        (high - low) / grid
        for event in events
        for low, high in [spread(event, directions(events, adjacency)[0], _LIBRARY_TAIL)]
    )
    if points > _LIBRARY_POINTS:
        note = f"dp-accounting would need {points:.0f} points for these events: not asked"
        return figure.epsilon, OWN, note
    theirs = library_epsilon(events, delta, adjacency, grid)
    # Next to epsilon 0 both are only as sharp as delta makes them: it rises by at most what epsilon falls.
    if abs(theirs - figure.epsilon) > _AGREEMENT * max(theirs, figure.epsilon, delta) + 1e-9:
        raise BudgetError(
            f"the accountants disagree: epsilon is {theirs} by dp-accounting and {figure.epsilon} by our own "
            f"transform, both on a grid of {grid}; report these events: {list(events)}"
        )
    return max(theirs, figure.epsilon), f"dp-accounting {version('dp-accounting')} PLD, {OWN}", ""


def library_epsilon(events: Sequence[Event], delta: float, adjacency: Adjacency, grid: float) -> float:
    """dp-accounting's figure for `events`, the larger of its directions, on losses `grid` apart."""
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = {
        Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    total = None
    for event in merge(events):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=event.noise_multiplier,
            value_discretization_interval=grid,
            sampling_prob=event.rate,
            neighboring_relation=relation,
        )
        many = one.self_compose(event.steps)
        total = many if total is None else total.compose(many)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))
