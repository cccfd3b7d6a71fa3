"""Bounds: by hand on small cases, right at the truth, and never above what can be known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from raptor.accounting.types import Adjacency, Event
from raptor.audit.bounds import (
    f_dp_bound,
    family_bound,
    one_run_bound,
    one_run_p_value,
    rejects,
    trials_bound,
)
from raptor.audit.curves import GaussianCurve, LedgerCurve, scaled
from raptor.audit.guesses import Guesses, Tally, preset_guesses, tally
from raptor.errors import ParameterError
from tests.audit.faults import DELTA, RELEASE_NOISE

SURE = 0.95


def gaussian_run(seed: int, canaries: int, noise: float):
    generator = np.random.default_rng(seed)
    bits = generator.random(canaries) < 0.5
    return bits + noise * generator.normal(size=canaries), bits


def test_guesses_are_the_ends_of_the_order() -> None:
    scores = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    bits = np.array([True, False, False, True, True])
    assert tally(scores, bits, Guesses(2, 2)) == Tally(5, 4, 2)
    assert tally(scores, bits, Guesses(1, 0)) == Tally(5, 1, 1)
    assert tally(scores, bits, Guesses(0, 1)) == Tally(5, 1, 1)


def test_impossible_guesses_are_refused() -> None:
    scores, bits = gaussian_run(0, 10, 1.0)
    with pytest.raises(ParameterError, match="as many canaries"):
        tally(scores, bits, Guesses(6, 5))
    with pytest.raises(ParameterError, match="at least one canary"):
        Guesses(0, 0)
    with pytest.raises(ParameterError, match="not a number"):
        tally(np.where(np.arange(10) == 3, np.nan, scores), bits, Guesses(1, 1))
    with pytest.raises(ParameterError, match="scores that are numbers"):
        trials_bound(np.array([1.0, np.nan, 0.0, 2.0]), np.array([True, False, True, False]), DELTA, SURE)


def test_p_value_of_one_run_by_hand() -> None:
    found = Tally(10, 3, 3)
    right = math.e / (1 + math.e)
    assert one_run_p_value(found, 1.0, 0.0) == pytest.approx(right**3)
    tails = [binom.sf(v - 1, 3, right) for v in range(4)]
    extra = max((tails[3 - i] - tails[3]) / i for i in (1, 2, 3))
    assert one_run_p_value(found, 1.0, 1e-3) == pytest.approx(right**3 + 2 * 10 * 1e-3 * extra)
    values = [one_run_p_value(Tally(100, 50, 40), e, 1e-5) for e in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values)


def test_perfect_guessing_reaches_the_ceiling_of_one_run() -> None:
    bits = np.arange(5000) % 2 == 0
    bound = one_run_bound(bits.astype(float), bits, [Guesses(2500, 2500)], 0.0, SURE)
    right = 0.05 ** (1 / 5000)
    assert bound.epsilon == pytest.approx(math.log(right / (1 - right)), abs=2e-3)


def test_perfect_privacy_is_rejected_by_ten_right_guesses_and_not_by_five() -> None:
    assert not rejects(GaussianCurve(0.0), Tally(100, 10, 5), 0.05)
    assert rejects(GaussianCurve(0.0), Tally(100, 10, 10), 0.05)
    assert not rejects(GaussianCurve(8.0), Tally(100, 10, 10), 0.05)


def test_more_right_answers_reject_more() -> None:
    hits = [rejects(GaussianCurve(0.5), Tally(1000, 100, v), 0.05) for v in range(50, 101)]
    assert hits == sorted(hits)
    assert hits[-1]
    assert not hits[0]


@pytest.mark.parametrize("claim", RELEASE_NOISE)
def test_false_alarms_at_the_truth_are_within_the_level(claim: float) -> None:
    noise, runs, choices = RELEASE_NOISE[claim], 200, [Guesses(50, 50)]
    alarms = {"one-run": 0, "f-DP": 0, "trials": 0}
    for seed in range(runs):
        scores, bits = gaussian_run(seed, 1000, noise)
        found = tally(scores, bits, choices[0])
        alarms["one-run"] += one_run_p_value(found, claim, DELTA) <= 0.05
        alarms["f-DP"] += rejects(GaussianCurve(1 / noise), found, 0.05)
        alarms["trials"] += trials_bound(scores, bits, DELTA, SURE).epsilon > claim
    assert max(alarms.values()) <= binom.ppf(0.999, runs, 0.05)


def test_bonferroni_pays_for_the_choice() -> None:
    scores, bits = gaussian_run(1, 5000, 1.4)
    alone = f_dp_bound(scores, bits, [Guesses(250, 250)], DELTA, SURE)
    among = f_dp_bound(scores, bits, [Guesses(250, 250), Guesses(2500, 2500), Guesses(1, 1)], DELTA, SURE)
    assert 0 < among.epsilon < alone.epsilon
    assert (among.guesses, among.correct) == (alone.guesses, alone.correct)


def test_one_sided_guesses_are_among_the_presets() -> None:
    choices = preset_guesses(10_000)
    assert any(choice.outside == 0 for choice in choices)
    assert all(choice.inside + choice.outside <= 10_000 for choice in choices)


def test_the_family_of_a_full_batch_agrees_with_the_gaussian_bound() -> None:
    scores, bits = gaussian_run(2, 5000, 1.3906)
    choices = [Guesses(250, 250)]
    gauss = f_dp_bound(scores, bits, choices, DELTA, SURE)
    events = [Event(1.0, 1.3906, 1)]

    def family(strength: float) -> LedgerCurve:
        return LedgerCurve(scaled(events, 1 / strength), Adjacency.ADD_REMOVE)

    found = family_bound(scores, bits, choices, family, (0.02, 3.0), DELTA, SURE)
    assert found.epsilon == pytest.approx(gauss.epsilon, rel=0.02)
    assert found.epsilon <= 3.0


def test_coins_alone_find_nothing() -> None:
    generator = np.random.default_rng(3)
    bits, scores = generator.random(2000) < 0.5, generator.normal(size=2000)
    events = [Event(0.1, 1.0, 5)]
    assert one_run_bound(scores, bits, preset_guesses(2000), DELTA, SURE).epsilon < 0.2
    assert (
        family_bound(
            scores,
            bits,
            preset_guesses(2000),
            lambda s: LedgerCurve(scaled(events, 1 / s), Adjacency.ADD_REMOVE),
            (0.5, 3.0),
            DELTA,
            SURE,
        ).epsilon
        == 0
    )
