"""One training step of one stream, with privacy and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from raptor.accounting.types import Release
from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.gradients.losses import loss_of
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.optimizer import ReleaseOptimizer
from raptor.dp.records import EncodedRecords
from raptor.dp.sampling import PoissonSampler
from raptor.dp.state import StreamState
from raptor.dp.team import Alone, Team


class Stream(Protocol):
    """Something that can make one training step, as long as there is budget for it."""

    @property
    def is_spent(self) -> bool: ...

    def step(self) -> None: ...


class PrivateStream:
    """Sample, clip and sum, add noise, update: one step of one role.

    Guarantee:
        Released is what the mechanism releases; the update is post-processing of it. Nothing is skipped: an
        empty sample makes a step of noise alone, and an expert without a record gets its noise and its
        optimizer step like any other. Assumes what sampler, engine, mechanism and team assume.
    """

    def __init__(
        self,
        sampler: PoissonSampler,
        engine: GradientEngine,
        rule: ClippingRule,
        mechanism: GaussianMechanism,
        optimizer: ReleaseOptimizer,
        records: EncodedRecords,
        physical_batch_size: int,
        device: torch.device,
        team: Team | None = None,
    ) -> None:
        records.require_unit(rule.unit)
        self._sampler = sampler
        self._engine = engine
        self._rule = rule
        self._mechanism = mechanism
        self._optimizer = optimizer
        self._records = records
        self._size = physical_batch_size
        self._device = device
        self._team = team or Alone()
        self._is_acquainted = False

    def step(self) -> None:
        sample = self._team.part(self._sampler.draw)
        with self._team.whole(self._engine.parameters):
            if self._team.is_in_step and not self._is_acquainted:
                self._acquaint()
            total = self._sum_of(sample[:0])
            batches = self._records.physical_batches(sample, self._size, self._device)
            while self._team.goes_on((batch := next(batches, None)) is not None):
                if batch is not None:
                    total.add(self._engine.clipped_sum(batch, self._rule))
                else:
                    # The others need this process in their pass. Any record will do: what comes of it is dropped.
                    self._sum_of(torch.zeros(1, dtype=torch.int64))
        mine = self._team.collect(total)
        self._optimizer.apply(self._team.spread(mine.unscaled(self._mechanism.release(mine))))

    def _acquaint(self) -> None:
        """Show the engine a batch whose rows cannot be taken for tokens, and drop what comes of it.

        Otherwise it makes its first pass in two parts where they could be, in this process and perhaps not in others.
        """
        for count in (2, 3):
            batch = self._records.take(torch.arange(min(count, len(self._records))), self._device)
            rows, tokens = batch.input_ids.shape
            if rows != tokens:
                self._engine.clipped_sum(batch, self._rule)
                break
        self._is_acquainted = True

    def _sum_of(self, indices: Tensor) -> ClippedSum:
        return self._engine.clipped_sum(self._records.take(indices, self._device), self._rule)

    @property
    def is_spent(self) -> bool:
        """Whether releases were lost in a crash, so that the last steps of the schedule are not paid for."""
        released = self._mechanism.released
        return self._optimizer.updates < released >= self._mechanism.stream.steps

    @property
    def name(self) -> str:
        return self._mechanism.stream.name

    def next_release(self, after: int) -> Release:
        """What the ledger would say about the release that follows after so many more of this stream."""
        release = self._mechanism.receipt(self._rule.sensitivity, self._optimizer.size)
        return replace(release, step=release.step + after, follows=None)

    def state(self) -> StreamState:
        """Where this stream stands."""
        return StreamState(
            released=self._mechanism.released,
            updates=self._optimizer.updates,
            coins=self._sampler.coins.position,
            noise=self._mechanism.noise.position,
            last=self._mechanism.last,
        )

    def tensors(self) -> dict[str, Tensor]:
        """What `restore` takes: parameters and optimizer. Not copied."""
        return self._optimizer.tensors()

    def restore(self, state: StreamState, tensors: Mapping[str, Tensor]) -> None:
        """Go on where `state` was taken.

        Raises:
            CheckpointError: the tensors are of other parameters.
        """
        self._mechanism.released, self._mechanism.last = state.released, state.last
        self._sampler.coins.seek(state.coins)
        self._mechanism.noise.seek(state.noise)
        self._optimizer.restore(tensors, state.updates)


class NonPrivateStream:
    """The same step without clipping and noise. It protects nobody and is for public records only."""

    is_spent = False

    def __init__(
        self,
        sampler: PoissonSampler,
        model: nn.Module,
        names: Sequence[str],
        optimizer: ReleaseOptimizer,
        records: EncodedRecords,
        config: TrainingConfig,
        device: torch.device,
    ) -> None:
        self._sampler = sampler
        self._model = model
        self._loss = loss_of(model)
        self._parameters = {name: model.get_parameter(name) for name in names}
        self._optimizer = optimizer
        self._records = records
        self._config = config
        self._device = device

    def step(self) -> None:
        total = {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.requires_grad_(True)
        sample = self._sampler.draw()
        for batch in self._records.physical_batches(sample, self._config.physical_batch_size, self._device):
            loss = self._loss(self._model, batch).sum()
            gradients = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
            for name, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
        self._optimizer.apply({name: value / self._config.batch_size for name, value in total.items()})
