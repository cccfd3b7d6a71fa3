"""The one place where per-record gradients are clipped and summed. It states the sensitivity of what it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raptor.accounting.types import Adjacency, Sensitivity, Unit
from raptor.dp.gradients.taps import Tap

# Norms are computed in float32 with relative errors up to about 2e-5, so the scaled norm aims a little lower
# than C. The margin is a public constant.
NORM_MARGIN = 2.0**-12
# Squares below the smallest number of a type count as zero. As many of them as this cannot be overlooked.
SQUARES = 2.0**50


Scales = Mapping[str, float | Tensor]
"""Parameter name -> public factor on its gradients: a number, or a tensor (experts, 1, 1) for a fused parameter."""


def _like(scale: float | Tensor, value: Tensor) -> float | Tensor:
    return scale if isinstance(scale, float) else scale.to(value)


@dataclass
class ClippedSum:
    """A sum of clipped per-record gradients before noise: private, and of known sensitivity.

    Attributes:
        tensors: parameter name -> sum, in the parameter's shape, times its scale.
        sensitivity: how far one unit can move the concatenation of all tensors.
        nonfinite: how many records contributed zero because their loss or gradient was not finite. It is a
            count of private records without noise: never log, print or release it.
        scales: parameter name -> factor in its tensor, or one for each expert, public constants; 1 where there is
            none. Blocks of parameters with noise of their own are scaled to the common noise before it is added, so
            that the release stays one Gaussian mechanism, and are scaled back after it.
        dimension: how many numbers the whole sum has, where `tensors` are one process's part of it; None where they
            are the whole.
    """

    tensors: dict[str, Tensor]
    sensitivity: Sensitivity
    nonfinite: int = field(default=0, repr=False)
    scales: Scales = field(default_factory=dict)
    dimension: int | None = None

    def add(self, other: ClippedSum) -> None:
        """Add the sum over other records in place; the records must be distinct."""
        for name, value in other.tensors.items():
            self.tensors[name].add_(value)
        self.nonfinite += other.nonfinite

    def unscaled(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A release of these sums without the factors: post-processing, as they are public constants."""
        return {
            name: value / _like(self.scales[name], value) if name in self.scales else value
            for name, value in released.items()
        }


@dataclass(frozen=True)
class ClippingRule:
    """Scale a record's gradient down to norm C, whatever other records do.

    Attributes:
        norm: clipping norm C, a public constant.
        adjacency: neighbouring relation the sensitivity is stated for.
        unit: whose contribution is bounded.
    """

    norm: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(norm=self.norm, adjacency=self.adjacency, unit=self.unit)

    def factors(self, squared_norms: Tensor) -> Tensor:
        """min(1, C / norm) for each record, (records,); 0 for a record whose gradient is not finite.

        A norm counts for no less than what rounding to zero may hide, about 4e-12 in float32; a C so small that
        the scaled gradients could not be held (1e-23 in float32) gives zeros.
        """
        limit = self.norm * (1.0 - NORM_MARGIN)
        hidden = SQUARES * torch.finfo(squared_norms.dtype).tiny
        if limit < hidden:
            return torch.zeros_like(squared_norms)
        factors = (limit / (squared_norms.clamp_min(0) + hidden).sqrt()).clamp(max=1.0)
        return torch.where(torch.isfinite(squared_norms), factors, torch.zeros_like(factors))


def clip_and_sum(taps: Sequence[Tap], finite: Tensor, rule: ClippingRule) -> ClippedSum:
    """Clip the per-record gradients that the taps hold, as one vector per record, and sum them.

    Args:
        taps: after a pass; each parameter belongs to one of them.
        finite: (records,) bool, False for a record whose loss is not a finite number.
        rule: clipping norm and what it protects.

    Guarantee:
        Released is nothing; the result goes to `raptor.dp.mechanism`. One record contributes a vector of norm
        at most C to the concatenation of all tensors, and its factor depends on that record alone. Where blocks have
        scales, norm and sum are those of the scaled gradient, so that the same holds of the scaled tensors. A record
        whose loss or gradient is not finite contributes exactly zero. Assumes that the model couples no
        records, so that a tap's row is a function of one record.
    """
    squared = torch.stack([tap.squared_norms() for tap in taps]).sum(dim=0)
    broken = ~(torch.isfinite(squared) & finite)
    factors = rule.factors(squared).masked_fill(broken, 0.0)
    nonfinite = int(broken.sum())
    if nonfinite:
        # 0 times NaN is NaN, so rows of a broken record are erased, not scaled.
        for tap in taps:
            tap.erase(broken)
    tensors: dict[str, Tensor] = {}
    scales: dict[str, float | Tensor] = {}
    for tap in taps:
        tensors.update(tap.weighted_sum(factors))
        scales.update(tap.scales)
        # What it kept makes room for the sums of the next.
        tap.close()
    return ClippedSum(tensors, rule.sensitivity, nonfinite, scales)
