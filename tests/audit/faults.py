"""Faults to plant in the mechanism, and plans to plant them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Adjacency, Unit
from raptor.audit.canaries import plain_mechanism, plain_rule
from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.mechanism import GaussianMechanism

DELTA = 1e-5
# Noise multipliers of one Gaussian release at epsilon 1 and 3 and this delta.
RELEASE_NOISE = {1.0: 3.7306, 3.0: 1.3906}
TOKENS = 8


class ScaledNoise:
    """A noise stream whose normals are too small."""

    def __init__(self, stream: Any, factor: float) -> None:
        self._stream = stream
        self._factor = factor

    def normals(self, shape: Sequence[int]) -> Tensor:
        return self._stream.normals(shape) * self._factor


class SkipsEmptyBlocks(GaussianMechanism):
    """Leaves a block alone when no record reached it."""

    def release(self, total: ClippedSum) -> dict[str, Tensor]:
        noisy = super().release(total)
        return {
            name: value if total.tensors[name].any() else torch.zeros_like(value)
            for name, value in noisy.items()
        }


class RealisedCounts(GaussianMechanism):
    """Divides by how many records reached a block, in the place of the public constant."""

    def release(self, total: ClippedSum) -> dict[str, Tensor]:
        noisy = super().release(total)
        # Canaries use different coordinates, so those that are not zero can be counted.
        counts = {name: max(int(value.count_nonzero()), 1) for name, value in total.tensors.items()}
        return {name: value * (self.stream.denominator / counts[name]) for name, value in noisy.items()}


@dataclass(frozen=True)
class PerTokenRule(ClippingRule):
    """Clips each of a record's tokens to C, as if they were records; all have the same gradient."""

    def factors(self, squared_norms: Tensor) -> Tensor:
        return super().factors(squared_norms / TOKENS**2) * TOKENS


def scaled_noise(factor: float) -> Any:
    def make(plan, randomness, generator, sink):
        stream = ScaledNoise(randomness.stream(f"audit/{plan.name}/noise"), factor)
        return GaussianMechanism(plan, stream, generator, sink)

    return make


def with_mechanism(kind: type[GaussianMechanism]) -> Any:
    def make(plan, randomness, generator, sink):
        return kind(plan, randomness.stream(f"audit/{plan.name}/noise"), generator, sink)

    return make


def per_token(plan: StreamPlan) -> ClippingRule:
    return PerTokenRule(plan.clipping_norm)


CORRECT = {"make_mechanism": plain_mechanism, "make_rule": plain_rule}
FAULTS = {
    "half the noise": {**CORRECT, "make_mechanism": scaled_noise(0.5)},
    "no noise": {**CORRECT, "make_mechanism": scaled_noise(0.0)},
    "clipped by token": {**CORRECT, "make_rule": per_token},
    "empty experts skipped": {**CORRECT, "make_mechanism": with_mechanism(SkipsEmptyBlocks)},
    "realised counts": {**CORRECT, "make_mechanism": with_mechanism(RealisedCounts)},
}
SEEN_BY_SCORES = ("half the noise", "no noise", "clipped by token")


def one_release(noise: float, blocks: int = 8) -> StreamPlan:
    return StreamPlan("expert", 1.0, noise, 1, 0.5, 16.0, blocks)


def small_plan(noise: float = 2.0, rate: float = 0.5, steps: int = 5) -> PrivacyPlan:
    streams = (
        StreamPlan("shared", rate, noise, steps, 1.0, 64.0),
        StreamPlan("expert", rate, noise, steps, 0.5, 16.0, 4),
        StreamPlan("evaluation", 1.0, 20.0, 2, 1.0, 1.0),
    )
    return PrivacyPlan(
        unit=Unit.RECORD,
        adjacency=Adjacency.ADD_REMOVE,
        epsilon_target=5.0,
        delta=DELTA,
        epsilon_planned=5.0,
        epsilon_split_sum=6.0,
        population=128,
        population_source="declared",
        layers=(1,),
        generator="secure:aes-256-ctr/os-entropy",
        taken_as_public=("The number of records.",),
        streams=streams,
    )
