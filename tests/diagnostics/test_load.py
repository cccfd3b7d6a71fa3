"""Loads: dilution, empty steps, and the chain of bounds between entropy and the bias of the public denominator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.diagnostics.load import (
    dilution,
    drawn_empty_rates,
    empty_rates,
    entropy_bounds,
    kappa,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=16).filter(lambda loads: sum(loads) > 1e-3),
    st.floats(0.1, 8.0),
)
def test_the_bounds_hold_for_all_loads(weights: list[float], power: float) -> None:
    loads = np.array(weights) ** power + 1e-12
    loads /= loads.sum()
    found = entropy_bounds(loads)
    slack = 1e-9 * (1 + found.chi2)
    assert found.lower <= found.chi2 + slack
    assert found.chi2 <= found.tight + slack
    assert found.chi2 <= found.upper + slack
    if len(loads) >= 4:
        assert found.tight <= found.upper + slack


def test_the_bounds_at_known_loads() -> None:
    even = entropy_bounds(np.full(8, 0.125))
    assert (even.deficit, even.chi2, even.lower, even.upper) == (0.0, 0.0, 0.0, 0.0)
    one = entropy_bounds(np.array([1.0, 0.0, 0.0, 0.0]))
    assert one.deficit == pytest.approx(math.log(4))
    # All on one expert: Jensen's bound is attained.
    assert one.chi2 == pytest.approx(3.0) == pytest.approx(one.lower)
    # Half the experts idle, the others even: attained as well.
    half = entropy_bounds(np.array([0.25] * 4 + [0.0] * 4))
    assert half.chi2 == pytest.approx(1.0) == pytest.approx(half.lower)
    # Near evenness chi2 is twice the deficit.
    near = entropy_bounds(np.array([0.25 + 1e-6, 0.25 - 1e-6, 0.25, 0.25]))
    assert near.chi2 / near.deficit == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(("largest", "value"), [(1.0, 2.0), (8.0, 5.09), (16.0, 7.66), (64.0, 19.54)])
def test_kappa(largest: float, value: float) -> None:
    assert kappa(largest) == pytest.approx(value, rel=1e-3)


def test_the_owner_denominator_undoes_the_dilution_on_average() -> None:
    loads = np.array([0.4, 0.3, 0.2, 0.1])
    assert dilution(loads, "batch") == pytest.approx(loads)
    assert dilution(loads, "owner").mean() == pytest.approx(1.0)


def test_empty_steps_are_as_often_drawn_as_the_formula_says() -> None:
    loads, batch = np.array([0.9, 0.08, 0.015, 0.005, 0.0]), 64
    formula = empty_rates(loads, batch)
    assert formula[-1] == 1.0
    drawn = drawn_empty_rates(loads, batch, 100_000, 20_000, np.random.default_rng(0))
    error = np.sqrt(formula * (1 - formula) / 20_000)
    assert (np.abs(drawn - formula) <= 5 * error + 1e-3).all()
