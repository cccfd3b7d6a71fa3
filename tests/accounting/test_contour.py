"""The accountant beside an independent computation, in corners where no published value is."""

from __future__ import annotations

import math

import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.types import Adjacency, Event

from .contour import exact_epsilon

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE

CORNERS = {
    "two streams": ([(0.0152, 0.9, 500), (0.0152, 1.3, 500)], 1.5e-6, ADD),
    "two streams replaced": ([(0.0152, 1.4, 500), (0.03, 1.7, 250)], 1e-6, REPLACE),
    "evaluation once": ([(0.02, 1.1, 400), (1.0, 25.0, 1)], 1e-5, ADD),
    "least delta": ([(0.06, 2.0, 500)], 1e-16, ADD),
    "most noise": ([(0.02, 100.0, 1000)], 1e-6, ADD),
    "rare": ([(2e-3, 1.0, 20_000)], 1e-6, ADD),
    "most steps": ([(1e-3, 2.0, 100_000)], 1e-9, ADD),
    "half of all": ([(0.5, 3.0, 100)], 1e-5, REPLACE),
    "all of them": ([(1.0, 40.0, 200)], 1e-8, REPLACE),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners_agree_with_a_contour_integral(name: str) -> None:
    given, delta, adjacency = CORNERS[name]
    events = [Event(*item) for item in given]
    found = epsilon(events, delta, adjacency, confirm=False)
    exact = exact_epsilon(events, delta, adjacency, found.epsilon)
    assert found.method == "pld"
    assert -1e-6 <= found.epsilon / exact - 1 <= 1e-4


@pytest.mark.exhaustive
def test_losses_that_rounding_swallows_do_not_count_as_none() -> None:
    """Losses of 1e-14 a step: what a grid of 1e-16 says about them is rounding, and said 0."""
    event = Event(3e-12, 1e3, 10**8)
    found = epsilon([event], 1e-100, ADD)
    # A normal loss of the same divergence, by chi-square.
    deviation = event.rate * math.sqrt(event.steps * math.expm1(1e-6))
    assert found.epsilon > 15 * deviation
