"""What a whole search costs: all of its runs in one ledger, or the choice of the best of a random number of them.

The bound for a random number of runs is that of Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential
Privacy" (arXiv 2110.03620): Theorem 2 for truncated negative binomial numbers, Theorem 6 for Poisson ones. It says
more than Liu and Talwar, "Private Selection from Private Candidates" (arXiv 1811.07971), from which it comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from raptor.accounting import checks
from raptor.accounting.accountant import OWN, epsilon
from raptor.accounting.compose import merge
from raptor.accounting.loss import directions, log_moment
from raptor.accounting.moments import least_of
from raptor.accounting.selection import Search, Selection, stopping
from raptor.accounting.types import Adjacency, EpsilonBound, Event
from raptor.errors import BudgetError

_SHAPE = {Selection.GEOMETRIC: 1.0, Selection.LOGARITHMIC: 0.0}


def search_epsilon(
    events: Sequence[Event], search: Search, delta: float, adjacency: Adjacency, *, confirm: bool = True
) -> EpsilonBound:
    """Upper bound on epsilon at `delta` for a whole search whose runs each cost at most `events`.

    Guarantee:
        Naive: everything that all runs release, however it is used, by adaptive composition. Random: the chosen run's
        releases alone, under the conditions in `selection.NEEDS`. Without a search it is the epsilon of one run.

    Args:
        events: releases of one run.
        search: number of runs and how it is fixed.
        confirm: ask dp-accounting too where the figure is one of loss distributions.

    Raises:
        BudgetError: delta is out of range, or the noise is too small for any bound.
    """
    if not search.selection.is_random:
        many = [replace(event, steps=event.steps * search.runs) for event in events]
        return epsilon(many, delta, adjacency, confirm=confirm)
    delta = checks.budget_delta(delta)
    merged = merge(events)
    if not merged:
        return EpsilonBound(0.0, delta, adjacency, "none", OWN, note="nothing was released")
    ways = directions(merged, adjacency)

    def moment(order: float) -> float:
        """`order` times the Renyi divergence of order + 1 of one run, worst direction."""
        return max(log_moment(merged, way, order) for way in ways)

    if search.selection is Selection.POISSON:
        extra = _poisson(moment, search.runs)
    else:
        extra = _negative_binomial(moment, search)
    start = max(1.0, min(event.noise_multiplier for event in merged))

    def bound(order: float) -> float:
        alpha = order + 1
        log_share = math.log(delta) + math.log(alpha)
        return moment(order) / order + extra(order) + math.log1p(-1 / alpha) - log_share / order

    _, value = least_of(bound, start)
    if not math.isfinite(value):
        raise BudgetError(
            f"no bound for a search of {search.runs} runs: the least noise multiplier is "
            f"{min(event.noise_multiplier for event in merged)}, which is too small"
        )
    value = max(0.0, value)
    note = f"best of a random number of runs ({search.selection}, mean {search.runs}), by Renyi divergences"
    return EpsilonBound(value, delta, adjacency, "rdp", OWN, renyi=value, note=note)


def _negative_binomial(moment: Callable[[float], float], search: Search) -> Callable[[float], float]:
    """What Theorem 2 adds to the divergence of order 1 + `order`."""
    gamma = stopping(search)

    def at(order: float) -> float:
        # (1 - 1/a) D_a + log(1/gamma)/a at a = 1 + order; D is the divergence of one run.
        return (moment(order) - math.log(gamma)) / (1 + order)

    _, least = least_of(at, 1.0)
    # The limit at order 0 is no argument of `at`, but a valid choice of the theorem.
    fixed = (1 + _SHAPE[search.selection]) * min(least, -math.log(gamma))
    return lambda order: fixed + math.log(search.runs) / order


def _poisson(moment: Callable[[float], float], mean: float) -> Callable[[float], float]:
    """What Theorem 6 adds to the divergence of order 1 + `order`."""

    def extra(order: float) -> float:
        limit = math.log1p(1 / order)

        def log_delta(other: float) -> float:
            alpha = 1 + other
            return moment(other) + other * math.log1p(-1 / alpha) - math.log(alpha) - other * limit

        _, least = least_of(log_delta, order)
        return mean * math.exp(min(least, 0.0)) + math.log(mean) / order

    return extra
