"""One pass over public records that keeps what a private pass never shows: the norm of each record's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.public_measures import NormRecorder
from raptor.dp.records import EncodedRecords
from raptor.errors import DataError
from raptor.moe.families import sparse_layer
from raptor.moe.statistics import Floats

BATCH = 128
"""Records of one forward pass."""


class RecordingRule(NormRecorder):
    """Clips as always, keeps the squared norm of each record's gradient, and counts what it cuts.

    As private as the records are.
    """

    @property
    def cut(self) -> int:
        """How many gradients were scaled down, those that are not finite among them."""
        return sum(int((ClippingRule.factors(self, kept) < 1).sum()) for kept in self.squared)


@dataclass(frozen=True)
class GradientPass:
    """What a pass over public records has left.

    Attributes:
        norms: (records,) norms before clipping, in the order of the records.
        total: parameter name -> sum of the clipped gradients.
    """

    norms: Floats
    total: Mapping[str, Tensor]


def gradient_pass(engine: GradientEngine, records: EncodedRecords, norm: float) -> GradientPass:
    """Clip every record's gradient to `norm`, keeping the norms and the sum.

    Args:
        engine: on a model that is on the CPU.
        records: public; one record is one unit.

    Raises:
        DataError: the records are grouped by users, or there are none.
    """
    if records.groups is not None or not len(records):
        raise DataError("Diagnostics need at least one public record, and records that are their own units.")
    norms = np.zeros(len(records))
    total: dict[str, Tensor] = {}
    # Records of like length share a pass, so that little of it is padding.
    order = records.lengths.argsort(stable=True)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        rule = RecordingRule(norm)
        part = engine.clipped_sum(records.take(rows, torch.device("cpu")), rule)
        norms[rows.numpy()] = torch.cat(rule.squared).double().clamp_min(0).sqrt().numpy()
        for name, value in part.tensors.items():
            total[name] = total[name] + value if name in total else value
    return GradientPass(norms, total)


def expert_blocks(
    model: nn.Module, layer: int, total: Mapping[str, Tensor]
) -> tuple[Floats, NDArray[np.int64]]:
    """Squared norm of each expert's block of a sum, and how many numbers the block holds: two (experts,) vectors."""
    experts = sparse_layer(model, layer).num_experts
    squares, sizes = np.zeros(experts), np.zeros(experts, dtype=np.int64)
    for stack in sparse_layer(model, layer).bank().stacks:
        if not set(stack.names) <= set(total):
            continue
        parts = list(total[stack.names[0]]) if stack.is_fused else [total[name] for name in stack.names]
        squares += np.array([float(part.double().square().sum()) for part in parts])
        sizes += np.array([part.numel() for part in parts])
    return squares, sizes
