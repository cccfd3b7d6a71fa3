"""How evenly one sparse layer shares records among its experts, and which layer to protect.

Notation: ``q[e]`` is the share of public records owned by expert ``e`` of a layer with ``E`` experts, ``H(q)``
its entropy in nats, ``Delta = log E - H(q)`` the entropy deficit, and ``chi2 = E * sum (q - 1/E)^2``. The mean
over experts of the squared relative bias that a public denominator ``B/E`` causes is exactly ``chi2``, and
``exp(Delta) - 1 <= chi2 <= E * Delta``. The rule, argmax entropy, is that of section 3 of "RAPTOR"
(arXiv 2609.05770). Everything here is computed on public records, so nothing is charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from raptor.errors import ParameterError

Owners = NDArray[np.int64]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

STANDARD_ERRORS: Final = 2.0
"""A gap to the runner-up below this many standard errors is not called a winner."""

# Two layers whose entropies differ by rounding alone (one owner map is a renaming of the other) are a tie.
_ROUNDING: Final = 1e-12


@dataclass(frozen=True)
class LoadStatistics:
    """The load of one layer, from its owner histogram.

    Attributes:
        experts: number of experts ``E``.
        records: number of records ``N``.
        counts: records owned by each expert, length ``E``, sum ``N``.
        entropy: plug-in entropy in nats, between 0 and ``log E``.
        normalised_entropy: ``entropy / log E``, between 0 and 1 (1 when ``E`` is 1).
        entropy_deficit: ``log E - entropy`` in nats; the number by which layers are compared.
        miller_madow_correction: ``(m - 1) / (2 N)`` nats for ``m`` experts that own a record; the plug-in
            entropy lies below the true one by about this much (Miller, 1955). Reported, never applied: it is the
            same for layers of equal ``E`` without an idle expert.
        chi2: chi-square divergence from the uniform load, between 0 and ``E - 1``.
        max_share, min_share: largest and smallest ``q[e]``.
    """

    experts: int
    records: int
    counts: tuple[int, ...]
    entropy: float
    normalised_entropy: float
    entropy_deficit: float
    miller_madow_correction: float
    chi2: float
    max_share: float
    min_share: float


@dataclass(frozen=True)
class LayerProfile:
    """One row of the routing profile.

    Attributes:
        layer: index of the layer in the model.
        load: its load statistics.
        entropy_standard_error: bootstrap standard error of the entropy, in nats.
        gap: how far its entropy deficit lies above the best layer's, in nats; 0 for the best layer.
        gap_standard_error: paired bootstrap standard error of ``gap``, in nats; 0 for the best layer.
        vote_agreement: share of records whose owner is the same under both vote rules.
    """

    layer: int
    load: LoadStatistics
    entropy_standard_error: float
    gap: float
    gap_standard_error: float
    vote_agreement: float


@dataclass(frozen=True)
class LayerChoice:
    """The chosen layer and how sure the choice is.

    ``runner_up``, ``gap`` and ``gap_standard_error`` are None when there is one candidate only; ``significant``
    is then true, as nothing was compared. ``not_distinguished`` lists the layers whose gap to the chosen one is
    below two standard errors (an exact tie among them).
    """

    layer: int
    entropy: float
    experts: int
    runner_up: int | None
    gap: float | None
    gap_standard_error: float | None
    significant: bool
    not_distinguished: tuple[int, ...]
    candidates: tuple[int, ...]
    rule: Literal["argmax entropy", "argmin log E - entropy"]


def owner_histogram(owners: Owners, experts: int) -> Counts:
    """Count the records of each expert: ``(N,)`` owners to ``(experts,)`` counts.

    Raises:
        ValueError: no record, or an owner outside ``0 .. experts - 1``.
    """
    if owners.ndim != 1 or owners.size == 0:
        raise ValueError("owners must be a non-empty vector")
    if owners.min() < 0 or owners.max() >= experts:
        raise ValueError(f"an owner lies outside 0..{experts - 1}")
    return np.bincount(owners, minlength=experts).astype(np.int64)


def entropies(counts: NDArray[np.int64]) -> Floats:
    """Plug-in entropy in nats of each histogram: ``(..., E)`` counts to ``(...)`` entropies."""
    shares = counts / counts.sum(axis=-1, keepdims=True)
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    # Rounding may leave a one-point histogram at -0.0.
    result: Floats = np.maximum(-(shares * logs).sum(axis=-1), 0.0)
    return result


def load_statistics(counts: Counts) -> LoadStatistics:
    """Summarise one owner histogram of shape ``(E,)``.

    Raises:
        ValueError: the histogram is not a vector, is negative somewhere or holds no record.
    """
    if counts.ndim != 1 or counts.size == 0 or counts.min() < 0 or counts.sum() == 0:
        raise ValueError("counts must be a vector of non-negative numbers with a positive sum")
    experts, records = int(counts.size), int(counts.sum())
    shares = counts / records
    entropy = min(float(entropies(counts)), float(np.log(experts)))
    return LoadStatistics(
        experts=experts,
        records=records,
        counts=tuple(int(count) for count in counts),
        entropy=entropy,
        normalised_entropy=entropy / float(np.log(experts)) if experts > 1 else 1.0,
        entropy_deficit=float(np.log(experts)) - entropy,
        miller_madow_correction=(int(np.count_nonzero(counts)) - 1) / (2 * records),
        chi2=float(experts * np.square(shares - 1 / experts).sum()),
        max_share=float(shares.max()),
        min_share=float(shares.min()),
    )


def bootstrap_deficits(
    owners: Mapping[int, Owners], experts: Mapping[int, int], resamples: int, generator: np.random.Generator
) -> dict[int, Floats]:
    """Bootstrap the entropy deficit of every layer, on the same resampled records for all layers.

    Args:
        owners: layer index to the ``(N,)`` owners of the same ``N`` records.
        experts: layer index to its number of experts.
        resamples: number of resamples ``R``, at least 2.
        generator: the records are public, so any generator will do.

    Returns:
        Layer index to ``(R,)`` deficits in nats. Entry ``r`` of every layer comes from one draw of ``N`` records
        with replacement, so the difference of two layers keeps their correlation (a paired bootstrap).

    Raises:
        ValueError: fewer than two resamples, or layers with different numbers of records.
    """
    if resamples < 2:
        raise ValueError("a standard error needs at least 2 resamples")
    sizes = {layer_owners.size for layer_owners in owners.values()}
    if len(sizes) != 1:
        raise ValueError("every layer must have the owners of the same records")
    (records,) = sizes
    deficits = {layer: np.empty(resamples) for layer in owners}
    for resample in range(resamples):
        rows = generator.integers(records, size=records)
        for layer, layer_owners in owners.items():
            counts = owner_histogram(layer_owners[rows], experts[layer])
            deficits[layer][resample] = np.log(experts[layer]) - float(entropies(counts))
    return deficits


def vote_agreement(first: Owners, second: Owners) -> float:
    """Share of records that have the same owner in both ``(N,)`` maps."""
    if first.shape != second.shape or first.size == 0:
        raise ValueError("the two owner maps must cover the same records")
    return float(np.mean(first == second))


def profile_layers(
    owners: Mapping[int, Owners],
    other_owners: Mapping[int, Owners],
    experts: Mapping[int, int],
    resamples: int,
    seed: int = 0,
) -> tuple[LayerProfile, ...]:
    """Profile every sparse layer on the same public records.

    Args:
        owners: layer index to ``(N,)`` owners under the vote rule in use.
        other_owners: the same under the other vote rule, for the agreement rate.
        experts: layer index to its number of experts.
        resamples: number of bootstrap resamples, at least 2.
        seed: of the bootstrap. A fixed seed is right here: the records are public and nothing is protected.

    Returns:
        One profile for each layer, by layer index.

    Raises:
        ValueError: no layer, no record, or maps of different records.
    """
    if not owners:
        raise ValueError("there is no layer to profile")
    layers = sorted(owners)
    loads = {layer: load_statistics(owner_histogram(owners[layer], experts[layer])) for layer in layers}
    deficits = bootstrap_deficits(owners, experts, resamples, np.random.default_rng(seed))
    best = _rank(loads)[0]
    return tuple(
        LayerProfile(
            layer=layer,
            load=loads[layer],
            entropy_standard_error=_deviation(deficits[layer]),
            gap=loads[layer].entropy_deficit - loads[best].entropy_deficit,
            gap_standard_error=_deviation(deficits[layer] - deficits[best]),
            vote_agreement=vote_agreement(owners[layer], other_owners[layer]),
        )
        for layer in layers
    )


def choose_layers(profile: Sequence[LayerProfile], candidates: Sequence[int] | None = None) -> LayerChoice:
    """Choose the layer with the largest entropy; with different ``E`` the smallest ``log E - H``.

    Ties go to the lowest layer index. The choice stands even when the gap to the runner-up is below two
    standard errors, but it is then not called significant.

    Args:
        profile: rows of :func:`profile_layers` over the candidates and no other layer, as the gaps are measured
            from the best of them.
        candidates: the layer indices to choose among; None means all of ``profile``.

    Raises:
        ParameterError: a candidate is not among the profiled layers, or there is none.
    """
    rows = {row.layer: row for row in profile}
    chosen_from = sorted(rows) if candidates is None else sorted(set(candidates))
    unknown = [layer for layer in chosen_from if layer not in rows]
    if unknown or not chosen_from:
        raise ParameterError(
            f"selection.layers names {unknown or 'no layer'}: the sparse layers of this model are {sorted(rows)}. "
            "Set selection.layers to auto or to some of them."
        )
    raise NotImplementedError
