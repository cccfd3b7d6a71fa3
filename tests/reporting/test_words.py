"""Numbers that the report shows must stay true when they are rounded."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.reporting import words


@given(st.floats(min_value=0, max_value=1e4), st.integers(min_value=0, max_value=4))
def test_a_bound_is_never_rounded_down(value: float, digits: int) -> None:
    shown = float(words.round_up(value, digits))
    assert shown >= value - 1e-8
    assert shown <= value + 10.0**-digits


@pytest.mark.parametrize(
    ("value", "shown"), [(2.99993, "3.00"), (3.0, "3.00"), (2.001, "2.01"), (0.1 + 0.2, "0.30")]
)
def test_epsilon_as_shown(value: float, shown: str) -> None:
    assert words.round_up(value) == shown


def test_beliefs_follow_from_the_odds() -> None:
    assert words.certainty(log(3)) == pytest.approx(0.75)
    assert words.raised_belief(0.5, 1.7) == pytest.approx(words.certainty(1.7))
    prior, after = 0.01, words.raised_belief(0.01, 2.0)
    assert after / (1 - after) == pytest.approx(exp(2.0) * prior / (1 - prior))


def test_near_certainty_is_not_shown_as_certainty() -> None:
    assert words.certainty_percent(0.953) == "95.3\N{NO-BREAK SPACE}%"
    assert words.certainty_percent(words.certainty(8.0)) == "99.97\N{NO-BREAK SPACE}%"
    assert "100.0" not in words.certainty_percent(words.certainty(12.0))


@pytest.mark.parametrize(
    ("value", "shown"), [(1e-6, "1e-6"), (2.5e-05, "2.5e-5"), (0.05, "0.05"), (0.0, "0")]
)
def test_small_numbers(value: float, shown: str) -> None:
    assert words.small(value) == shown


@pytest.mark.parametrize(("factor", "shown"), [(exp(0.1), "1.2"), (exp(3), "21"), (exp(8), "3,000")])
def test_factors_are_rounded_up(factor: float, shown: str) -> None:
    assert words.times(factor) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "none"), (True, "true"), (512, "512"), (1e-06, "1e-6"), (0.001, "0.001"), ([1, 0.5], "1, 0.5")],
)
def test_parameters_as_typed(value: object, shown: str) -> None:
    assert words.compact(value) == shown
