"""How evenly each sparse layer shares records among its experts, and which layer to protect.

``q[e]`` is the share of public records owned by expert ``e`` of a layer with ``E`` experts, ``H(q)`` its
entropy in nats, ``Delta = log E - H(q)`` the entropy deficit, and ``chi2 = E * sum (q - 1/E)^2``: the mean
over experts of the squared relative bias that a public denominator ``B/E`` causes. They bound each other:
``exp(Delta) - 1 <= chi2 <= E * Delta``. The rule, argmax entropy, is that of section 3 of "RAPTOR"
(arXiv 2609.05770). Everything here is computed on public records, so nothing is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from raptor.errors import ParameterError

Owners = NDArray[np.int64]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Rule = Literal["argmax entropy", "argmin log E - entropy", "only candidate"]

STANDARD_ERRORS: Final = 2.0
"""A gap to the runner-up below this many standard errors is not called a winner."""

# Two layers whose deficits differ by rounding alone (one owner map is a renaming of the other) are a tie.
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
        miller_madow_correction: ``(m - 1) / (2 N)`` nats for the ``m`` experts that own a record. The plug-in
            entropy lies below the true one by about this much (Miller, 1955). Reported, never applied: it
            is the same for layers of equal ``E`` without an idle expert.
        chi2: chi-square divergence from the uniform load, between 0 and ``E - 1``.
        max_share: largest ``q[e]``.
        min_share: smallest ``q[e]``.
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
class LayerStatistics:
    """One layer of the routing profile.

    Attributes:
        layer: index of the layer in the model.
        load: its load statistics.
        entropy_standard_error: bootstrap standard error of the entropy, in nats.
        vote_agreement: share of records whose owner is the same under both vote rules.
    """

    layer: int
    load: LoadStatistics
    entropy_standard_error: float
    vote_agreement: float


@dataclass(frozen=True)
class Gap:
    """``deficit(second) - deficit(first)`` in nats and its paired bootstrap standard error."""

    first: int
    second: int
    gap: float
    standard_error: float


@dataclass(frozen=True)
class RoutingStatistics:
    """All sparse layers by index, and the gap of every pair of them."""

    layers: tuple[LayerStatistics, ...]
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class LayerChoice:
    """The chosen layer, and how sure the choice is.

    Attributes:
        layer: the chosen layer.
        entropy: its entropy in nats.
        experts: its number of experts.
        runner_up: the next candidate; None when there was one candidate only.
        gap: the runner-up's entropy deficit above that of the chosen layer, in nats, or None.
        gap_standard_error: paired bootstrap standard error of ``gap``, or None.
        significant: whether ``gap`` is positive and at least two standard errors. True with one candidate, as
            nothing was compared.
        not_distinguished: candidates whose gap to the chosen layer is not significant.
        candidates: the layers that were compared.
        rule: what was compared.
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
    rule: Rule


def owner_histogram(owners: Owners, experts: int) -> Counts:
    """Count the records of each expert: ``(N,)`` owners to ``(experts,)`` counts.

    Raises:
        ValueError: there is no record, or an owner outside ``0 .. experts - 1``.
    """
    if owners.ndim != 1 or owners.size == 0:
        raise ValueError("owners must be a non-empty vector")
    if owners.min() < 0 or owners.max() >= experts:
        raise ValueError(f"an owner lies outside 0..{experts - 1}")
    return np.bincount(owners, minlength=experts).astype(np.int64)


def entropies(counts: Counts) -> Floats:
    """Plug-in entropy in nats of each histogram: ``(..., E)`` counts to ``(...)`` entropies."""
    shares = counts / counts.sum(axis=-1, keepdims=True)
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    # Rounding may push a value past either end of its range.
    clipped: Floats = np.clip(-(shares * logs).sum(axis=-1), 0.0, np.log(counts.shape[-1]))
    return clipped


