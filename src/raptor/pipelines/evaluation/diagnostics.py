"""Private diagnostics: figures of the training records under the trained model, each one noisy release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from raptor.accounting.plan import PrivacyPlan
from raptor.diagnostics.gradients import RecordingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.gradients.losses import loss_of
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.plan import DIAGNOSTICS
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import make_trainable
from raptor.dp.training import resolve_device
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.evaluation.noise import noised_table

# The loss of a record counts up to so many times that of an answer that gives all classes, or tokens, the same chance.
LOSS_BOUND = 2.0


Model = MoEClassifier | PreTrainedModel


@dataclass(frozen=True)
class Tally:
    """An exact, private sum over the training records.

    Attributes:
        names: what each number is.
        values: (numbers,) sums.
        sensitivity: the most that one record adds, in L2 norm.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    sensitivity: float


def exact_tallies(
    model: Model, records: EncodedRecords, plan: PrivacyPlan, training: TrainingConfig
) -> dict[str, Tally]:
    """The sums that are asked for. Private; the model is moved to the device of the training.

    Guarantee:
        Nothing is released. One record adds at most `sensitivity` to a tally: its loss is cut at a public bound, it
        has one owner, and in each stream its gradient is clipped or not. Assumes that the model couples no records,
        as the isolation gate has shown before training.
    """
    device = resolve_device(training.device)
    model = model.to(device).eval()  # type: ignore[arg-type]
    makers = {"loss": _loss, "clipped_fraction": _clipped, "expert_load": _load}
    return {name: makers[name](model, records, plan, training, device) for name in training.diagnostics}


def release_tallies(
    tallies: Mapping[str, Tally], mechanism: GaussianMechanism, plan: PrivacyPlan
) -> dict[str, Any]:
    """Noisy figures with their standard deviations, one release for each tally.

    Guarantee:
        Released is each tally with Gaussian noise of deviation sigma times its sensitivity, through
        `raptor.dp.mechanism`; adjacency and unit are the plan's. Division by the public number of records is
        post-processing.
    """
    multiplier = plan.stream(DIAGNOSTICS).noise_multiplier
    released = {}
    for name, tally in tallies.items():
        # Loads stay numbers of records; the others become means.
        scale = 1.0 if name == "expert_load" else 1.0 / plan.population
        noisy = noised_table(tally.values, tally.sensitivity, mechanism, plan) * scale
        released[name] = {
            "values": dict(zip(tally.names, noisy.tolist(), strict=True)),
            "deviation": multiplier * tally.sensitivity * scale,
        }
    return released


def _loss(
    model: Model,
    records: EncodedRecords,
    plan: PrivacyPlan,
    training: TrainingConfig,
    device: torch.device,
) -> Tally:
    answers = model.num_labels if isinstance(model, MoEClassifier) else int(model.config.vocab_size)
    bound = LOSS_BOUND * math.log(max(answers, 2))
    loss = loss_of(model)
    total = 0.0
    with torch.no_grad():
        for batch in _batches(records, training, device):
            losses = loss(model, batch).double().cpu()
            total += float(torch.nan_to_num(losses, nan=bound, posinf=bound).clamp(0.0, bound).sum())
    return Tally(("loss",), np.array([total]), bound)


def _clipped(
    model: Model,
    records: EncodedRecords,
    plan: PrivacyPlan,
    training: TrainingConfig,
    device: torch.device,
) -> Tally:
    """Records whose gradient would be cut at the trained weights, by stream."""
    trainable = make_trainable(model, training, plan.layers)
    specs = engine_specs(trainable, plan.layers, training, expert_norms=plan.expert_norms)
    counts = []
    for spec in specs:
        engine = spec.build(model)
        rule = RecordingRule(plan.stream(spec.name).clipping_norm, plan.adjacency, plan.unit)
        for batch in _batches(records, training, device):
            engine.clipped_sum(batch, rule)
        counts.append(float(rule.cut))
    names: Sequence[str] = [spec.name for spec in specs]
    return Tally(tuple(names), np.array(counts), math.sqrt(len(specs)))


def _load(
    model: Model,
    records: EncodedRecords,
    plan: PrivacyPlan,
    training: TrainingConfig,
    device: torch.device,
) -> Tally:
    """Records that each expert owns, in the first protected layer."""
    experts = max(stream.blocks for stream in plan.streams)
    counts = np.bincount(records.first_owners.numpy(), minlength=experts).astype(np.float64)
    return Tally(tuple(f"expert_{number}" for number in range(experts)), counts, 1.0)


def _batches(records: EncodedRecords, training: TrainingConfig, device: torch.device) -> Any:
    return records.physical_batches(torch.arange(len(records)), training.physical_batch_size, device)
