"""The one place where noise is added. It writes the ledger first.

Sum and noise are integers on one public lattice when they are added, so that no rounding of the addition, and no gap
between floating-point numbers, depends on the sum (Mironov, "On Significance of the Least Significant Bits for
Differential Privacy", CCS 2012; Haney et al., "Precision-based attacks and interval refining", arXiv 2207.13793).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Protocol

import torch
import xxhash
from torch import Tensor

from raptor.accounting.plan import StreamPlan
from raptor.accounting.types import Release, Sensitivity
from raptor.dp.clipping import ClippedSum
from raptor.dp.streams import BLOCK, RandomStream
from raptor.errors import BudgetError

# How far the lattice may move a sum of neighbouring records beyond C, as a part of C. The noise is larger by as much.
LATTICE = 2.0**-14
# Sums are cut here, in lattice steps: with the noise they stay integers that float64 holds.
LARGEST = 2.0**51


def lattice_spacing(norm: float, dimension: int) -> float:
    """Distance of the lattice's points: the largest power of two that is at most LATTICE C / sqrt(dimension).

    Args:
        norm: clipping norm C, a public constant.
        dimension: how many numbers a release has, a public constant.
    """
    # A power of two, so that dividing by it rounds nothing.
    return math.ldexp(0.5, math.frexp(LATTICE * norm / math.sqrt(max(dimension, 1)))[1])


class ReleaseSink(Protocol):
    """Where releases are written. `append` returns when the release would survive a crash."""

    def append(self, release: Release) -> object: ...


class GaussianMechanism:
    """Turns the clipped sums of one stream into releases.

    Guarantee:
        Released is (sum + N(0, (sigma C)^2 I)) / D, for the concatenation of all parameters of the stream.
        Sensitivity: one unit moves the sum by at most C, as the clipped sum itself states; a sum that states
        another sensitivity than the plan's is refused. The sum is rounded to a lattice of public spacing g, which
        adds at most g sqrt(d) <= C / 2^14; the noise is larger by the factor 1 + 1 / 2^14, so the ratio stays sigma.
        Noise is rounded to the same lattice, and both are added without rounding: for a sum on the lattice this is
        the rounding of the noisy sum, which is post-processing. For experts the sum is the concatenation of all
        blocks, one unit moves one block, so the step is one Gaussian mechanism and not one per expert.
        Adjacency: that of the clipped sum. Assumes: rate, sigma, C, D and the number of steps are public
        constants; the noise stream is used for nothing else. Every call adds noise to every coordinate,
        whether or not a record fell into the sample, and no more calls than planned are answered.
        Each release names the digest of the one before it, so that the sink can refuse to make a release
        again that does not come out the same.
        Several processes make one release together when each adds noise to its own coordinates of the sum
        (`raptor.dp.team`): each noise value is drawn once, by one of them, from a keystream of its own. The line in the
        ledger is that of the whole release, and the lattice that of its dimension. No process goes on before
        the sink has returned in all of them.
    """

    def __init__(
        self,
        stream: StreamPlan,
        noise: RandomStream,
        generator: str,
        sink: ReleaseSink,
        seal: Callable[[str], str] = str,
    ) -> None:
        """`generator` names the source of `noise` in the ledger; `seal` makes one digest of those of all processes.

        `released` and `last`, the number of releases and the digest of the last one, are set by a run that
        resumes, and by nobody else.
        """
        self.stream = stream
        self.noise = noise
        self._generator = generator
        self._sink = sink
        self._seal = seal
        self.released = 0
        self.last: str | None = None

    def release(self, total: ClippedSum) -> dict[str, Tensor]:
        """Name -> noisy sum over the denominator, in the tensors' own dtype and place.

        Raises:
            BudgetError: the stream has made all its planned releases, or the sum has another sensitivity
                than the plan.
        """
        plan = self.stream
        if self.released >= plan.steps:
            raise BudgetError(
                f"Stream {plan.name!r} has made its {plan.steps} planned releases; another one is not paid for."
            )
        if total.sensitivity.norm != plan.clipping_norm:
            raise BudgetError(
                f"A sum of stream {plan.name!r} has sensitivity {total.sensitivity.norm}, but the plan says "
                f"{plan.clipping_norm}. Nothing was released."
            )
        own = sum(tensor.numel() for tensor in total.tensors.values())
        release = self.receipt(total.sensitivity, own if total.dimension is None else total.dimension)
        self._sink.append(release)
        self.released += 1
        digest = hashlib.sha256()
        spacing = lattice_spacing(release.sensitivity.norm, release.dimension)
        noisy = {
            name: self._noisy(tensor, release.noise_deviation * (1.0 + LATTICE), spacing, digest)
            for name, tensor in total.tensors.items()
        }
        self.last = self._seal(digest.hexdigest())
        return noisy

    def receipt(self, sensitivity: Sensitivity, dimension: int) -> Release:
        """What the ledger says about the next release."""
        plan = self.stream
        return Release(
            stream=plan.name,
            step=self.released,
            rate=plan.rate,
            noise_multiplier=plan.noise_multiplier,
            sensitivity=sensitivity,
            denominator=plan.denominator,
            dimension=dimension,
            generator=self._generator,
            follows=self.last,
        )

    def _noisy(self, total: Tensor, deviation: float, spacing: float, digest: hashlib._Hash) -> Tensor:
        """(total + N(0, deviation^2)) / D on the lattice, in the type and place of the total.

        A checksum of each block goes into the digest. XXH3 finds any difference that is not made to be missed, and
        to make one would take the noise beforehand; SHA-256 over all numbers costs a quarter as much as the noise.
        """
        flat = total.detach().cpu().reshape(-1)
        result = torch.empty_like(flat)
        for start in range(0, len(flat), BLOCK):
            part = flat[start : start + BLOCK].to(torch.float64, copy=True)
            part.div_(spacing).round_().clamp_(-LARGEST, LARGEST)
            noise = self.noise.normals(part.shape).mul_(deviation / spacing).round_()
            # Of the two zeros there is one: the other would tell that the sum was below 0.
            noise.add_(part).add_(0.0)
            # What is rounded from here on is a number of the lattice: rounding it tells nothing else.
            result[start : start + BLOCK] = noise.mul_(spacing / self.stream.denominator)
            digest.update(
                xxhash.xxh3_128_digest(result[start : start + BLOCK].view(torch.uint8).numpy().data)
            )
        return result.reshape(total.shape).to(total.device)
