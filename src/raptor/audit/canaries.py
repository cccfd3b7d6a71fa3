"""Canaries: made-up records whose gradients nobody could hide better or worse than the worst real record.

Canary i has a gradient along coordinate i of the shared parameters and along a coordinate of its owner expert's
block that no other canary uses, far longer than the clipping norm. After clipping it adds C v_i to a sum, which is
the most that one record may add, and the v_i are orthonormal: one canary says nothing about another.

They run through the code that trains: `PrivateStream` with its Poisson sampler, `clip_and_sum`, and
`GaussianMechanism`. Only the model is missing: a tap that knows each record's gradient stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raptor.accounting.plan import StreamPlan
from raptor.accounting.types import Release
from raptor.audit.guesses import Bits, Scores
from raptor.dp.clipping import ClippedSum, ClippingRule, Scales, clip_and_sum
from raptor.dp.gradients.taps import Tap
from raptor.dp.mechanism import GaussianMechanism, ReleaseSink
from raptor.dp.records import Batch, EncodedRecords
from raptor.dp.sampling import PoissonSampler
from raptor.dp.steps import PrivateStream
from raptor.dp.streams import RandomSource

LENGTH = 100.0
"""Norm of a canary's gradient over the clipping norm, so that clipping has something to do."""

_CPU = torch.device("cpu")
_PHYSICAL_BATCH = 4096

MakeMechanism = Callable[[StreamPlan, RandomSource, str, ReleaseSink], GaussianMechanism]
MakeRule = Callable[[StreamPlan], ClippingRule]


