"""What the loads of the experts decide: dilution, steps without a record, and the bias of a public denominator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raptor.moe.statistics import Floats


@dataclass(frozen=True)
class EntropyBounds:
    """The bias of the public denominator between two functions of the entropy.

    With the deficit Delta = log E - H(q) and t = E max q: exp(Delta) - 1 <= chi2, by Jensen's inequality;
    chi2 <= kappa(t) Delta; chi2 <= E Delta, by Pinsker's, which is the weaker of the two from E = 4 on.

    Attributes:
        deficit: Delta, in nats.
        lower: exp(Delta) - 1.
        chi2: E sum (q - 1/E)^2, the mean over experts of the squared relative bias under B/E.
        tight: kappa(t) Delta.
        upper: E Delta.
    """

    deficit: float
    lower: float
    chi2: float
    tight: float
    upper: float


def kappa(largest: float) -> float:
    """(t - 1)^2 / (t log t - t + 1): the most that chi2 is, in units of the deficit, where no E q exceeds t."""
    if largest <= 1.0 + 1e-6:
        return 2.0
    return (largest - 1.0) ** 2 / (largest * math.log(largest) - largest + 1.0)


def entropy_bounds(loads: Floats) -> EntropyBounds:
    """The chain of bounds for (E,) loads that sum to one."""
    experts = len(loads)
    # x log x - x + 1 at x = E q sums to E Delta without the loss of digits that log E - H has near evenness.
    relative = experts * loads
    deviations = relative - 1.0
    terms = np.where(
        np.abs(deviations) < 1e-4,
        deviations**2 / 2 - deviations**3 / 6,
        relative * np.log(np.where(relative > 0, relative, 1.0)) - deviations,
    )
    deficit = float(terms.mean())
    return EntropyBounds(
        deficit=deficit,
        lower=math.expm1(deficit),
        chi2=float((deviations**2).mean()),
        tight=kappa(float(relative.max())) * deficit,
        upper=experts * deficit,
    )


def dilution(loads: Floats, denominator: str) -> Floats:
    """E[N_e] / D: what is left of an expert's mean gradient when its sum is divided by a public D.

    Args:
        loads: (E,) shares of the records.
        denominator: `batch` for D = B, which leaves q_e; `owner` for D = B/E, which leaves E q_e.
    """
    factors = {"batch": 1.0, "owner": float(len(loads))}
    left: Floats = factors[denominator] * loads
    return left


def empty_rates(loads: Floats, batch_size: float) -> Floats:
    """exp(-B q_e): how often a step of expected size B finds no record of an expert, for a small sampling rate."""
    rates: Floats = np.exp(-batch_size * loads)
    return rates


def drawn_empty_rates(
    loads: Floats, batch_size: float, population: int, steps: int, generator: np.random.Generator
) -> Floats:
    """The same by drawing: of `steps` Poisson samples from a population with these loads, the share without a record.

    The records are public or made up, so any generator will do.
    """
    owned = np.round(population * loads).astype(np.int64)
    counts: NDArray[np.int64] = generator.binomial(owned, batch_size / population, size=(steps, len(loads)))
    rates: Floats = (counts == 0).mean(axis=0)
    return rates
