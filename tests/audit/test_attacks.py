"""Attacks on the mechanism: below the claim when it is right, above it when a fault is planted."""

from __future__ import annotations

import pytest

from raptor.accounting.plan import StreamPlan
from raptor.accounting.types import Adjacency
from raptor.audit.bounds import LowerBound, f_dp_bound, family_bound
from raptor.audit.canaries import CanarySet, run_schedule
from raptor.audit.curves import LedgerCurve, scaled
from raptor.audit.guesses import Guesses, preset_guesses
from raptor.audit.plan import AuditSettings, audit_plan, plan_digest
from raptor.dp.streams import RandomSource
from raptor.errors import BudgetError
from tests.audit.faults import CORRECT, DELTA, FAULTS, RELEASE_NOISE, SEEN_BY_SCORES, one_release, small_plan

CANARIES = 10_000
CHOICE = [Guesses(700, 700)]
# Epsilon 2.92 at this delta.
FEW_STEPS = StreamPlan("expert", 0.5, 2.5, 10, 0.5, 16.0, 8)


def attack_release(seed: int, claim: float, faults: dict) -> LowerBound:
    """One full-batch release; its curve is Gaussian."""
    randomness = RandomSource.seeded(seed)
    plan = one_release(RELEASE_NOISE[claim])
    canaries = CanarySet.draw(CANARIES, randomness, plan.blocks)
    scores = run_schedule([plan], canaries, randomness, **faults)
    return f_dp_bound(scores, canaries.included, CHOICE, DELTA, 0.95)


def attack_steps(seed: int, faults: dict) -> tuple[LowerBound, float]:
    """Some Poisson-subsampled steps, against the ledger's own curve."""
    randomness = RandomSource.seeded(seed)
    canaries = CanarySet.draw(CANARIES, randomness, FEW_STEPS.blocks)
    scores = run_schedule([FEW_STEPS], canaries, randomness, **faults)
    events = FEW_STEPS.events(FEW_STEPS.steps)

    def family(strength: float) -> LedgerCurve:
        return LedgerCurve(scaled(events, 1 / strength), Adjacency.ADD_REMOVE)

    bound = family_bound(
        scores, canaries.included, preset_guesses(CANARIES), family, (0.02, 3.0), DELTA, 0.95
    )
    return bound, family(1.0).epsilon(DELTA)


@pytest.mark.parametrize("claim", RELEASE_NOISE)
def test_a_correct_release_stays_below_its_claim(claim: float) -> None:
    found = [attack_release(seed, claim, CORRECT).epsilon for seed in range(5)]
    assert max(found) <= claim
    assert min(found) >= 0.4 * claim


@pytest.mark.exhaustive
@pytest.mark.parametrize("claim", RELEASE_NOISE)
def test_a_hundred_correct_releases(claim: float) -> None:
    found = [attack_release(seed, claim, CORRECT).epsilon for seed in range(100, 200)]
    print(claim, min(found), sorted(found)[50], max(found))
    assert sum(value <= claim for value in found) >= 95
    assert sum(value >= 0.4 * claim for value in found) >= 95


def test_correct_steps_stay_below_the_ledgers_claim() -> None:
    for seed in range(2):
        bound, claim = attack_steps(seed, CORRECT)
        assert 0.25 * claim < bound.epsilon <= claim


@pytest.mark.exhaustive
def test_a_hundred_correct_schedules() -> None:
    found = [attack_steps(seed, CORRECT) for seed in range(100, 200)]
    values = sorted(bound.epsilon for bound, _ in found)
    print(found[0][1], values[0], values[50], values[-1])
    assert sum(bound.epsilon <= claim for bound, claim in found) >= 95


@pytest.mark.parametrize("fault", SEEN_BY_SCORES)
@pytest.mark.parametrize("claim", RELEASE_NOISE)
def test_a_faulty_release_breaks_its_claim(claim: float, fault: str) -> None:
    assert attack_release(0, claim, FAULTS[fault]).epsilon > claim


@pytest.mark.parametrize("fault", SEEN_BY_SCORES)
def test_faulty_steps_break_the_ledgers_claim(fault: str) -> None:
    bound, claim = attack_steps(0, FAULTS[fault])
    assert bound.epsilon > claim


SMALL = AuditSettings(canaries=2000, trials=600, spare=64, confidence=0.99)


def test_the_audit_of_a_plan_passes_on_the_correct_mechanism() -> None:
    plan = small_plan()
    results = audit_plan(plan, SMALL, RandomSource.seeded(4))
    assert results["passed"] is True
    assert 0 < results["lower_bound"] <= results["claim"]
    assert results["steps"] == {"shared": 5, "expert": 5}
    assert results["plan"] == plan_digest(plan.to_json())
    assert [item["what"] for item in results["releases"]] == ["one shared release", "one expert release"]
    again = audit_plan(plan, SMALL, RandomSource.seeded(4))
    assert again == results


@pytest.mark.parametrize("fault", FAULTS)
def test_the_audit_of_a_plan_fails_on_every_fault(fault: str) -> None:
    results = audit_plan(small_plan(), SMALL, RandomSource.seeded(5), **FAULTS[fault])
    assert results["passed"] is False


def test_a_configured_epsilon_takes_the_noise_for_it() -> None:
    results = audit_plan(small_plan(), SMALL, RandomSource.seeded(6), epsilon=1.0)
    assert results["claim"] == pytest.approx(1.0, rel=1e-3)
    assert results["at_the_plans_noise"] is False
    assert results["passed"] is True


def test_a_long_schedule_is_cut_and_compared_with_what_was_run() -> None:
    plan = small_plan(noise=3.0)
    short = AuditSettings(canaries=500, trials=200, spare=16, most_steps=2)
    results = audit_plan(plan, short, RandomSource.seeded(7))
    assert results["steps"] == {"shared": 2, "expert": 2}
    assert results["claim"] < audit_plan(plan, SMALL, RandomSource.seeded(7))["claim"]


def test_a_plan_without_training_has_nothing_to_audit() -> None:
    plan = small_plan(steps=0)
    with pytest.raises(BudgetError, match="nothing to audit"):
        audit_plan(plan, SMALL, RandomSource.seeded(8))
