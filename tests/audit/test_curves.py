"""Trade-off curves promise no more than the accountant, and hardly less."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.types import Adjacency, Event
from raptor.audit.curves import GaussianCurve, LedgerCurve, scaled
from raptor.errors import ParameterError

MASSES = (1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999)
LEDGERS = {
    "few steps": [Event(0.1, 1.0, 50)],
    "two streams": [Event(0.0427, 0.81, 24), Event(0.0427, 0.81, 8)],
    "many steps": [Event(0.0152, 0.9075, 1000)],
    "with a Gaussian": [Event(0.05, 1.0, 10), Event(1.0, 5.0, 3)],
}


@pytest.mark.parametrize("noise", [0.7, 2.0, 4.0])
def test_a_ledger_of_one_full_batch_is_the_gaussian_curve(noise: float) -> None:
    ledger = LedgerCurve([Event(1.0, noise, 1)], Adjacency.ADD_REMOVE)
    gauss = GaussianCurve(1 / noise)
    for mass in MASSES:
        assert ledger.least(mass) <= gauss.least(mass) * (1 + 1e-9)
        assert ledger.least(mass) == pytest.approx(gauss.least(mass), rel=2e-3)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("name", LEDGERS)
def test_the_curve_is_that_of_the_accountant(name: str, adjacency: Adjacency) -> None:
    events = LEDGERS[name]
    curve = LedgerCurve(events, adjacency)
    deltas = np.geomspace(1e-7, 0.5, 12)
    bounds = [(epsilon(events, d, adjacency, confirm=False).epsilon, d) for d in deltas]
    for mass in MASSES:
        # The guarantees at these deltas alone; the curve has all of them.
        implied = max(
            0.0,
            *(1 - d - math.exp(e) * (1 - mass) for e, d in bounds if e < 600),
            *(math.exp(-e) * (mass - d) for e, d in bounds),
        )
        assert curve.least(mass) >= implied * 0.99 - 1e-12
    mass = np.linspace(0, 1, 2001)
    least = np.array([curve.least(x) for x in mass])
    for eps, delta in bounds[6:]:
        # What the best test of the curve gains over exp(epsilon) is the accountant's delta, unless that is slack.
        found = float(np.max(mass - math.exp(eps) * least))
        assert found <= delta * 1.05 or eps == 0
        assert found >= delta * 0.9 - 1e-3 or eps == 0


def test_least_is_a_probability_and_grows() -> None:
    for curve in (GaussianCurve(1.3), LedgerCurve(LEDGERS["few steps"], Adjacency.ADD_REMOVE)):
        values = [curve.least(x) for x in np.linspace(0, 1, 101)]
        assert values[0] == 0
        assert 0.99 < values[-1] <= 1
        assert values == sorted(values)


def test_epsilon_is_that_of_the_accountant() -> None:
    assert GaussianCurve(1 / 3.7306).epsilon(1e-5) == pytest.approx(1.0, abs=1e-3)
    assert GaussianCurve(0.0).epsilon(1e-5) == 0
    events = LEDGERS["few steps"]
    assert LedgerCurve(events, Adjacency.ADD_REMOVE).epsilon(1e-5) == pytest.approx(5.15, abs=0.01)
    assert scaled(events, 2.0) == [Event(0.1, 2.0, 50)]


def test_nothing_released_is_nothing_to_audit() -> None:
    with pytest.raises(ParameterError, match="at least one planned release"):
        LedgerCurve([], Adjacency.ADD_REMOVE)
