"""The training loop: alternating private streams, each with its own sampler, engine, mechanism and optimizer.

RAPTOR is algorithm 1 of arXiv 2609.05770: in every cycle shared steps on the shared parameters, then expert
steps on all experts of the protected layer, each step on a new Poisson sample. The monolithic baseline
(Tholoniat et al., arXiv 2402.07334) is one stream over everything with one clip and one noise. The non-private
baseline is the same schedule without clipping and noise; it is for public records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from raptor.accounting.plan import PrivacyPlan
from raptor.accounting.types import Adjacency, Unit
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import StreamConfig, TrainingConfig
from raptor.dp.gradients.engine import GradientEngine, JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import classification_loss
from raptor.dp.isolation import EngineSpec
from raptor.dp.mechanism import GaussianMechanism, ReleaseSink
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.sampling import PoissonSampler
from raptor.dp.streams import RandomSource
from raptor.dp.trainable import HEAD, TrainableSet, make_trainable
from raptor.errors import ParameterError
from raptor.moe.adapters import merge_lora
from raptor.moe.classifier import MoEClassifier

Method = Literal["raptor", "monolithic", "nonprivate"]
FINAL_SHARE = 0.1


class Stream(Protocol):
    """Something that can make one training step."""

    def step(self) -> None: ...


def resolve_device(name: str) -> torch.device:
    """The device that a parameter asks for; `auto` is the best there is.

    Raises:
        ParameterError: the device is not on this machine.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, present in available.items() if present))
    if not available.get(name, False):
        present = ", ".join(kind for kind, there in available.items() if there)
        raise ParameterError(
            f"training.device is {name!r}, which this machine does not have. It has: {present}."
        )
    return torch.device(name)


def random_source(config: TrainingConfig) -> RandomSource:
    """The source of coins and noise that the parameters ask for."""
    return RandomSource.secure() if config.seed is None else RandomSource.seeded(config.seed)


def engine_specs(
    trainable: TrainableSet, layer: int, config: TrainingConfig, method: Method = "raptor"
) -> list[EngineSpec]:
    """The engines of a method's private streams, by the streams' names; a stream without steps has none.

    The isolation gate checks what this gives, and the trainer uses what this gives.
    """
    if method == "monolithic":
        return [EngineSpec(MONOLITHIC, lambda model: JointGradients(model, trainable.joint))]
    specs = []
    if method == "raptor" and config.shared.steps_per_cycle:
        specs.append(EngineSpec(SHARED, lambda model: JointGradients(model, trainable.shared)))
    if method == "raptor" and config.expert.steps_per_cycle:
        specs.append(
            EngineSpec(
                EXPERT,
                lambda model: OwnerExpertGradients(model, layer, parameters=trainable.expert),
                (layer,),
            )
        )
    return specs


class _Optimizer:
    """Adam fed with releases in place of gradients: post-processing, it costs no privacy."""

    def __init__(
        self,
        model: MoEClassifier,
        names: Sequence[str],
        config: TrainingConfig,
        learning_rate: float,
        steps: int,
    ) -> None:
        self._parameters = {name: model.get_parameter(name) for name in names}
        head = [value for name, value in self._parameters.items() if name.startswith(HEAD)]
        body = [value for name, value in self._parameters.items() if not name.startswith(HEAD)]
        groups = [
            {"params": body, "lr": learning_rate},
            {"params": head, "lr": config.head_learning_rate or learning_rate},
        ]
        self._adam = torch.optim.Adam(
            [group for group in groups if group["params"]],
            betas=config.adam_betas,
            eps=config.adam_epsilon,
            fused=True,
        )
        final = FINAL_SHARE if config.schedule == "linear" else 1.0
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._adam, lambda step: 1.0 - (1.0 - final) * min(step / max(steps - 1, 1), 1.0)
        )

    def apply(self, update: dict[str, Tensor]) -> None:
        for name, value in update.items():
            self._parameters[name].grad = value
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self._schedule.step()


