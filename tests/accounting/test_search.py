"""What a search costs: against dp-accounting, against the exact law of the best of a random number of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from raptor.accounting.accountant import epsilon
from raptor.accounting.compose import renyi_epsilon
from raptor.accounting.search import search_epsilon
from raptor.accounting.selection import Search, Selection, draw_runs, probability, stopping
from raptor.accounting.types import Adjacency, Event
from raptor.errors import ParameterError

ADD = Adjacency.ADD_REMOVE
RANDOM = (Selection.GEOMETRIC, Selection.LOGARITHMIC, Selection.POISSON)
RUN = (Event(0.02, 1.2, 400), Event(1.0, 20.0, 2))
DELTA = 1e-6


def test_naive_runs_are_composed_in_one_ledger() -> None:
    found = search_epsilon(RUN, Search(7, Selection.NAIVE), DELTA, ADD, confirm=False)
    many = [Event(0.02, 1.2, 2800), Event(1.0, 20.0, 14)]
    assert found.epsilon == epsilon(many, DELTA, ADD, confirm=False).epsilon
    assert found.epsilon < 7 * epsilon(RUN, DELTA, ADD, confirm=False).epsilon


def test_no_search_costs_one_run() -> None:
    found = search_epsilon(RUN, Search(), DELTA, ADD, confirm=False)
    assert found == epsilon(RUN, DELTA, ADD, confirm=False)


@pytest.mark.parametrize("events", [RUN, (Event(1.0, 3.0, 1),), (Event(0.3, 5.0, 60),)])
@pytest.mark.parametrize(
    ("selection", "shape"),
    [(Selection.GEOMETRIC, 1.0), (Selection.LOGARITHMIC, 0.0), (Selection.POISSON, math.inf)],
)
@pytest.mark.parametrize("runs", [3, 300])
def test_dp_accounting_finds_the_same(events, selection, shape, runs) -> None:
    """It tries a list of orders, and its divergences of broken orders are a little too large: it may be above ours."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    accountant = rdp_privacy_accountant.RdpAccountant(
        orders=[*np.arange(1.1, 6, 0.1), *range(6, 200), *range(200, 3000, 50)]
    )
    one = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(event.rate, dp_event.GaussianDpEvent(event.noise_multiplier)),
                event.steps,
            )
            for event in events
        ]
    )
    accountant.compose(dp_event.RepeatAndSelectDpEvent(one, mean=runs, shape=shape))
    theirs = accountant.get_epsilon(DELTA)
    ours = search_epsilon(events, Search(runs, selection), DELTA, ADD).epsilon
    assert theirs * 0.97 <= ours <= theirs * (1 + 1e-6)


@pytest.mark.parametrize("selection", RANDOM)
@pytest.mark.parametrize("runs", [2, 10, 200])
@pytest.mark.parametrize("noise", [1.0, 3.0, 8.0])
def test_the_bound_holds_for_the_exact_law_of_the_best_run(selection, runs, noise) -> None:
    """The run with the largest output y of N(0 or 1, noise^2) is chosen: its law is known in closed form."""
    search = Search(runs, selection)
    y = np.linspace(-14 * noise, 14 * noise + 1, 400_001)

    def law(mean: float) -> np.ndarray:
        below = ndtr((y - mean) / noise)
        density = np.exp(-0.5 * ((y - mean) / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
        return density * slope(search, below)

    # Where no run is made (Poisson) the answer is a public one, alike for both.
    least = math.exp(-runs) if selection is Selection.POISSON else 0.0
    first, second = law(1.0), law(0.0)
    width = y[1] - y[0]
    assert first.sum() * width == pytest.approx(1 - least, abs=1e-6)
    for delta in (1e-3, 1e-6):
        bound = search_epsilon([Event(1.0, noise, 1)], search, delta, ADD).epsilon
        for one, other in ((first, second), (second, first)):
            assert np.maximum(one - math.exp(bound) * other, 0).sum() * width <= delta


def slope(search: Search, below: np.ndarray) -> np.ndarray:
    """Derivative of the generating function of the number of runs."""
    if search.selection is Selection.POISSON:
        return search.runs * np.exp(search.runs * (below - 1))
    gamma = stopping(search)
    if search.selection is Selection.GEOMETRIC:
        return gamma / (1 - (1 - gamma) * below) ** 2
    return (1 - gamma) / (-math.log(gamma) * (1 - (1 - gamma) * below))


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_order_of_the_costs(adjacency) -> None:
    one = renyi_epsilon(RUN, DELTA, adjacency)
    by_runs = [
        search_epsilon(RUN, Search(runs, Selection.LOGARITHMIC), DELTA, adjacency).epsilon
        for runs in (2, 10, 50)
    ]
    assert one < by_runs[0] < by_runs[1] < by_runs[2]
    geometric = search_epsilon(RUN, Search(10, Selection.GEOMETRIC), DELTA, adjacency).epsilon
    assert by_runs[1] < geometric
    # Letting everything out of fifty runs costs more than letting the best one out.
    naive = search_epsilon(RUN, Search(50, Selection.NAIVE), DELTA, adjacency, confirm=False).epsilon
    assert by_runs[2] < naive


@pytest.mark.parametrize("selection", RANDOM)
@pytest.mark.parametrize("runs", [2, 9, 100])
def test_the_number_of_runs_has_the_stated_mean(selection, runs) -> None:
    search = Search(runs, selection)
    chances = [probability(search, number) for number in range(100 * runs)]
    assert math.fsum(chances) == pytest.approx(1, abs=1e-6)
    mean = math.fsum(number * chance for number, chance in enumerate(chances))
    assert mean == pytest.approx(runs, rel=1e-4)


@pytest.mark.parametrize("selection", RANDOM)
def test_drawn_numbers_follow_the_distribution(selection) -> None:
    search = Search(4, selection)
    drawn = [draw_runs(search) for _ in range(3000)]
    assert min(drawn) >= (0 if selection is Selection.POISSON else 1)
    deviation = math.sqrt(sum(probability(search, k) * (k - 4) ** 2 for k in range(400)))
    assert abs(np.mean(drawn) - 4) < 5 * deviation / math.sqrt(3000)


def test_nothing_released_costs_nothing() -> None:
    assert search_epsilon([], Search(5, Selection.GEOMETRIC), DELTA, ADD).epsilon == 0


@pytest.mark.parametrize(
    ("runs", "selection", "message"),
    [
        (3, "none", "selection is none"),
        (1, "naive", "at least 2"),
        (1, "geometric", "at least 2"),
        (0, "none", "at least 1"),
        (2.5, "naive", "whole number"),
        (True, "naive", "whole number"),
        (10**6, "naive", "at most 100000"),
        (5, "best", "must be one of none, naive"),
    ],
)
def test_a_search_that_is_none_is_refused(runs, selection, message) -> None:
    with pytest.raises(ParameterError, match=message):
        Search(runs, selection)


def test_a_number_is_drawn_for_random_selections_alone() -> None:
    with pytest.raises(ParameterError, match="not drawn"):
        draw_runs(Search(3, Selection.NAIVE))
