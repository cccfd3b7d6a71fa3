"""Why a method gains or loses: the three failure modes of one clip and one noise (RAPTOR, arXiv 2609.05770).

All of it is measured on the public records of a benchmark, at a model that RAPTOR has trained on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.gradients.engine import GradientEngine, OwnerExpertGradients
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import TrainableSet
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer

RECORDS = 1024
BATCH = 128
CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Recorder(ClippingRule):
    """Clips as always, and keeps the norms, which are those of public records."""

    squared: list[Tensor] = field(default_factory=list, repr=False)

    def factors(self, squared_norms: Tensor) -> Tensor:
        self.squared.append(squared_norms)
        return super().factors(squared_norms)


def record_norms(engine: GradientEngine, records: EncodedRecords) -> NDArray[np.float64]:
    """Norm of each record's gradient; the order is the same for all engines."""
    rule = _Recorder(1.0)
    for batch in records.physical_batches(torch.arange(len(records)), BATCH, CPU):
        engine.clipped_sum(batch, rule)
    norms: NDArray[np.float64] = torch.cat(rule.squared).double().sqrt().numpy()
    return norms


def interference(joint: NDArray[np.float64], part: NDArray[np.float64], clip: float) -> dict[str, float]:
    """How much one clip over everything takes from a role, beyond what a clip of its own would take.

    The ratio of a record is min(1, C/joint) / min(1, C/part), at most 1; records without a gradient in the role are
    left out.

    Returns:
        `mean` and `tenth` percentile of the ratio, `retained` norm of the role over all records.
    """
    there = part > 0
    if not there.any():
        return {"mean": math.nan, "tenth": math.nan, "retained": math.nan}
    whole, own = (np.minimum(1.0, clip / value[there]) for value in (joint, part))
    ratio = whole / own
    norms = part[there]
    return {
        "mean": float(ratio.mean()),
        "tenth": float(np.quantile(ratio, 0.1)),
        "retained": float((norms * whole).sum() / (norms * own).sum()),
    }


def diagnose(
    model: MoEClassifier,
    records: EncodedRecords,
    trainable: TrainableSet,
    layer: int,
    training: TrainingConfig,
    noise_multiplier: float,
) -> dict[str, Any]:
    """Interference, load and signal at a trained model whose adapters are still in place.

    Args:
        records: public, with owners; the first `RECORDS` of them are used.
        noise_multiplier: of the expert stream.
    """
    some = _first(records, RECORDS)
    engines = {spec.name: spec.build(model) for spec in engine_specs(trainable, layer, training)}
    joint = engine_specs(trainable, layer, training, "matched")[0]
    norms = {name: record_norms(engine, some) for name, engine in engines.items()}
    norms[MONOLITHIC] = record_norms(joint.build(model), some)
    clip = training.shared.norm
    loads = np.bincount(records.owners.numpy(), minlength=sparse_layer(model, layer).num_experts) / len(
        records
    )
    return {
        "norm_shared": float(np.median(norms[SHARED])),
        "norm_experts": float(np.median(norms[EXPERT])),
        "experts": interference(norms[MONOLITHIC], norms[EXPERT], clip),
        "shared": interference(norms[MONOLITHIC], norms[SHARED], clip),
        **load_figures(loads, training.batch_size),
        **_signal(model, some, trainable, layer, training, noise_multiplier, loads),
    }


def load_figures(loads: NDArray[np.float64], batch_size: int) -> dict[str, Any]:
    """Evenness of the owners, and how often an expert has no record in a step: exp(-B q) on average."""
    experts = len(loads)
    positive = loads[loads > 0]
    return {
        "entropy_share": float(-(positive * np.log(positive)).sum() / math.log(experts)),
        "chi2": float(experts * (loads**2).sum() - 1.0),
        "largest_load": float(loads.max()),
        "smallest_load": float(loads.min()),
        "empty_rate": float(np.exp(-batch_size * loads).mean()),
    }


def _signal(
    model: MoEClassifier,
    records: EncodedRecords,
    trainable: TrainableSet,
    layer: int,
    training: TrainingConfig,
    noise_multiplier: float,
    loads: NDArray[np.float64],
) -> dict[str, float]:
    """Signal of each expert against its noise in one step, and its slope against the load on a log scale."""
    engine = OwnerExpertGradients(model, layer, parameters=trainable.expert)
    rule = ClippingRule(training.expert.norm)
    squares = np.zeros(len(loads))
    numbers = np.zeros(len(loads))
    total: dict[str, Tensor] = {}
    for batch in records.physical_batches(torch.arange(len(records)), BATCH, CPU):
        for name, value in engine.clipped_sum(batch, rule).tensors.items():
            total[name] = total[name] + value if name in total else value
    for stack in sparse_layer(model, layer).bank().stacks:
        if not set(stack.names) <= set(total):
            continue
        parts = list(total[stack.names[0]]) if stack.is_fused else [total[name] for name in stack.names]
        squares += np.array([float(part.double().square().sum()) for part in parts])
        numbers += np.array([part.numel() for part in parts])
    scale = training.batch_size / len(records)
    deviation = noise_multiplier * training.expert.norm
    ratio = scale * np.sqrt(squares) / (deviation * np.sqrt(numbers))
    known = (ratio > 0) & (loads > 0)
    even = bool(np.ptp(np.log(loads[known])) < 1e-9) if known.any() else True
    slope = math.nan if even else float(np.polyfit(np.log(loads[known]), np.log(ratio[known]), 1)[0])
    return {
        "signal_to_noise": float(ratio.mean()),
        "signal_variation": float(ratio.std() / ratio.mean()) if ratio.mean() > 0 else math.nan,
        "signal_slope": slope,
    }


def _first(records: EncodedRecords, number: int) -> EncodedRecords:
    rows = slice(0, number)
    return EncodedRecords(
        records.input_ids[rows], records.lengths[rows], records.labels[rows], records.owners[rows]
    )


def finite(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same with None for what is no number, as JSON has none for it."""
    return {
        key: finite(value) if isinstance(value, Mapping) else None if math.isnan(value) else value
        for key, value in found.items()
    }


def section(diagnostics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown for the page of results."""
    if not diagnostics:
        return []
    lines = [
        "## Why",
        "",
        "At the model that RAPTOR has trained at the largest epsilon, on 1,024 public records of each set. "
        "Interference: the share of a role's clipped gradient that is left when one clip goes over both roles (1: it "
        "loses nothing). Signal to noise: norm of an expert's clipped sum in one step over that of its noise; slope: "
        "by how much it grows with the expert's load, on a log scale.",
        "",
        "| set | median norm, shared | median norm, experts | interference, shared | interference, experts | tenth "
        "percentile | signal to noise | slope | owner entropy | empty experts in a step |",
        f"|{'---|' * 10}",
    ]
    for row in diagnostics:
        values = (
            row["norm_shared"],
            row["norm_experts"],
            row["shared"]["retained"],
            row["experts"]["retained"],
            row["experts"]["tenth"],
            row["signal_to_noise"],
            row["signal_slope"],
            row["entropy_share"],
            row["empty_rate"],
        )
        cells = " | ".join("-" if value is None else f"{value:.2g}" for value in values)
        lines.append(f"| {row['dataset']} | {cells} |")
    return [*lines, ""]