class PrivateStream:
    """Sample, clip and sum, add noise, update: one step of one role.

    Guarantee:
        Released is what the mechanism releases; the update is post-processing of it. Nothing is skipped: an
        empty sample makes a step of noise alone, and an expert without a record gets its noise and its
        optimizer step like any other. Assumes what sampler, engine and mechanism assume.
    """

    def __init__(
        self,
        sampler: PoissonSampler,
        engine: GradientEngine,
        rule: ClippingRule,
        mechanism: GaussianMechanism,
        optimizer: _Optimizer,
        records: EncodedRecords,
        physical_batch_size: int,
        device: torch.device,
    ) -> None:
        self._sampler = sampler
        self._engine = engine
        self._rule = rule
        self._mechanism = mechanism
        self._optimizer = optimizer
        self._records = records
        self._size = physical_batch_size
        self._device = device

    def step(self) -> None:
        sample = self._sampler.draw()
        total = self._engine.clipped_sum(self._records.take(sample[:0], self._device), self._rule)
        for batch in self._records.physical_batches(sample, self._size, self._device):
            total.add(self._engine.clipped_sum(batch, self._rule))
        self._optimizer.apply(self._mechanism.release(total))


class NonPrivateStream:
    """The same step without clipping and noise. It protects nobody and is for public records only."""

    def __init__(
        self,
        sampler: PoissonSampler,
        model: MoEClassifier,
        names: Sequence[str],
        optimizer: _Optimizer,
        records: EncodedRecords,
        config: TrainingConfig,
        device: torch.device,
    ) -> None:
        self._sampler = sampler
        self._model = model
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
            loss = classification_loss(self._model, batch).sum()
            gradients = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
            for name, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
        self._optimizer.apply({name: value / self._config.batch_size for name, value in total.items()})


class Trainer:
    """Builds the streams of a method and runs its schedule."""

    def __init__(
        self,
        model: MoEClassifier,
        records: EncodedRecords,
        plan: PrivacyPlan,
        config: TrainingConfig,
        randomness: RandomSource,
        sink: ReleaseSink,
    ) -> None:
        """The model is trained in place: it gets its adapters, if any, and is moved to the configured device."""
        self._device = resolve_device(config.device)
        self.trainable: TrainableSet = make_trainable(model, config, plan.layer)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._model = model.to(self._device).eval()
        self._records = records
        self._plan = plan
        self._config = config
        self._randomness = randomness
        self._sink = sink

    def steps(self, method: Method = "raptor") -> Iterator[int]:
        """Make the steps of the whole schedule one by one, yielding the number of each, from 0."""
        for number, stream in enumerate(self._schedule(method)):
            stream.step()
            yield number

    def train(self, method: Method = "raptor") -> None:
        """Run the whole schedule."""
        for _ in self.steps(method):
            pass

    @property
    def keystreams(self) -> tuple[str, ...]:
        """Purposes of the keystreams of coins and noise that were handed out."""
        return tuple(self._randomness.given)

    def finish(self) -> None:
        """Fold adapters into the weights, after training: the model is then one like before, and can be saved.

        Raises:
            ModelError: an adapter is missing or would be left over.
        """
        if self._config.trainable == "lora":
            merge_lora(self._model)

    def _schedule(self, method: Method) -> list[Stream]:
        config = self._config
        total_steps = config.steps(config.shared) + config.steps(config.expert)
        engines = {
            spec.name: spec.build(self._model)
            for spec in engine_specs(self.trainable, self._plan.layer, config, method)
        }
        if method == "raptor":
            cycle: list[Stream] = []
            for name, stream in ((SHARED, config.shared), (EXPERT, config.expert)):
                if name in engines:
                    cycle += [self._private(name, engines[name], stream)] * stream.steps_per_cycle
            return cycle * config.cycles
        if method == "monolithic":
            return [self._private(MONOLITHIC, engines[MONOLITHIC], config.shared)] * total_steps
        names = self.trainable.joint
        return [
            NonPrivateStream(
                self._sampler("nonprivate", config.batch_size / self._plan.population),
                self._model,
                names,
                _Optimizer(self._model, names, config, config.shared.learning_rate, total_steps),
                self._records,
                config,
                self._device,
            )
        ] * total_steps

    def _sampler(self, name: str, rate: float) -> PoissonSampler:
        return PoissonSampler(len(self._records), rate, self._randomness.stream(f"{name}/coins"))

    def _private(self, name: str, engine: GradientEngine, config: StreamConfig) -> PrivateStream:
        plan = self._plan.stream(name)
        return PrivateStream(
            self._sampler(name, plan.rate),
            engine,
            ClippingRule(plan.clipping_norm, Adjacency(self._plan.adjacency), Unit(self._plan.unit)),
            GaussianMechanism(
                plan, self._randomness.stream(f"{name}/noise"), self._randomness.name, self._sink
            ),
            _Optimizer(self._model, engine.parameters, self._config, config.learning_rate, plan.steps),
            self._records,
            self._config.physical_batch_size,
            self._device,
        )