def load_statistics(counts: Counts) -> LoadStatistics:
    """Summarise one owner histogram of shape ``(E,)``.

    Raises:
        ValueError: the histogram is not a vector, is negative somewhere or holds no record.
    """
    if counts.ndim != 1 or counts.size == 0 or counts.min() < 0 or counts.sum() == 0:
        raise ValueError("counts must be a vector of non-negative numbers with a positive sum")
    experts, records = int(counts.size), int(counts.sum())
    shares = counts / records
    entropy, most = float(entropies(counts)), float(np.log(experts))
    return LoadStatistics(
        experts=experts,
        records=records,
        counts=tuple(int(count) for count in counts),
        entropy=entropy,
        normalised_entropy=entropy / most if experts > 1 else 1.0,
        entropy_deficit=most - entropy,
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
        Layer index to ``(R,)`` deficits in nats. Entry ``r`` of every layer comes from the same ``N`` records
        drawn with replacement, so a difference of two layers keeps their correlation (a paired bootstrap).

    Raises:
        ValueError: fewer than two resamples, or layers with different numbers of records.
    """
    if resamples < 2:
        raise ValueError("a standard error needs at least 2 resamples")
    sizes = {layer_owners.size for layer_owners in owners.values()}
    if len(sizes) != 1:
        raise ValueError("every layer must have the owners of the same records")
    (records,) = sizes
    counts = {layer: np.empty((resamples, experts[layer]), dtype=np.int64) for layer in owners}
    for resample in range(resamples):
        rows = generator.integers(records, size=records)
        for layer, layer_owners in owners.items():
            counts[layer][resample] = np.bincount(layer_owners[rows], minlength=experts[layer])
    return {layer: np.log(experts[layer]) - entropies(drawn) for layer, drawn in counts.items()}


def vote_agreement(first: Owners, second: Owners) -> float:
    """Share of records that have the same owner in both ``(N,)`` maps.

    Raises:
        ValueError: the maps are empty or cover different numbers of records.
    """
    if first.shape != second.shape or first.size == 0:
        raise ValueError("the two owner maps must cover the same records")
    return float(np.mean(first == second))


def profile_layers(
    owners: Mapping[int, Owners],
    other_owners: Mapping[int, Owners],
    experts: Mapping[int, int],
    resamples: int,
    seed: int = 0,
) -> RoutingStatistics:
    """Profile every sparse layer on the same public records.

    Args:
        owners: layer index to the ``(N,)`` owners under the vote rule in use.
        other_owners: the same under the other vote rule, for the agreement rate.
        experts: layer index to its number of experts.
        resamples: number of bootstrap resamples, at least 2.
        seed: of the bootstrap. A fixed seed is right here: the records are public and nothing is protected.

    Raises:
        ValueError: there is no layer or no record, or the maps cover different records.
    """
    layers = sorted(owners)
    loads = {layer: load_statistics(owner_histogram(owners[layer], experts[layer])) for layer in layers}
    deficits = bootstrap_deficits(owners, experts, resamples, np.random.default_rng(seed))
    return RoutingStatistics(
        layers=tuple(
            LayerStatistics(
                layer=layer,
                load=loads[layer],
                entropy_standard_error=_deviation(deficits[layer]),
                vote_agreement=vote_agreement(owners[layer], other_owners[layer]),
            )
            for layer in layers
        ),
        gaps=tuple(
            Gap(
                first=first,
                second=second,
                gap=loads[second].entropy_deficit - loads[first].entropy_deficit,
                standard_error=_deviation(deficits[second] - deficits[first]),
            )
            for first, second in combinations(layers, 2)
        ),
    )


def choose_layers(profile: RoutingStatistics, candidates: Sequence[int] | None = None) -> LayerChoice:
    """Choose the layer with the largest entropy; among layers of different ``E`` the smallest ``log E - H``.

    Ties go to the lowest layer index. The choice stands even when its gap to the runner-up is below two
    standard errors, but it is then not called significant.

    Args:
        profile: statistics of all sparse layers.
        candidates: the layer indices to choose among; None means all.

    Raises:
        ParameterError: a candidate is not a sparse layer of the profile, or there is no candidate.
    """
    rows = {row.layer: row for row in profile.layers}
    compared = sorted(rows if candidates is None else set(candidates))
    unknown = [layer for layer in compared if layer not in rows]
    if unknown or not compared:
        raise ParameterError(
            f"selection.layers names {unknown if unknown else 'no layer'}, but the sparse layers of the base "
            f"model are {sorted(rows)}. Set selection.layers to auto, or to a list of some of these."
        )
    deficits = {layer: rows[layer].load.entropy_deficit for layer in compared}
    chosen = _lowest(deficits)
    others = {layer: deficit for layer, deficit in deficits.items() if layer != chosen}
    gaps = {layer: _gap_between(profile.gaps, chosen, layer) for layer in others}
    load, runner_up = rows[chosen].load, _lowest(others) if others else None
    experts = {rows[layer].load.experts for layer in compared}
    rule: Rule = "argmax entropy" if len(experts) == 1 else "argmin log E - entropy"
    return LayerChoice(
        layer=chosen,
        entropy=load.entropy,
        experts=load.experts,
        runner_up=runner_up,
        gap=None if runner_up is None else gaps[runner_up][0],
        gap_standard_error=None if runner_up is None else gaps[runner_up][1],
        significant=runner_up is None or _is_significant(*gaps[runner_up]),
        not_distinguished=tuple(layer for layer, gap in gaps.items() if not _is_significant(*gap)),
        candidates=tuple(compared),
        rule=rule if others else "only candidate",
    )


def ranked_layers(profile: RoutingStatistics, candidates: Sequence[int]) -> tuple[int, ...]:
    """The candidates in the order in which `choose_layers` would choose them if the ones before were not there."""
    rows = {row.layer: row for row in profile.layers}
    left = {layer: rows[layer].load.entropy_deficit for layer in candidates}
    order = []
    while left:
        order.append(_lowest(left))
        del left[order[-1]]
    return tuple(order)


def _lowest(deficits: Mapping[int, float]) -> int:
    bound = min(deficits.values()) + _ROUNDING
    return min(layer for layer, deficit in deficits.items() if deficit <= bound)


def _gap_between(gaps: Iterable[Gap], chosen: int, other: int) -> tuple[float, float]:
    pair = {chosen, other}
    found = next(gap for gap in gaps if {gap.first, gap.second} == pair)
    gap = found.gap if found.first == chosen else -found.gap
    return max(gap, 0.0), found.standard_error


def _is_significant(gap: float, standard_error: float) -> bool:
    return gap > _ROUNDING and gap >= STANDARD_ERRORS * standard_error


def _deviation(values: Floats) -> float:
    return float(np.std(values, ddof=1))
