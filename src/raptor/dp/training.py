"""The training loop: alternating private streams, each with its own sampler, engine, mechanism and optimizer.

RAPTOR is algorithm 1 of arXiv 2609.05770: in every cycle shared steps on the shared parameters, then expert
steps on all experts of the protected layer, each step on a new Poisson sample. The monolithic baseline
(Tholoniat et al., arXiv 2402.07334) is one stream over everything with one clip and one noise. The non-private
baseline is the same schedule without clipping and noise; it is for public records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from raptor.accounting.plan import PrivacyPlan
from raptor.accounting.types import Adjacency, Release, Unit
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import RoleGradients, engine_specs
from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.mechanism import GaussianMechanism, ReleaseSink
from raptor.dp.memory import keep_freed_memory
from raptor.dp.methods import ONE_STREAM, Method
from raptor.dp.noise_aware import Deviation
from raptor.dp.optimizer import ReleaseOptimizer
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.sampling import PoissonSampler
from raptor.dp.state import TrainingState
from raptor.dp.steps import NonPrivateStream, PrivateStream, Stream
from raptor.dp.streams import RandomSource
from raptor.dp.team import Alone, Team
from raptor.dp.trainable import TrainableSet, make_trainable
from raptor.errors import ParameterError
from raptor.moe.adapters import merge_lora
from raptor.moe.experts import by_expert
from raptor.moe.families import sparse_layer


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


class Trainer:
    """Builds the streams of a method and runs its schedule."""

    def __init__(
        self,
        model: nn.Module,
        records: EncodedRecords,
        plan: PrivacyPlan,
        config: TrainingConfig,
        randomness: RandomSource,
        sink: ReleaseSink,
        team: Team | None = None,
    ) -> None:
        """The model is trained in place: it gets its adapters, if any, and is moved to the configured device.

        `team` is that of this process, where several train together.
        """
        self._device = resolve_device(config.device)
        self.trainable: TrainableSet = make_trainable(model, config, plan.layers)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        keep_freed_memory()
        self._team = team or Alone()
        self._model = model.to(self._device).eval()
        self._team.place(self._model)
        self._records = records
        self._plan = plan
        self._config = config
        self._randomness = randomness
        self._sink = sink
        self._running: list[Stream] = []
        self._finished = 0

    def steps(self, method: Method = "raptor") -> Iterator[int]:
        """Make the steps of the whole schedule one by one, yielding the number of each, from 0."""
        self.begin(method)
        yield from self.remaining()

    def begin(self, method: Method = "raptor", state: TrainingState | None = None) -> None:
        """Make ready for the first step, or for the one after `state`.

        Raises:
            CheckpointError: the state is of other parameters than those that are trained.
        """
        if state is not None:
            self._randomness = state.randomness
        self._running = self._schedule(method)
        self._finished = 0
        if state is not None:
            self._restore(state)

    def remaining(self) -> Iterator[int]:
        """Make the steps that are left, yielding the number of each.

        Where releases were lost in a crash, the last steps of the schedule are not paid for, and left out.
        """
        for number in range(self._finished, len(self._running)):
            if self._running[number].is_spent:
                return
            self._running[number].step()
            self._finished = number + 1
            yield number

    @property
    def left_out(self) -> int:
        """Steps of the schedule that were not made."""
        return len(self._running) - self._finished

    def state(self) -> TrainingState:
        """Where the run stands, between two steps. Private; its tensors are those in use, not copies."""
        streams = self._private_streams()
        return TrainingState(
            finished=self._finished,
            randomness=self._randomness,
            streams={name: stream.state() for name, stream in streams.items()},
            tensors={
                f"{name}:{key}": value
                for name, stream in streams.items()
                for key, value in stream.tensors().items()
            },
        )

    def release_after(self, more: int) -> Release | None:
        """What the ledger would say about the release after `more` further ones; None after the last one."""
        step = self._finished + more
        stream = self._running[step] if step < len(self._running) else None
        if not isinstance(stream, PrivateStream):
            return None
        return stream.next_release(sum(other is stream for other in self._running[self._finished : step]))

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

    def _private_streams(self) -> dict[str, PrivateStream]:
        return {stream.name: stream for stream in self._running if isinstance(stream, PrivateStream)}

    def _restore(self, state: TrainingState) -> None:
        """Put weights, optimizers, counts and keystreams where they were."""
        self._finished = state.finished
        for name, stream in self._private_streams().items():
            prefix = f"{name}:"
            tensors = {
                key.removeprefix(prefix): value
                for key, value in state.tensors.items()
                if key.startswith(prefix)
            }
            stream.restore(state.streams[name], tensors)

    def _schedule(self, method: Method) -> list[Stream]:
        config = self._config
        total_steps = config.steps(config.shared) + config.steps(config.expert)
        single = ONE_STREAM.get(method)
        if single is not None and not single.is_private:
            names = self.trainable.of(single.scope)
            return [
                NonPrivateStream(
                    self._sampler("nonprivate", config.batch_size / self._plan.population),
                    self._model,
                    names,
                    self._optimizer(names, total_steps),
                    self._records,
                    config,
                    self._device,
                )
            ] * total_steps
        with self._team.whole():
            engines = {
                spec.name: spec.build(self._model)
                for spec in engine_specs(
                    self.trainable, self._plan.layers, config, method, self._plan.expert_norms
                )
            }
        if single is not None:
            engine = RoleGradients(engines, config) if single.by_role else engines[MONOLITHIC]
            return [self._private(MONOLITHIC, engine)] * total_steps
        cycle: list[Stream] = []
        for name, stream in ((SHARED, config.shared), (EXPERT, config.expert)):
            if name in engines:
                cycle += [self._private(name, engines[name])] * stream.steps_per_cycle
        return cycle * config.cycles

    def _sampler(self, name: str, rate: float) -> PoissonSampler:
        return PoissonSampler(len(self._records), rate, self._randomness.stream(f"{name}/coins"))

    def _optimizer(
        self,
        names: Sequence[str],
        steps: int,
        deviations: Mapping[str, Deviation] | None = None,
        by_block: Sequence[float] = (),
    ) -> ReleaseOptimizer:
        # Experts are told apart in a single layer only.
        stacks = sparse_layer(self._model, self._plan.layers[0]).bank().stacks if by_block else ()
        factors = by_expert([stack for stack in stacks if set(stack.names) <= set(names)], by_block)
        return ReleaseOptimizer(
            self._model, names, self._config, steps, self.trainable.all_experts, deviations, factors
        )

    def _private(self, name: str, engine: GradientEngine) -> PrivateStream:
        plan = self._plan.stream(name)
        by_block = plan.block_steps or any(isinstance(scale, Tensor) for scale in engine.scales.values())
        if self._team.size > 1 and by_block:
            raise ParameterError(
                "Clipping norms or step sizes of single experts are not known to a training in several processes, in "
                "which a parameter lies in parts. Set training.expert_norms=common and training.expert_steps=same, or "
                "train in one process."
            )
        deviation = plan.noise_deviation / plan.denominator
        deviations = {each: deviation / engine.scales.get(each, 1.0) for each in engine.parameters}
        return PrivateStream(
            self._sampler(name, plan.rate),
            engine,
            ClippingRule(plan.clipping_norm, Adjacency(self._plan.adjacency), Unit(self._plan.unit)),
            GaussianMechanism(
                plan,
                self._randomness.stream(f"{name}/noise"),
                self._randomness.name,
                self._sink,
                self._team.seal,
            ),
            self._optimizer(engine.parameters, plan.steps, deviations, plan.block_steps),
            self._records,
            self._config.physical_batch_size,
            self._device,
            self._team,
        )
