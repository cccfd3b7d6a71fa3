"""Epsilon against reference values, other accountants and closed forms."""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr

from raptor.accounting import accountant
from raptor.accounting.accountant import epsilon, library_epsilon
from raptor.accounting.compose import compose, merge, renyi_epsilon
from raptor.accounting.types import Adjacency, Event
from raptor.errors import BudgetError, ParameterError

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
SHARED = Path(os.environ.get("RAPTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
CASES = SHARED / "cases" / "accounting" / "reference.json"
ABSENT = "reference.json of the shared cases, which are not part of the project, is not here; RAPTOR_SHARED names them"
SLOW = {"x-T1e5"}


def cases() -> dict:
    return json.loads(CASES.read_text()) if CASES.is_file() else {}


def reference_rows() -> list:
    rows = cases().get("reference", [])
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(row, id=row["id"], marks=marks[row["id"] in SLOW]) for row in rows]


def composition_rows() -> list:
    return [
        pytest.param(name, block, row, id=f"{name}-{row['eps']}-{row['rho']}")
        for name, block in cases().get("composition", {}).items()
        for row in block["rows"]
    ]


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release, from its closed form."""
    mu = 1 / noise_multiplier

    def excess(value: float) -> float:
        first = math.exp(log_ndtr(mu / 2 - value / mu))
        return first - math.exp(value + log_ndtr(-mu / 2 - value / mu)) - delta

    return brentq(excess, 0, 1e4, xtol=1e-12)


def require_tight(found: float, truth: float, uncertainty: float = 0.0) -> None:
    assert found <= truth * (1 + 1e-4) + uncertainty
    assert found >= truth * (1 - 1e-6) - uncertainty


@pytest.mark.skipif(not CASES.is_file(), reason=ABSENT)
def test_reference_values_are_there() -> None:
    assert len(reference_rows()) >= 15


@pytest.mark.parametrize("row", reference_rows())
def test_reference_epsilon(row) -> None:
    found = epsilon([Event(row["q"], row["sigma"], row["T"])], row["delta"], ADD)
    require_tight(found.epsilon, row["reference_eps"], row["reference_unc"])
    assert (found.method, found.bound) == ("pld", "upper")
    assert found.refined < 1e-3


@pytest.mark.parametrize(("name", "block", "row"), composition_rows())
def test_reference_epsilon_of_two_streams(name, block, row) -> None:
    events = [Event(block["q"], row["pld"][key], block["T_each"]) for key in ("sigma_s", "sigma_e")]
    # These references come from a fixed grid of 1e-4, which is up to 3e-5 above the truth here.
    found = epsilon(events, block["delta"], ADD, confirm=False).epsilon
    assert found == pytest.approx(row["pld"]["joint_eps_same_sigma"], rel=5e-5)


@pytest.mark.parametrize(
    ("event", "delta", "truth"),
    [
        (Event(1.0, 2.0, 1), 1e-5, 4.37718),
        (Event(4096 / 67349, 1.5, 1000), 1 / 673490, 14.7181),
    ],
)
def test_replace_one_is_the_double_mixture(event, delta, truth) -> None:
    assert epsilon([event], delta, REPLACE).epsilon == pytest.approx(truth, rel=3e-5)


def test_replace_one_without_sampling_is_half_the_noise() -> None:
    assert epsilon([Event(1.0, 2.0, 7)], 1e-6, REPLACE, confirm=False).epsilon == pytest.approx(
        epsilon([Event(1.0, 1.0, 7)], 1e-6, ADD, confirm=False).epsilon, rel=1e-4
    )


def test_replace_one_with_sampling_costs_less_than_half_the_noise() -> None:
    event, half = Event(0.0608, 1.5, 1000), Event(0.0608, 0.75, 1000)
    add, replace = (epsilon([event], 1e-6, kind, confirm=False).epsilon for kind in (ADD, REPLACE))
    assert add < replace < epsilon([half], 1e-6, ADD, confirm=False).epsilon


def test_renyi_under_replace_one_counts_the_whole_distance() -> None:
    assert renyi_epsilon([Event(1.0, 2.0, 1)], 1e-5, REPLACE) == pytest.approx(4.72851, abs=5e-4)


@pytest.mark.parametrize(
    ("noise", "steps", "delta"),
    [(5.0, 1, 1e-6), (1.0, 1, 1e-9), (30.0, 400, 1e-5), (400.0, 1, 1e-6), (3.0, 9, 1e-14), (1.0, 1, 0.3)],
)
def test_unsampled_gaussians_match_the_closed_form(noise, steps, delta) -> None:
    found = epsilon([Event(1.0, noise, steps)], delta, ADD)
    require_tight(found.epsilon, gaussian_epsilon(noise / math.sqrt(steps), delta))


@pytest.mark.parametrize(("delta", "truth"), [(1e-12, 3.914298156), (1e-15, 4.854537751)])
def test_tiny_delta_stays_above_the_truth(delta, truth) -> None:
    found = epsilon([Event(0.01, 1.0, 1000)], delta, ADD)
    require_tight(found.epsilon, truth, 1e-8)
    assert "not asked" in found.note
    assert "dp-accounting" not in found.library


def test_rounding_of_the_transform_is_counted(monkeypatch) -> None:
    """A machine that rounds more coarsely must claim more."""
    event = Event(0.01, 1.0, 1000)
    before = epsilon([event], 1e-6, ADD, confirm=False).epsilon
    monkeypatch.setattr("raptor.accounting.transform._UNIT_ROUNDOFF", 1e-9)
    assert epsilon([event], 1e-6, ADD, confirm=False).epsilon > 1.001 * before


@pytest.mark.parametrize("delta", [1e-20, 1e-50, 1e-200])
def test_absurdly_small_delta_gives_a_finite_bound_below_renyi(delta) -> None:
    found = epsilon([Event(0.01, 1.0, 1000)], delta, ADD)
    assert 4.85 < found.epsilon < found.renyi < math.inf


def test_losses_far_below_the_usual_grid_are_resolved() -> None:
    event = Event(0.0152044, 50.0, 500)
    found = epsilon([event], 1.485e-6, ADD, confirm=False)
    assert found.epsilon == pytest.approx(library_epsilon([event], 1.485e-6, ADD, 2e-6), rel=5e-5)
    assert library_epsilon([event], 1.485e-6, ADD, 1e-4) > 1.005 * found.epsilon


@pytest.mark.slow
def test_rare_sampling_over_many_steps() -> None:
    # The usual grid of 1e-4 gives 0.0296 here, more than twice the truth.
    found = epsilon([Event(1e-5, 1.0, 100_000)], 1e-6, ADD, confirm=False)
    assert found.epsilon == pytest.approx(0.01312, rel=1e-3)


def test_more_noise_than_delta_needs_gives_zero() -> None:
    assert epsilon([Event(0.0152, 1e6, 1000)], 1e-6, ADD).epsilon == 0
    assert epsilon([Event(1e-5, 4.0, 10)], 1e-5, ADD).epsilon == 0


@pytest.mark.parametrize("events", [[], [Event(0.1, 1.0, 0)]])
def test_nothing_released_costs_nothing(events) -> None:
    found = epsilon(events, 1e-6, ADD)
    assert (found.epsilon, found.method) == (0.0, "none")


@pytest.mark.parametrize("delta", [0, 1, 1.5, -1e-6, math.nan, math.inf, True, None, "1e-6"])
def test_delta_outside_of_its_range_is_refused(delta) -> None:
    with pytest.raises(BudgetError, match="delta"):
        epsilon([Event(0.1, 1.0, 1)], delta, ADD)


def test_adjacency_and_events_are_typed() -> None:
    with pytest.raises(ParameterError, match="adjacency"):
        epsilon([Event(0.1, 1.0, 1)], 1e-6, "bounded")
    with pytest.raises(ParameterError, match="must be an Event"):
        epsilon([(0.1, 1.0, 1)], 1e-6, ADD)


def test_noise_too_small_for_any_bound_is_refused() -> None:
    with pytest.raises(BudgetError, match="noise is too small"):
        epsilon([Event(0.1, 1e-5, 1)], 1e-6, ADD)


def test_events_merge() -> None:
    merged = merge(
        [Event(0.1, 1.0, 3), Event(1.0, 3.0, 1), Event(0.1, 1.0, 4), Event(1.0, 4.0, 1), Event(0.2, 1, 0)]
    )
    assert merged[0] == Event(0.1, 1.0, 7)
    assert merged[1].noise_multiplier == pytest.approx(2.4)
    assert len(merged) == 2


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    "events", [[Event(0.02, 1.2, 400), Event(0.02, 1.6, 400)], [Event(0.3, 2.0, 30), Event(1, 9, 2)]]
)
def test_dp_accounting_agrees_on_the_same_grid(events, adjacency) -> None:
    ours = compose(events, 1e-6, adjacency)
    theirs = library_epsilon(events, 1e-6, adjacency, ours.grid)
    assert ours.epsilon == pytest.approx(theirs, rel=1e-5)
    found = epsilon(events, 1e-6, adjacency)
    assert found.epsilon == max(ours.epsilon, theirs)
    assert "dp-accounting 0.6" in found.library


def test_published_comparison_of_joint_and_split() -> None:
    events = [Event(0.02, 1.2, 400), Event(0.02, 1.6, 400)]
    assert epsilon(events, 1e-6, ADD, confirm=False).epsilon == pytest.approx(2.40, abs=0.005)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_disagreement_of_the_library_is_an_alarm(monkeypatch, factor) -> None:
    monkeypatch.setattr(
        accountant, "library_epsilon", lambda *arguments: factor * library_epsilon(*arguments)
    )
    with pytest.raises(BudgetError, match="accountants disagree"):
        epsilon([Event(0.02, 1.2, 400)], 1e-6, ADD)


def test_renyi_below_the_loss_distribution_is_an_alarm(monkeypatch) -> None:
    monkeypatch.setattr("raptor.accounting.compose.renyi_bound", lambda *_: (0.5, 10.0))
    with pytest.raises(BudgetError, match="accountants disagree"):
        epsilon([Event(0.02, 1.2, 400)], 1e-6, ADD, confirm=False)


def test_a_schedule_of_a_thousand_noise_levels() -> None:
    events = [Event(0.015, 0.8 + 1.2 * step / 999, 1) for step in range(1000)]
    found = epsilon(events, 1e-6, ADD, confirm=False)
    # Composed one by one on a grid half as wide: 2.75749115.
    assert 2.7574 < found.epsilon < 2.75749115 * (1 + 1e-4)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("rate", "delta"), [(0.02, 1e-6), (0.4, 1e-12), (2e-3, 1e-9)])
def test_composing_in_groups_agrees_with_one_by_one(monkeypatch, adjacency, rate, delta) -> None:
    events = [Event(rate * (1 + step % 3 / 4), 0.8 + step / 60, 1 + step % 2) for step in range(90)]
    grouped = compose(events, delta, adjacency)
    monkeypatch.setattr("raptor.accounting.transform.GROUP", 1000)
    alone = compose(events, delta, adjacency)
    assert grouped.settled
    assert alone.epsilon * (1 - 1e-5) <= grouped.epsilon <= alone.epsilon * (1 + 1e-4)


def test_groups_are_between_the_two_estimates_of_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution

    events = [Event(0.02, 0.9 + step / 80, 1) for step in range(80)]
    low, high = (
        functools.reduce(
            lambda one, other: one.compose(other),
            [
                privacy_loss_distribution.from_gaussian_mechanism(
                    event.noise_multiplier,
                    value_discretization_interval=1e-3,
                    sampling_prob=event.rate,
                    pessimistic_estimate=pessimistic,
                    use_connect_dots=pessimistic,
                )
                for event in events
            ],
        ).get_epsilon_for_delta(1e-7)
        for pessimistic in (False, True)
    )
    assert low < epsilon(events, 1e-7, ADD, confirm=False).epsilon <= high * (1 + 1e-5)
