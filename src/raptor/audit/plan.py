"""The audit of a privacy plan: its schedule on canaries, single releases, and the structure of its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from raptor.accounting.calibration import calibrate
from raptor.accounting.plan import PrivacyPlan, StreamPlan, plan_digest
from raptor.accounting.types import Adjacency, Event, EventShape
from raptor.audit.bounds import (
    LowerBound,
    family_bound,
    one_run_bound,
    trials_bound,
)
from raptor.audit.canaries import (
    CanarySet,
    MakeMechanism,
    MakeRule,
    plain_mechanism,
    plain_rule,
    run_schedule,
    run_trials,
)
from raptor.audit.curves import GaussianCurve, LedgerCurve, scaled
from raptor.audit.guesses import preset_guesses
from raptor.audit.structure import Finding, check_sensitivity, check_structure, observe_noise
from raptor.dp.streams import RandomSource
from raptor.errors import BudgetError

FORMAT = "raptor-audit/1"
# How many times more, or less, noise the ledger's curve is tried with.
STRENGTHS = (1 / 50, 3.0)
# The structural run: samples small enough that experts stay empty, and as many steps as a correlation needs.
_STRUCTURE_RATE = 0.3
_STRUCTURE_STEPS = 40
_CANARIES_AN_EXPERT = 3


@dataclass(frozen=True)
class AuditSettings:
    """How hard the audit tries.

    Attributes:
        canaries: canaries of the one run over the schedule.
        trials: independent releases of each stream.
        spare: coordinates without canaries in each block.
        confidence: of all lower bounds together.
        level: probability that a correct mechanism fails any one structural check.
        most_steps: steps of each stream that are audited at most.
    """

    canaries: int = 20_000
    trials: int = 4_000
    spare: int = 128
    confidence: float = 0.99
    level: float = 1e-4
    most_steps: int = 500


@dataclass(frozen=True)
class Comparison:
    """A claim, an upper bound on epsilon by the accountant, and what attacks found, lower bounds.

    Attributes:
        what: what was attacked.
        claim: epsilon of the audited releases at the plan's delta.
        bounds: found by different tests on the same attack.
    """

    what: str
    claim: float
    bounds: tuple[LowerBound, ...]

    @property
    def found(self) -> float:
        return max(bound.epsilon for bound in self.bounds)

    @property
    def passed(self) -> bool:
        return self.found <= self.claim


def audit_plan(
    plan: PrivacyPlan,
    settings: AuditSettings,
    randomness: RandomSource,
    *,
    epsilon: float | None = None,
    make_mechanism: MakeMechanism = plain_mechanism,
    make_rule: MakeRule = plain_rule,
) -> dict[str, Any]:
    """Attack the mechanism of a plan on canaries, and compare with what the plan claims.

    Args:
        epsilon: audit the plan's schedule at the noise for this epsilon instead.
        make_mechanism, make_rule: where a test plants a fault.

    Guarantee:
        No private record is read, so nothing is released and no budget is spent. Of a correct mechanism the audit
        reports a lower bound above the claim with probability at most 1 - confidence, and a failed structural
        check with at most `level` times the number of checks.

    Raises:
        BudgetError: the plan has no trained stream.
    """
    streams = _streams(plan, settings, epsilon)
    adjacency = Adjacency(plan.adjacency)
    confidence = 1 - (1 - settings.confidence) / (2 + len(streams))
    faults: dict[str, Any] = {"make_mechanism": make_mechanism, "make_rule": make_rule}
    schedule = _schedule(streams, plan.delta, adjacency, settings, confidence, randomness, faults)
    releases = [_release(stream, plan.delta, settings, confidence, randomness, faults) for stream in streams]
    findings = _structure(streams, settings, randomness, faults)
    passed = (
        schedule.passed and all(item.passed for item in releases) and all(item.passed for item in findings)
    )
    return {
        "format": FORMAT,
        "plan": plan_digest(plan.to_json()),
        "at_the_plans_noise": epsilon is None,
        "delta": plan.delta,
        "adjacency": adjacency.value,
        "confidence": settings.confidence,
        "generator": randomness.name,
        "passed": passed,
        "claim": schedule.claim,
        "lower_bound": schedule.found,
        "steps": {stream.name: stream.steps for stream in streams},
        "schedule": _comparison_json(schedule),
        "releases": [_comparison_json(item) for item in releases],
        "structure": [asdict(item) for item in findings],
    }


def _streams(plan: PrivacyPlan, settings: AuditSettings, epsilon: float | None) -> list[StreamPlan]:
    trained = [stream for stream in plan.streams if not stream.is_reserved and stream.steps]
    if not trained:
        raise BudgetError(
            "The privacy plan has no training stream with a step, so there is nothing to audit."
        )
    if epsilon is not None:
        shapes = [EventShape(stream.rate, stream.steps, stream.noise_multiplier) for stream in trained]
        noise = calibrate(shapes, epsilon, plan.delta, Adjacency(plan.adjacency)).noise_multipliers
        trained = [
            replace(stream, noise_multiplier=value) for stream, value in zip(trained, noise, strict=True)
        ]
    return [replace(stream, steps=min(stream.steps, settings.most_steps)) for stream in trained]


def _schedule(
    streams: Sequence[StreamPlan],
    delta: float,
    adjacency: Adjacency,
    settings: AuditSettings,
    confidence: float,
    randomness: RandomSource,
    faults: Mapping[str, Any],
) -> Comparison:
    experts = max(stream.blocks for stream in streams)
    canaries = CanarySet.draw(settings.canaries, randomness, experts)
    scores = run_schedule(streams, canaries, randomness, **faults)
    events: list[Event] = [event for stream in streams for event in stream.events(stream.steps)]
    choices = preset_guesses(settings.canaries)
    bounds = (
        one_run_bound(scores, canaries.included, choices, delta, confidence),
        family_bound(
            scores,
            canaries.included,
            choices,
            lambda strength: LedgerCurve(scaled(events, 1 / strength), adjacency),
            STRENGTHS,
            delta,
            confidence,
        ),
    )
    return Comparison("all steps", LedgerCurve(events, adjacency).epsilon(delta), bounds)


def _release(
    stream: StreamPlan,
    delta: float,
    settings: AuditSettings,
    confidence: float,
    randomness: RandomSource,
    faults: Mapping[str, Any],
) -> Comparison:
    # Without sampling the curve of one release is exactly Gaussian, as the bound assumes.
    alone = replace(stream, name=f"{stream.name}-alone", rate=1.0, steps=settings.trials)
    scores, bits = run_trials(alone, settings.trials, randomness, **faults)
    bound = trials_bound(scores, bits, delta, confidence)
    return Comparison(
        f"one {stream.name} release", GaussianCurve(1 / stream.noise_multiplier).epsilon(delta), (bound,)
    )


def _structure(
    streams: Sequence[StreamPlan],
    settings: AuditSettings,
    randomness: RandomSource,
    faults: Mapping[str, Any],
) -> list[Finding]:
    experts = max(stream.blocks for stream in streams)
    # All are in: how many a sample brings is then up to the sampler alone.
    canaries = CanarySet(np.ones(_CANARIES_AN_EXPERT * experts, dtype=np.bool_), experts, settings.spare)
    plans = {
        stream.name: replace(
            stream, name=f"{stream.name}-structure", rate=_STRUCTURE_RATE, steps=_STRUCTURE_STEPS
        )
        for stream in streams
    }
    noises = {name: observe_noise(plan, canaries, randomness, **faults) for name, plan in plans.items()}
    clipping = [check_sensitivity(stream, canaries, faults["make_rule"]) for stream in streams]
    return clipping + check_structure(plans, noises, settings.level)


def _comparison_json(item: Comparison) -> dict[str, Any]:
    return {
        "what": item.what,
        "claim": item.claim,
        "lower_bound": item.found,
        "passed": item.passed,
        "tests": [asdict(bound) for bound in item.bounds],
    }
