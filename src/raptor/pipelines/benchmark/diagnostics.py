"""Why a method gains or loses: the three failure modes of one clip and one noise (RAPTOR, arXiv 2609.05770).

All of it is measured on the public records of a benchmark, at a model that RAPTOR has trained on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from raptor.accounting.plan import PrivacyPlan
from raptor.diagnostics.failure_modes import FailureModes, plain
from raptor.diagnostics.failure_modes import diagnose as diagnose_model
from raptor.dp.config import TrainingConfig
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import TrainableSet
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer
from raptor.moe.statistics import load_statistics, owner_histogram

RECORDS = 1024


def diagnose(
    model: MoEClassifier,
    records: EncodedRecords,
    trainable: TrainableSet,
    training: TrainingConfig,
    plan: PrivacyPlan,
) -> dict[str, Any]:
    """Interference, load and signal at a trained model whose adapters are still in place: a row of the results.

    Args:
        records: public, with owners; loads are those of all of them, gradients those of the first `RECORDS`.
    """
    counts = owner_histogram(records.first_owners.numpy(), sparse_layer(model, plan.layers[0]).num_experts)
    found = diagnose_model(model, records.first(RECORDS), counts / len(records), trainable, training, plan)
    load = load_statistics(counts)
    row: dict[str, Any] = plain(
        {
            "norm_shared": found.roles[SHARED].median_norm,
            "norm_experts": found.roles[EXPERT].median_norm,
            "experts": asdict(found.roles[EXPERT].interference),
            "shared": asdict(found.roles[SHARED].interference),
            "role_mismatch": found.mismatch,
            "entropy_share": load.normalised_entropy,
            "chi2": load.chi2,
            "largest_load": load.max_share,
            "smallest_load": load.min_share,
            "empty_rate": float(found.empty.mean()),
            **_signal(found),
        }
    )
    return row


def _signal(found: FailureModes) -> dict[str, float]:
    return {
        "signal_to_noise": float(found.signal.measured.mean()),
        "signal_ceiling": float(found.signal.ceiling.mean()),
        "signal_variation": found.signal.variation,
        "signal_slope": found.signal.slope,
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
