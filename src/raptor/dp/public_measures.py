"""Constants of the mechanism that are measured on public records: clipping norms, and step sizes of experts.

No private record is read. The public corpus has no labels, so it gets surrogate ones: each record's class is the one of
as many random directions that its pooled state points to most. A new head is zero, and below it no gradient is; so the
norms are taken half-way through a training without privacy on the public records.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.optimizer import ReleaseOptimizer
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.sampling import PoissonSampler
from raptor.dp.steps import NonPrivateStream
from raptor.dp.streams import RandomSource
from raptor.dp.trainable import make_trainable
from raptor.errors import DataError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer

# Public randomness: the same corpus gives the same constants everywhere. Nothing private rests on it.
SEED = 2609_05770
# An expert with fewer public records than this has the norm of all experts.
FEWEST = 20
BATCH = 256
CPU = torch.device("cpu")


@dataclass(frozen=True)
class PublicNorms:
    """Norms of single public records' gradients.

    Attributes:
        shared, expert: quantile over all records with a gradient in the role.
        experts: the same over the records that each expert owns.
    """

    shared: float
    expert: float
    experts: tuple[float, ...]


@dataclass(frozen=True)
class NormRecorder(ClippingRule):
    """Clips as always, and keeps the norms: for public records only."""

    squared: list[Tensor] = field(default_factory=list, repr=False)

    def factors(self, squared_norms: Tensor) -> Tensor:
        self.squared.append(squared_norms)
        return super().factors(squared_norms)


def surrogate_labels(model: MoEClassifier, records: EncodedRecords) -> Tensor:
    """(records,) int64 classes of public records without labels; all records have a part in each class's mean."""
    head = torch.nn.Linear(model.head.in_features, model.num_labels)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator))
        head.bias.zero_()
    probe = copy.copy(model)
    # The classifier with another head; its encoder is the same object and is only read.
    probe._modules = {**model._modules, "head": head}
    parts = []
    with torch.no_grad():
        for start in range(0, len(records), BATCH):
            batch = records.take(torch.arange(start, min(start + BATCH, len(records))), CPU)
            parts.append(probe(*batch.inputs))
    logits = torch.cat(parts).double()
    return ((logits - logits.mean(dim=0)) / logits.std(dim=0).clamp_min(1e-12)).argmax(dim=1)


def public_norms(
    model: MoEClassifier,
    records: EncodedRecords,
    layers: Sequence[int],
    config: TrainingConfig,
    quantile: float,
) -> PublicNorms:
    """Quantiles of gradient norms, half-way through a training on public records; the model is used up.

    Args:
        model: with a new head, as the private training begins with.
        records: public, with their owners in the layers; their labels are not used.
        layers: the protected layers.
        config: of the private training, whose steps and step sizes are used.
        quantile: in (0, 1).

    Raises:
        DataError: no public record has a gradient in a role.
    """
    records = replace(records, labels=surrogate_labels(model, records))
    # Experts are told apart in one layer only.
    owners, experts = (
        records.first_owners,
        sparse_layer(model, layers[0]).num_experts,
    )
    trainable = make_trainable(model, config, layers)
    names = trainable.of("protected")
    total = config.steps(config.shared) + config.steps(config.expert)
    size = min(config.batch_size, len(records))
    settings = config.model_copy(update={"batch_size": size})
    optimizer = ReleaseOptimizer(model, names, settings, total, trainable.all_experts)
    coins = RandomSource.seeded(SEED).stream("public norms")
    stream = NonPrivateStream(
        PoissonSampler(len(records), size / len(records), coins),
        model,
        names,
        optimizer,
        records,
        settings,
        CPU,
    )
    for _ in range(max(total // 2, 1)):
        stream.step()
    found = {spec.name: spec.build(model) for spec in engine_specs(trainable, layers, config, "together")}
    norms = {name: record_norms(engine, records) for name, engine in found.items()}
    expert = _quantile(norms[EXPERT], quantile, EXPERT)
    return PublicNorms(
        shared=_quantile(norms[SHARED], quantile, SHARED),
        expert=expert,
        experts=tuple(
            _quantile(mine, quantile, EXPERT) if int((mine > 0).sum()) >= FEWEST else expert
            for mine in (norms[EXPERT][owners == number] for number in range(experts))
        ),
    )


def record_norms(engine: GradientEngine, records: EncodedRecords) -> Tensor:
    """(records,) norm of each public record's gradient, in the order of the records."""
    norms = torch.zeros(len(records), dtype=torch.float64)
    for start in range(0, len(records), BATCH):
        rule = NormRecorder(1.0)
        rows = torch.arange(start, min(start + BATCH, len(records)))
        engine.clipped_sum(records.take(rows, CPU), rule)
        norms[rows] = torch.cat(rule.squared).double().sqrt().cpu()
    return norms


def load_steps(counts: Sequence[int], signal: float) -> tuple[float, ...]:
    """Step size of each expert over the stream's, by how many public records it owns.

    With x = E q, q an expert's share of the owners and 1/E that of an even load, the mean gradient that an expert gets
    from a step grows with x and its noise does not, so that the squared signal-to-noise ratio is s x^2, s being the one
    at an even load. The factor that makes the mean squared error of a noisy mean least is s x^2 / (1 + s x^2) (Wiener);
    it is taken over its value at an even load:

        w = x^2 (1 + s) / (1 + s x^2), between 0 and (1 + s) / s; 1 for all experts of an even layer.

    Args:
        counts: public records that each expert owns. One is added to each, so that no expert stands still.
        signal: s, a public guess. A large one leaves all step sizes alike.
    """
    whole = sum(counts) + len(counts)
    shares = [len(counts) * (count + 1) / whole for count in counts]
    return tuple(share**2 * (1.0 + signal) / (1.0 + signal * share**2) for share in shares)


def _quantile(norms: Tensor, quantile: float, role: str) -> float:
    there = norms[(norms > 0) & torch.isfinite(norms)]
    value = float(there.quantile(quantile)) if len(there) else math.nan
    if not value > 0:
        raise DataError(
            f"No record of the public corpus has a gradient in the {role} parameters, so no clipping norm can be "
            f"measured. Set training.{role}.clipping_norm to a number, or give another selection.corpus."
        )
    return value
