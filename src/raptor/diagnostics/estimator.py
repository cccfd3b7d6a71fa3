"""Bias and variance of an expert's update under a public denominator, by formula and by drawing.

Let each of n records be drawn with probability p = B/n, and let h be its gradient in its owner e, clipped to C. The
update is (E/B) (sum of drawn h + xi), xi ~ N(0, (sigma C)^2 I_d). With load q, owner mean mu and mean square
s^2 = mean |h|^2 its mean is E q mu, so that against mu it is off by (E q - 1) mu (theorem 1 of RAPTOR, arXiv
2609.05770); its variance is (E^2/B)(1-p) q s^2 by sampling and (sigma C E/B)^2 d by noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raptor.moe.statistics import Floats


@dataclass(frozen=True)
class OwnerSums:
    """What the formulas need of each expert's clipped gradients.

    Attributes:
        loads: (E,) shares q of the records.
        means: (E,) squared norms |mu|^2 of the owner means.
        squares: (E,) mean squared norms s^2.
        sizes: (E,) numbers d in an expert's block.
    """

    loads: Floats
    means: Floats
    squares: Floats
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class Errors:
    """Mean squared error of each expert's update against its owner mean, in three parts of shape (E,)."""

    bias: Floats
    sampling: Floats
    noise: Floats

    @property
    def total(self) -> Floats:
        """(E,) sum of the parts."""
        return self.bias + self.sampling + self.noise


def unbiased_mean_squares(sums: Floats, squares: Floats, counts: Floats) -> Floats:
    """|mu|^2 of each expert from the squared norm of its sum over few records, without what their spread adds.

    (|sum|^2 - sum |h|^2) / (n (n - 1)): the mean inner product of two different records. It may come out below 0.

    Args:
        sums: (E,) squared norms of sums.
        squares: (E,) sums of squared norms.
        counts: (E,) numbers of records.

    Returns:
        (E,), not a number for an expert with fewer than two records.
    """
    pairs = counts * (counts - 1)
    found: Floats = np.divide(sums - squares, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)
    return found


def errors(
    owners: OwnerSums, *, batch_size: float, rate: float, noise_multiplier: float, clipping_norm: float
) -> Errors:
    """The formulas above; the noise is the same whatever the load."""
    experts = len(owners.loads)
    scale = experts / batch_size
    return Errors(
        # An estimate of |mu|^2 from few records may lie below 0.
        bias=(experts * owners.loads - 1.0) ** 2 * np.maximum(owners.means, 0.0),
        sampling=scale * experts * (1.0 - rate) * owners.loads * owners.squares,
        noise=(scale * noise_multiplier * clipping_norm) ** 2 * owners.sizes.astype(np.float64),
    )


@dataclass(frozen=True)
class Drawn:
    """Updates of many repetitions.

    Attributes:
        mean: (E, d) mean update of each expert.
        variance: (E,) trace of its covariance.
    """

    mean: Floats
    variance: Floats


def draw_updates(
    gradients: Floats,
    owners: NDArray[np.int64],
    experts: int,
    *,
    batch_size: float,
    noise_multiplier: float,
    clipping_norm: float,
    repetitions: int,
    generator: np.random.Generator,
) -> Drawn:
    """Repeat the expert step on made-up gradients, as algorithm 1 of the paper makes it.

    Args:
        gradients: (n, d) clipped gradients.
        owners: (n,) owner of each.
        generator: the gradients are made up or public, so any generator will do.
    """
    records, width = gradients.shape
    placed = np.zeros((records, experts, width))
    placed[np.arange(records), owners] = gradients
    coins = (generator.random((repetitions, records)) < batch_size / records).astype(np.float64)
    sums = (coins @ placed.reshape(records, -1)).reshape(repetitions, experts, width)
    noise = noise_multiplier * clipping_norm * generator.standard_normal(sums.shape)
    updates = (sums + noise) * (experts / batch_size)
    return Drawn(updates.mean(axis=0), updates.var(axis=0, ddof=1).sum(axis=1))


def made_up_gradients(
    records: int, width: int, clipping_norm: float, generator: np.random.Generator
) -> Floats:
    """(records, width) gradients with a common direction and a spread of their own, clipped."""
    raw = generator.standard_normal((records, width))
    raw[:, 0] += 1.0
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    clipped: Floats = raw * np.minimum(1.0, clipping_norm / norms)
    return clipped


def owner_sums(gradients: Floats, owners: NDArray[np.int64], experts: int) -> OwnerSums:
    """What `errors` needs of gradients that are all there, as made-up ones are."""
    records, width = gradients.shape
    masks = owners[None, :] == np.arange(experts)[:, None]
    counts = masks.sum(axis=1)
    means = (masks @ gradients) / np.maximum(counts, 1)[:, None]
    squares = (masks @ (gradients**2).sum(axis=1)) / np.maximum(counts, 1)
    return OwnerSums(
        counts / records, (means**2).sum(axis=1), squares, np.full(experts, width, dtype=np.int64)
    )
