"""Clipping interference: what one clip over all roles takes from a role (RAPTOR, arXiv 2609.05770, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raptor.moe.statistics import Floats


@dataclass(frozen=True)
class Interference:
    """How much of a role's gradients is left by one clip over everything, beside a clip of its own.

    For a record with norm a over everything and b in the role, the ratio is min(1, C/a) / min(1, C/b). Since b <= a
    it is at most 1: b/a where both clips bind, C/a where only the joint one does.

    Attributes:
        mean, tenth: mean and 10th percentile of the ratio over records with a gradient in the role.
        retained: norm that the joint clip leaves the role, over what its own clip leaves, summed over records.
        hit: share of the records whose ratio is below 1.
    """

    mean: float
    tenth: float
    retained: float
    hit: float


def interference_ratios(joint: Floats, part: Floats, clip: float) -> Floats:
    """The ratio of each record that has a gradient in the role, in the order of the records.

    Args:
        joint: (records,) norms over everything.
        part: (records,) norms in the role.
        clip: C of both clips.
    """
    there = part > 0
    ratios: Floats = np.minimum(1.0, clip / joint[there]) / np.minimum(1.0, clip / part[there])
    return ratios


def interference(joint: Floats, part: Floats, clip: float) -> Interference:
    """Summary of `interference_ratios`; not a number where no record has a gradient in the role."""
    ratios, norms = interference_ratios(joint, part, clip), part[part > 0]
    if not len(ratios):
        return Interference(math.nan, math.nan, math.nan, math.nan)
    own = norms * np.minimum(1.0, clip / norms)
    return Interference(
        mean=float(ratios.mean()),
        tenth=float(np.quantile(ratios, 0.1)),
        retained=float((own * ratios).sum() / own.sum()),
        # Norms over everything and in the role are computed apart: equal ones differ by rounding.
        hit=float((ratios < 1 - 1e-4).mean()),
    )


def role_mismatch(norms: Mapping[str, Floats], sizes: Mapping[str, int]) -> float:
    """Half the sum over roles of |share of the gradient norm - share of the parameters|, from 0 to 1.

    Args:
        norms: role -> (records,) norms.
        sizes: role -> trained numbers.
    """
    means = {role: float(value.mean()) for role, value in norms.items()}
    total, numbers = sum(means.values()), sum(sizes[role] for role in norms)
    if total == 0 or numbers == 0:
        return math.nan
    return 0.5 * sum(abs(means[role] / total - sizes[role] / numbers) for role in norms)
