"""Structural checks: silent on the correct mechanism, and each fault is named by the check that is for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from raptor.audit.canaries import CanarySet
from raptor.audit.structure import Finding, Noise, check_sensitivity, check_structure, observe_noise
from raptor.dp.streams import RandomSource
from raptor.errors import ParameterError
from tests.audit.faults import CORRECT, FAULTS, small_plan

LEVEL = 1e-4


def find(seed: int, faults: dict) -> dict[tuple[str, str], Finding]:
    randomness = RandomSource.seeded(seed)
    canaries = CanarySet(np.ones(12, dtype=np.bool_), 4, spare=64)
    plans = {
        name: dataclasses.replace(small_plan().stream(name), rate=0.3, steps=30)
        for name in ("shared", "expert")
    }
    noises = {name: observe_noise(plan, canaries, randomness, **faults) for name, plan in plans.items()}
    found = check_structure(plans, noises, LEVEL)
    found += [check_sensitivity(plan, canaries, faults["make_rule"]) for plan in plans.values()]
    return {(item.check, item.stream): item for item in found}


def failed(seed: int, faults: dict) -> set[tuple[str, str]]:
    return {key for key, item in find(seed, faults).items() if not item.passed}


def test_the_correct_mechanism_passes() -> None:
    for seed in range(6):
        assert failed(seed, CORRECT) == set()


def test_some_experts_are_empty_so_that_skipping_would_show() -> None:
    found = find(0, CORRECT)[("no block skipped", "expert")]
    assert found.what.startswith("0 of 120 released blocks exactly zero; ")
    assert int(found.what.split("; ")[1].split()[0]) > 10


@pytest.mark.parametrize(
    ("fault", "check", "stream"),
    [
        ("half the noise", "noise deviation", "shared"),
        ("no noise", "noise deviation", "expert"),
        ("clipped by token", "clipping", "shared"),
        ("clipped by token", "clipping", "expert"),
        ("empty experts skipped", "no block skipped", "expert"),
        ("realised counts", "noise deviation", "expert"),
        ("realised counts", "noise ignores counts", "expert"),
        ("realised counts", "noise ignores counts", "shared"),
    ],
)
def test_a_fault_is_named(fault: str, check: str, stream: str) -> None:
    for seed in range(2):
        assert (check, stream) in failed(seed, FAULTS[fault])


def test_noise_that_two_streams_share_is_found() -> None:
    generator = np.random.default_rng(1)
    plan = small_plan().stream("expert")
    counts, whole = generator.integers(0, 5, size=(30, 1)), np.zeros((30, 1), dtype=bool)
    one, other = (Noise(generator.normal(size=(30, 1, 64)), counts, whole) for _ in range(2))
    for second, passes in ((other, True), (dataclasses.replace(one, values=-one.values), False)):
        found = check_structure({"a": plan, "b": plan}, {"a": one, "b": second}, LEVEL)
        assert {f.check: f.passed for f in found}["streams independent"] is passes


def test_noise_that_steps_or_experts_share_is_found() -> None:
    generator = np.random.default_rng(0)
    fresh = generator.normal(size=(30, 4, 64))
    plan = small_plan().stream("expert")
    counts, whole = generator.integers(0, 5, size=(30, 4)), np.zeros((30, 4), dtype=bool)
    same_step, same_expert = fresh.copy(), fresh.copy()
    same_step[7] = same_step[6]
    same_expert[:, 2] = same_expert[:, 1]
    for values, passes in ((fresh, True), (same_step, False), (same_expert, False)):
        found = {f.check: f for f in check_structure({"e": plan}, {"e": Noise(values, counts, whole)}, LEVEL)}
        assert found["noise independent"].passed is passes


def test_spare_coordinates_are_needed() -> None:
    with pytest.raises(ParameterError, match="spare coordinates"):
        observe_noise(
            small_plan().stream("shared"), CanarySet(np.ones(4, dtype=np.bool_)), RandomSource.seeded(0)
        )
