"""Membership inference on made-up answers whose best attack is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest

from raptor.accounting.types import Adjacency, Event
from raptor.audit.curves import ClaimCurve, Curve, GaussianCurve, LedgerCurve, most_found
from raptor.audit.membership import (
    ATTACKS,
    Models,
    Point,
    area,
    breaks,
    epsilon_found,
    label_margins,
    loss_threshold,
    offline_lira,
    online_lira,
    operating_points,
)
from raptor.errors import ParameterError

NORMAL = NormalDist()
RATES = (0.001, 0.01, 0.1)


def models_with(gap: float, number: int, records: int, seed: int = 0, spread: float = 6.0) -> Models:
    """Every record has a difficulty of its own, far more spread than the unit noise; members answer `gap` better."""
    generator = np.random.default_rng(seed)
    members = generator.random((number, records)) < 0.5
    difficulty = spread * generator.normal(size=records)
    return Models(difficulty + gap * members + generator.normal(size=members.shape), members)


def test_margins_are_logits_of_the_labels_probability() -> None:
    logits = np.array([[1.0, 2.0, 0.5], [900.0, 0.0, -5.0], [0.0, 900.0, -5.0]])
    labels = np.array([1, 0, 0])
    margins = label_margins(logits, labels)
    weights = np.exp(logits[0])
    p = weights[1] / weights.sum()
    assert margins[0] == pytest.approx(math.log(p / (1 - p)))
    assert math.log1p(math.exp(-margins[0])) == pytest.approx(-math.log(p))
    # Where the probability rounds to 1 or 0 there is still a difference.
    other = math.log1p(math.exp(-5.0))
    assert margins[1:] == pytest.approx([900.0 - other, -900.0])


def test_lira_finds_what_the_best_attack_finds_and_a_threshold_does_not() -> None:
    gap = 2.0
    models = models_with(gap, 65, 800)
    for attack in (online_lira, offline_lira):
        scores = attack(models)
        # Shadow models are many, so means are nearly known: what is left is one Gaussian against another.
        assert area(scores, models.members) == pytest.approx(NORMAL.cdf(gap / math.sqrt(2)), abs=0.012)
        for rate, point in zip(RATES, operating_points(scores, models.members, RATES), strict=True):
            best = NORMAL.cdf(NORMAL.inv_cdf(rate) + gap)
            assert 0.88 * best < point.true_rate < 1.1 * best
    plain = area(loss_threshold(models), models.members)
    assert plain == pytest.approx(NORMAL.cdf(gap / math.sqrt(2 * (1 + 6.0**2))), abs=0.02)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_signal_is_found_where_there_is_none(attack: str) -> None:
    hits = np.zeros(len(RATES))
    trials = 0
    for seed in range(3):
        models = models_with(0.0, 12, 1500, seed)
        scores = ATTACKS[attack](models)
        assert area(scores, models.members) == pytest.approx(0.5, abs=0.02)
        points = operating_points(scores, models.members, RATES)
        hits += [point.true_positives for point in points]
        trials += points[0].members
        # The claim "epsilon is above 0" fails in one of a thousand.
        assert epsilon_found(scores, models.members, 1e-5, 0.999) == 0.0
    for rate, found in zip(RATES, hits, strict=True):
        # The threshold is an estimate from as many non-members, which doubles the variance.
        assert abs(found - trials * rate) < 4 * math.sqrt(2 * trials * rate)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_targets_own_coins_play_no_part_in_its_scores(attack: str) -> None:
    models = models_with(1.0, 8, 50)
    turned = models.members.copy()
    turned[3] = ~turned[3]
    before, after = ATTACKS[attack](models), ATTACKS[attack](Models(models.margins, turned))
    np.testing.assert_allclose(before[3], after[3], rtol=1e-12)
    if attack != "loss":
        assert not np.allclose(before[2], after[2])


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_record_that_all_shadow_models_have_or_none_has_is_scored_too(everywhere: bool) -> None:
    models = models_with(1.0, 5, 40, spread=0.0)
    members = models.members.copy()
    members[:, 0] = everywhere
    for attack in ATTACKS.values():
        assert np.isfinite(attack(Models(models.margins, members))).all()


def test_scores_are_those_of_the_formula() -> None:
    margins = np.array([[3.0, 0.0], [1.0, 2.0], [2.0, 5.0], [0.0, 1.0], [4.0, -1.0]])
    members = np.array([[True, False], [True, True], [True, True], [False, False], [False, False]])
    models = Models(margins, members)
    # Target 0: with record 0 are 1, 2; without it 0, 4. With record 1 are 2, 5; without it 1, -1.
    inside, outside = (1.5, 3.5), (2.0, 0.0)
    var_in, var_out = (0.5 + 4.5) / 2, (8.0 + 2.0) / 2
    offline = [(x - mean) / math.sqrt(var_out) for x, mean in zip(margins[0], outside, strict=True)]
    assert offline_lira(models)[0] == pytest.approx(offline)
    ratio = [
        math.log(NormalDist(a, math.sqrt(var_in)).pdf(x) / NormalDist(b, math.sqrt(var_out)).pdf(x))
        for x, a, b in zip(margins[0], inside, outside, strict=True)
    ]
    assert online_lira(models)[0] == pytest.approx(ratio)


def test_points_count_what_lies_above_the_threshold() -> None:
    scores = np.array([9.0, 8.0, 7.0, 7.0, 5.0, 4.0, 3.0, 3.0, 2.0, 1.0])
    members = np.array([True, False, True, False, True, False, True, False, True, False])
    counts = [
        (point.false_positives, point.true_positives)
        for point in operating_points(scores, members, (0.1, 0.2, 0.4, 0.8, 1.0))
    ]
    # Non-members are 8, 7, 4, 3, 1. At equal scores nobody is taken.
    assert counts == [(0, 1), (1, 1), (2, 3), (4, 5), (4, 5)]
    assert area(scores, members) == pytest.approx((5 + 3.5 + 3 + 1.5 + 1) / 25)


def test_intervals_are_clopper_and_pearsons() -> None:
    for hits in (0, 7, 1000):
        found = binomtest(hits, 1000).proportion_ci(0.95, method="exact")
        assert Point(1, 1000, hits, 1000).interval(0.95) == pytest.approx((found.low, found.high), abs=1e-12)


def test_most_that_can_be_found() -> None:
    claim, delta = 1.5, 1e-4
    for rate in (0.0, *RATES, 0.5, 0.9):
        bound = most_found(ClaimCurve(claim, delta), rate)
        plain = math.exp(claim) * rate + delta
        assert bound == pytest.approx(min(plain, 1 - (1 - rate - delta) / math.exp(claim)))
        assert bound <= plain + 1e-12
    assert most_found(ClaimCurve(0.0, 0.0), 0.01) == pytest.approx(0.01)
    assert most_found(ClaimCurve(1e4, 0.0), 0.01) == 1.0
    for rate in RATES:
        gauss: Curve = GaussianCurve(0.8)
        assert most_found(gauss, rate) == pytest.approx(NORMAL.cdf(NORMAL.inv_cdf(rate) + 0.8))
        ledger = LedgerCurve([Event(1.0, 1.25, 1)], Adjacency.ADD_REMOVE)
        assert most_found(ledger, rate) == pytest.approx(most_found(gauss, rate), rel=5e-3)
        # The ledger's curve is one of those that its own (epsilon, delta) allows.
        whole = ClaimCurve(ledger.epsilon(1e-5), 1e-5)
        assert most_found(gauss, rate) < most_found(whole, rate)


def test_no_more_is_found_than_there_is() -> None:
    mu, delta = 1.5, 1e-5
    truth = GaussianCurve(mu)
    found = []
    for seed in range(4):
        generator = np.random.default_rng(seed)
        members = generator.random((4, 4000)) < 0.5
        scores = mu * members + generator.normal(size=members.shape)
        found.append(epsilon_found(scores, members, delta, 0.95))
        assert not breaks(truth, scores, members, 0.95)
        assert breaks(GaussianCurve(mu / 2), scores, members, 0.95)
    assert max(found) <= truth.epsilon(delta)
    assert min(found) > 0.5 * truth.epsilon(delta)


@pytest.mark.parametrize(
    ("margins", "members", "message"),
    [
        (np.zeros((3, 5)), np.zeros((3, 5), bool), "four models"),
        (np.zeros((4, 5)), np.zeros((4, 6), bool), "one coin"),
        (np.full((4, 5), np.nan), np.zeros((4, 5), bool), "diverged"),
        (np.zeros((4, 5)), np.zeros((4, 5), bool), "alike"),
    ],
)
def test_what_cannot_be_attacked_is_refused(margins, members, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Models(margins, members)
