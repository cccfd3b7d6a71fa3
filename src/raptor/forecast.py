"""What a run would cost, from its public parameters alone: noise, epsilon, time, memory, and three other ways.

No record is read. Time is measured on made-up records of full length.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.errors import BudgetError, ParameterError

FACTORS = (2, 4)
DECLARED = "declared: privacy.population"
# An alternative may take so many times as long, or have so many times the noise.
PATIENCE = 4.0
NOISIER = 2.0


@dataclass(frozen=True)
class Stream:
    """One stream: `epsilon` is what it would cost if nothing else were released."""

    name: str
    steps: int
    noise_multiplier: float
    epsilon: float


@dataclass(frozen=True)
class Costs:
    """What a plan costs.

    Attributes:
        epsilon: of all streams in one ledger.
        streams: what is released.
        noise: deviation of the noise on the mean of all shared (or else expert) releases together, over the clipping
            norm: sigma / (B sqrt(steps)). Smaller is better.
        record_steps: records that are expected to be differentiated, all steps together; of a user at most as many as
            are used.
    """

    epsilon: float
    streams: tuple[Stream, ...]
    noise: float
    record_steps: float


@dataclass(frozen=True)
class Speed:
    """Measured on this machine: seconds a record, seconds a release, peak bytes of memory."""

    device: str
    seconds_a_record: float
    seconds_a_release: float
    memory: int


@dataclass(frozen=True)
class Alternative:
    """Another choice of one parameter."""

    parameter: str
    value: float
    costs: Costs


class Forecast:
    """Plans of one set of parameters, and of others near it."""

    def __init__(self, parameters: Mapping[str, Any], experts: int, layers: Sequence[int]) -> None:
        """Raises ParameterError when the number of training units is not declared."""
        self.privacy: PrivacyConfig = parameters["privacy"]
        # Noise multipliers, time and memory do not depend on what is measured on public records.
        self.training: TrainingConfig = (
            parameters["training"]
            .settled(1.0, 1.0)
            .model_copy(update={"expert_norms": "common", "expert_steps": "same"})
        )
        parameters["training"].require_layers(len(layers))
        self._evaluation = parameters["evaluation"]
        self._source = parameters["ingestion"].source
        self._continues = parameters["ingestion"].lengths is not None
        self._layer_plan = {"layers": list(layers), "experts": experts}
        if self.privacy.population == "auto":
            raise ParameterError(
                "privacy.population is auto: the rows of the training split would be counted, and no record is read "
                "here. Declare the number of training records: `raptor init` does it, or set privacy.population."
            )

    def costs(self, privacy: PrivacyConfig | None = None, training: TrainingConfig | None = None) -> Costs:
        """What the plan of these parameters costs.

        Raises:
            BudgetError: no noise meets the budget, or the batch is larger than the population.
        """
        from raptor.accounting.accountant import epsilon
        from raptor.pipelines.evaluation.config import evaluation_scope
        from raptor.pipelines.training.planning import raptor_plan

        privacy, training = privacy or self.privacy, training or self.training
        constants: dict[str, Any] = {
            "population": privacy.population,
            "population_source": DECLARED,
            "taken_as_public": [],
        }
        scope = evaluation_scope(self._evaluation, self._source, self._continues)
        plan = raptor_plan(self._layer_plan, constants, privacy, training, self._evaluation, scope)
        streams = tuple(
            Stream(
                stream.name,
                stream.steps,
                stream.noise_multiplier,
                epsilon(stream.events(stream.steps), plan.delta, plan.adjacency, confirm=False).epsilon,
            )
            for stream in plan.streams
        )
        first, rate = streams[0], plan.streams[0].rate
        records = sum(training.steps(stream) * training.batch(stream) for stream in training.streams)
        return Costs(
            plan.epsilon_planned,
            streams,
            first.noise_multiplier / (rate * plan.population * first.steps**0.5),
            float(records * most_records(privacy)),
        )

    def alternatives(self, present: Costs) -> list[Alternative]:
        """The best of a few values for more steps, for a larger batch, and for a smaller epsilon.

        Of more steps and larger batches that take at most `PATIENCE` times as long, the one with the least noise over
        the whole run; of smaller epsilons the smallest whose noise is at most `NOISIER` times the present one.
        """
        training, privacy = self.training, self.privacy
        steps = [
            self._tried("training.cycles", training.cycles * by, training={"cycles": training.cycles * by})
            for by in FACTORS
        ]
        batches = [
            self._tried(
                "training.batch_size",
                training.batch_size * by,
                training={"batch_size": training.batch_size * by},
            )
            for by in FACTORS
        ]
        budgets = [
            self._tried("privacy.epsilon", privacy.epsilon / by, privacy={"epsilon": privacy.epsilon / by})
            for by in FACTORS
        ]
        found = []
        for tried in (steps, batches):
            usable = [
                other
                for other in tried
                if other and other.costs.record_steps <= PATIENCE * present.record_steps
            ]
            found += sorted(usable, key=lambda other: other.costs.noise)[:1]
        possible = [other for other in budgets if other is not None]
        bearable = [other for other in possible if other.costs.noise <= NOISIER * present.noise]
        return found + (bearable[-1:] or possible[:1])

    def _tried(
        self,
        parameter: str,
        value: float,
        *,
        privacy: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> Alternative | None:
        """None where there is no such plan: a batch above the population, or no noise that meets the budget."""
        try:
            costs = self.costs(
                self.privacy.model_copy(update=dict(privacy or {})),
                self.training.model_copy(update=dict(training or {})),
            )
        except BudgetError:
            return None
        return Alternative(parameter, value, costs)


def most_records(privacy: PrivacyConfig) -> int:
    """Training records of one unit, at most."""
    return privacy.records_per_user if privacy.unit == "user" else 1


def measure(
    base_model: Path,
    training: TrainingConfig,
    max_length: int,
    layers: Sequence[int],
    records: int,
    continues: bool = False,
) -> Speed:
    """Run every engine of the training on made-up records, as many as fit into one forward pass.

    Args:
        records: how many will be in memory.
        continues: whether texts are continued; of the made-up ones all tokens count.

    Raises:
        ModelError: a trained parameter has no exact per-record gradient.
        ParameterError: the device is not on this machine.
    """
    import resource

    import torch

    from raptor.dp.clipping import ClippingRule
    from raptor.dp.engines import engine_specs
    from raptor.dp.isolation.synthetic import token_table
    from raptor.dp.records import Batch
    from raptor.dp.streams import RandomSource
    from raptor.dp.trainable import make_trainable
    from raptor.dp.training import resolve_device
    from raptor.errors import ModelError
    from raptor.moe.language import load_untrained

    device = resolve_device(training.device)
    model: Any = load_untrained(base_model, 0 if continues else 2)
    trainable = make_trainable(model, training, layers)
    model = model.to(device).eval()
    table = token_table(model)
    if table is None:
        raise ModelError(f"{base_model} holds a model without a table of token embeddings. Use another one.")
    size = training.physical_batch_size
    ids = torch.randint(0, table.num_embeddings, (size, max_length), device=device)
    zeros = torch.zeros(size, dtype=torch.int64, device=device)
    owners = zeros[:, None].expand(size, len(layers))
    batch = Batch(ids, torch.ones_like(ids), ids if continues else zeros, owners)
    noise = RandomSource.secure().stream("forecast/noise")
    weighted = released = 0.0
    steps = training.steps(training.shared) + training.steps(training.expert)
    for spec in engine_specs(trainable, layers, training):
        engine = spec.build(model)
        share = training.steps(getattr(training, spec.name)) / steps
        engine.clipped_sum(batch.part(0, 2), ClippingRule(1.0))
        weighted += share * _seconds(lambda: engine.clipped_sum(batch, ClippingRule(1.0)), device) / size  # noqa: B023
        numbers = sum(model.get_parameter(name).numel() for name in engine.parameters)
        released += share * _seconds(lambda: noise.normals((numbers,)), device)  # noqa: B023
    if device.type == "cuda":
        memory = int(torch.cuda.max_memory_allocated(device))
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # Token ids of all records stay in memory, four bytes each, with length, label and owner.
    return Speed(device.type, weighted, released, memory + records * (4 * max_length + 24))


def _seconds(work: Any, device: Any) -> float:
    import torch

    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