@dataclass(frozen=True)
class CanarySet:
    """Canaries, who owns them and which of them are in the data.

    Attributes:
        included: (canaries,) the fair coins of the audit.
        experts: number of expert blocks; canary i is owned by expert i mod `experts`.
        spare: coordinates of each block that no canary uses, where noise can be seen alone.
    """

    included: Bits
    experts: int = 1
    spare: int = 0

    @classmethod
    def draw(cls, canaries: int, coins: RandomSource, experts: int = 1, spare: int = 0) -> CanarySet:
        """`canaries` canaries, each in by a fair coin."""
        return cls(coins.stream("audit/canaries").coins(canaries, 0.5).numpy(), experts, spare)

    def __len__(self) -> int:
        return len(self.included)

    @property
    def records(self) -> EncodedRecords:
        """The canaries that are in, as records: the only token of each is its number."""
        numbers = torch.from_numpy(np.flatnonzero(self.included))
        return EncodedRecords(
            input_ids=numbers[:, None].int(),
            lengths=torch.ones_like(numbers),
            labels=torch.zeros_like(numbers),
            owners=numbers % self.experts,
        )

    def block_size(self, blocks: int) -> int:
        """Coordinates of a block when there are so many: 1 for the shared parameters, else one an expert."""
        return -(-len(self) // blocks) + self.spare

    def signals(self, release: dict[str, Tensor], blocks: int) -> Scores:
        """(canaries,) the coordinate of each canary in a release."""
        values = torch.stack(list(release.values())).double().numpy()
        numbers = np.arange(len(self))
        return np.asarray(values[numbers % blocks, numbers // blocks], dtype=np.float64)


class CanaryTap(Tap):
    """Per-record gradients of canaries, where other taps have those of a module."""

    def __init__(self, canaries: CanarySet, blocks: int, norm: float) -> None:
        super().__init__(block_names(blocks))
        self._size = canaries.block_size(blocks)
        self._blocks = blocks
        self._norm = norm
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._lengths = torch.zeros(0)

    def read(self, batch: Batch) -> None:
        """Take the gradients of a batch of canaries."""
        self._numbers = batch.input_ids[:, 0]
        self._lengths = torch.full((len(batch),), LENGTH * self._norm)

    def _attach(self) -> None:
        pass

    def _forget(self) -> None:
        self._numbers, self._lengths = self._numbers[:0], self._lengths[:0]

    def squared_norms(self) -> Tensor:
        return self._lengths.square()

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        flat = torch.zeros(self._blocks * self._size)
        places = self._numbers % self._blocks * self._size + self._numbers // self._blocks
        flat.index_add_(0, places, factors * self._lengths)
        return dict(zip(self.parameters, flat.view(self._blocks, self._size), strict=True))

    def erase(self, records: Tensor) -> None:
        self._lengths = self._lengths.masked_fill(records, 0.0)


class CanaryGradients:
    """A gradient engine for canaries; clips with `clip_and_sum` like those for models."""

    def __init__(self, canaries: CanarySet, blocks: int, norm: float) -> None:
        self._tap = CanaryTap(canaries, blocks, norm)
        self.parameters = self._tap.parameters
        self.scales: Scales = {}

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        """Sum over the batch of clipped gradients; a batch without canaries gives zeros."""
        self._tap.read(batch)
        return clip_and_sum([self._tap], torch.ones(len(batch), dtype=torch.bool), rule)


class MemorySink:
    """Counts releases that are written nowhere: of made-up records, there is nothing to account for."""

    def __init__(self) -> None:
        self.releases = 0

    def append(self, release: Release) -> None:
        self.releases += 1


class Likelihood:
    """Adds up how much more likely each canary's releases are with it in the data than without.

    With y the released coordinate times D / C, y is N(0, s^2) without the canary, and with it a mixture of N(0, s^2)
    and N(1, s^2) of weight q. The sum over steps of log((1 - q) + q exp((2 y - 1) / (2 s^2))) is the best statistic
    of an attacker who sees all releases (Neyman and Pearson), since all but this coordinate is the same for both.
    """

    def __init__(self, canaries: CanarySet, plan: StreamPlan) -> None:
        self._canaries = canaries
        self._plan = plan
        self.scores: Scores = np.zeros(len(canaries))

    def apply(self, update: dict[str, Tensor]) -> None:
        plan = self._plan
        y = self._canaries.signals(update, plan.blocks) * (plan.denominator / plan.clipping_norm)
        z = (2 * y - 1) / (2 * plan.noise_multiplier**2)
        if plan.rate == 1:
            self.scores = self.scores + z
            return
        self.scores = self.scores + np.logaddexp(np.log1p(-plan.rate), np.log(plan.rate) + z)


class Recorder:
    """Keeps releases as they are, in the order of the steps."""

    def __init__(self) -> None:
        self.releases: list[npt.NDArray[np.float64]] = []

    def apply(self, update: dict[str, Tensor]) -> None:
        """Keeps (blocks, size) a step."""
        self.releases.append(torch.stack(list(update.values())).double().numpy().copy())


def block_names(blocks: int) -> tuple[str, ...]:
    """Parameter names of a stream of so many blocks."""
    return ("shared",) if blocks == 1 else tuple(f"expert.{number}" for number in range(blocks))


def plain_rule(plan: StreamPlan) -> ClippingRule:
    """The rule that training clips with."""
    return ClippingRule(plan.clipping_norm)


def plain_mechanism(
    plan: StreamPlan, randomness: RandomSource, generator: str, sink: ReleaseSink
) -> GaussianMechanism:
    """The mechanism that training releases with, with its own noise stream."""
    return GaussianMechanism(plan, randomness.stream(f"audit/{plan.name}/noise"), generator, sink)


def private_stream(
    plan: StreamPlan,
    canaries: CanarySet,
    observer: Likelihood | Recorder,
    randomness: RandomSource,
    *,
    make_mechanism: MakeMechanism = plain_mechanism,
    make_rule: MakeRule = plain_rule,
) -> PrivateStream:
    """A stream of the training loop on canaries, with an observer in the place of the optimizer.

    Args:
        make_mechanism, make_rule: where a test plants a fault.
    """
    records = canaries.records
    return PrivateStream(
        PoissonSampler(len(records), plan.rate, randomness.stream(f"audit/{plan.name}/coins")),
        CanaryGradients(canaries, plan.blocks, plan.clipping_norm),
        make_rule(plan),
        make_mechanism(plan, randomness, randomness.name, MemorySink()),
        # The loop asks nothing of an optimizer but `apply`.
        cast(Any, observer),
        records,
        _PHYSICAL_BATCH,
        _CPU,
    )


def run_schedule(
    plans: Sequence[StreamPlan],
    canaries: CanarySet,
    randomness: RandomSource,
    *,
    make_mechanism: MakeMechanism = plain_mechanism,
    make_rule: MakeRule = plain_rule,
) -> Scores:
    """All steps of all streams on one set of canaries; (canaries,) log-likelihood ratios, higher meaning "in".

    The order of the steps plays no part: canaries' gradients do not depend on the weights.
    """
    total: Scores = np.zeros(len(canaries))
    for plan in plans:
        observer = Likelihood(canaries, plan)
        stream = private_stream(
            plan, canaries, observer, randomness, make_mechanism=make_mechanism, make_rule=make_rule
        )
        for _ in range(plan.steps):
            stream.step()
        total = total + observer.scores
    return total


def run_trials(
    plan: StreamPlan,
    trials: int,
    randomness: RandomSource,
    *,
    make_mechanism: MakeMechanism = plain_mechanism,
    make_rule: MakeRule = plain_rule,
) -> tuple[Scores, Bits]:
    """Independent releases of one canary that is in by a fair coin each time: (trials,) scores and coins.

    Each trial clips and calls the mechanism anew. `plan` must have rate 1 and at least `trials` steps.
    """
    alone = CanarySet(np.ones(1, dtype=np.bool_), plan.blocks)
    everyone = torch.arange(1)
    engine = CanaryGradients(alone, plan.blocks, plan.clipping_norm)
    mechanism = make_mechanism(plan, randomness, randomness.name, MemorySink())
    rule = make_rule(plan)
    bits = randomness.stream(f"audit/{plan.name}/trials").coins(trials, 0.5).numpy()
    scores = np.zeros(trials)
    for trial, is_in in enumerate(bits):
        batch = alone.records.take(everyone[: int(is_in)], _CPU)
        release = mechanism.release(engine.clipped_sum(batch, rule))
        scores[trial] = alone.signals(release, plan.blocks)[0]
    return scores, bits
