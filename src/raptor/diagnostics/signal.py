"""Signal of an expert in one step against the noise that the step adds to its block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raptor.diagnostics.estimator import OwnerSums
from raptor.moe.statistics import Floats


@dataclass(frozen=True)
class Signal:
    """Norms of an expert's clipped sum in a step, in units of the norm of its noise, sigma C sqrt(d).

    Attributes:
        measured: (E,) root of the expected squared norm of the sum, (B q)^2 |mu|^2 + B q (1-p) s^2.
        aligned: (E,) the part of it that records have in common, B q |mu|: what is there again in the next step.
        ceiling: (E,) B q C: all records at the clipping norm, in one direction. Linear in the load.
        slope: of log measured on log load: 1 where records agree, 1/2 where only their spread is left; not a number
            where loads are all alike.
    """

    measured: Floats
    aligned: Floats
    ceiling: Floats
    slope: float

    @property
    def variation(self) -> float:
        """Standard deviation over mean of `measured` over the experts."""
        mean = float(self.measured.mean())
        return float(self.measured.std()) / mean if mean > 0 else math.nan


def signal(
    owners: OwnerSums, *, batch_size: float, rate: float, noise_multiplier: float, clipping_norm: float
) -> Signal:
    """Signal to noise of every expert; an expert that owns no record has none.

    Args:
        owners: of clipped gradients of public records.
        batch_size: B of the private training.
        rate: p of the private training.
    """
    deviation = noise_multiplier * clipping_norm * np.sqrt(owners.sizes)
    drawn = batch_size * owners.loads
    common = np.maximum(np.nan_to_num(owners.means), 0.0)
    squares = drawn**2 * common + drawn * (1.0 - rate) * owners.squares
    measured = np.sqrt(squares) / deviation
    return Signal(
        measured=measured,
        aligned=drawn * np.sqrt(common) / deviation,
        ceiling=drawn * clipping_norm / deviation,
        slope=log_slope(owners.loads, measured),
    )


def log_slope(loads: Floats, values: Floats) -> float:
    """Least-squares slope of log values on log loads, over the positive ones."""
    known = (values > 0) & (loads > 0)
    if known.sum() < 2 or float(np.ptp(np.log(loads[known]))) < 1e-9:
        return math.nan
    return float(np.polyfit(np.log(loads[known]), np.log(values[known]), 1)[0])
