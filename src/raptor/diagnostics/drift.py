"""How far the inputs of a router may move before records change their owner, from margins of public records.

A linear router's cells are a power diagram, so a token keeps its experts as long as it moves by less than its distance
to the nearest face between one of them and another one. A record keeps its owner as long as the votes of tokens that
are sure outweigh all that the others could do. RAPTOR fixes the owners before training, so drift never touches the
guarantee: it decides whether a record still trains an expert that it routes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raptor.diagnostics.gradients import BATCH
from raptor.errors import ModelError
from raptor.moe.families import SparseLayer, sparse_layer
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import Vote
from raptor.moe.statistics import Floats

Gates = Literal["softmax", "chosen softmax"]
_TOKENS = 4096
_PAIRS = 2**22


@dataclass(frozen=True)
class LinearRouter:
    """Scores h W^T + b of a router, and what its gates are made of.

    Attributes:
        weight: (E, width) float64.
        bias: (E,) float64.
        top_k: experts of a token.
        gates: softmax over all experts, or over the chosen ones.
    """

    weight: Tensor
    bias: Tensor
    top_k: int
    gates: Gates

    def scores(self, hidden: Tensor) -> Tensor:
        """(tokens, width) -> (tokens, E)."""
        return hidden @ self.weight.T + self.bias

    def gated(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gates of the chosen experts, zero elsewhere, and the softmax over all: two (tokens, E)."""
        scores = self.scores(hidden)
        best, chosen = scores.topk(self.top_k, dim=1)
        probabilities = scores.softmax(dim=1)
        kept = probabilities.gather(1, chosen) if self.gates == "softmax" else best.softmax(dim=1)
        return torch.zeros_like(scores).scatter(1, chosen, kept), probabilities


@dataclass(frozen=True)
class RoutedTokens:
    """The real tokens of public records at one router.

    Attributes:
        hidden: (tokens, width) float64, inputs of the router.
        record: (tokens,) int64, ascending.
        records: number of records.
    """

    hidden: Tensor
    record: Tensor
    records: int

    def per_record(self, values: Tensor) -> Tensor:
        """(tokens, ...) summed over the tokens of each record: (records, ...)."""
        total = values.new_zeros(self.records, *values.shape[1:])
        return total.index_add_(0, self.record, values)


def routed_tokens(
    encoder: nn.Module, input_ids: Tensor, lengths: Tensor, layer: int
) -> tuple[RoutedTokens, LinearRouter]:
    """The inputs of a layer's router, and the router as a linear map.

    Args:
        encoder: in evaluation mode, on the CPU.
        input_ids: (records, tokens), right-padded.
        lengths: (records,) real tokens.

    Raises:
        ModelError: what the router chooses is not what a linear map with a softmax chooses.
    """
    sparse = sparse_layer(encoder, layer)
    calls: list[tuple[Tensor, Any]] = []

    def keep(_module: nn.Module, given: Any, output: Any) -> None:
        calls.append((given[0], output))

    handle = sparse.router.register_forward_hook(keep)
    hidden, chosen, weights = [], [], []
    try:
        for start in range(0, len(lengths), BATCH):
            rows = torch.arange(start, min(start + BATCH, len(lengths)))
            longest = int(lengths[rows].max())
            mask = torch.arange(longest)[None] < lengths[rows][:, None]
            with torch.no_grad():
                encoder(input_ids=input_ids[rows, :longest].long(), attention_mask=mask.long())
            given, output = calls.pop()
            routing = sparse.family.read_routing(output, len(rows))
            hidden.append(given.reshape(len(rows), longest, -1)[mask].double())
            chosen.append(routing.experts[mask])
            weights.append(routing.weights[mask].double())
    finally:
        handle.remove()
    tokens = RoutedTokens(
        torch.cat(hidden), torch.arange(len(lengths)).repeat_interleave(lengths), len(lengths)
    )
    return tokens, _linear(sparse, tokens.hidden, torch.cat(chosen), torch.cat(weights))


def _linear(sparse: SparseLayer, hidden: Tensor, chosen: Tensor, weights: Tensor) -> LinearRouter:
    """Read the router's map, and see whether it explains what the router did."""
    maps = [module for module in sparse.router.modules() if getattr(module, "weight", None) is not None]
    if len(maps) == 1:
        weight = maps[0].get_parameter("weight").detach().double()
        bias = getattr(maps[0], "bias", None)
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().double()
        if weight.shape == (sparse.num_experts, hidden.shape[1]):
            for gates in ("softmax", "chosen softmax"):
                router = LinearRouter(weight, bias, chosen.shape[1], gates)
                expected = torch.zeros_like(router.scores(hidden[:_TOKENS])).scatter(
                    1, chosen[:_TOKENS], weights[:_TOKENS]
                )
                close = (router.gated(hidden[:_TOKENS])[0] - expected).abs().amax(dim=1) < 1e-4
                # Two scores that are equal but for rounding may be chosen either way.
                if float(close.double().mean()) > 0.999:
                    return router
    raise ModelError(
        f"The router {sparse.name} does not choose by a linear map and a softmax, so no margins are known for it."
    )


def token_margins(router: LinearRouter, hidden: Tensor) -> Tensor:
    """Distance of each token to the nearest place where its set of experts changes: (tokens,).

    min over chosen a and other b of (score_a - score_b) / |w_a - w_b|; exact. Infinite where every expert is chosen.
    """
    distances = torch.cdist(router.weight, router.weight)
    # Every pair of experts for each token: as many tokens at a time as fit in a few dozen megabytes.
    size = max(1, _PAIRS // distances.numel())
    found = []
    for start in range(0, len(hidden), size):
        scores = router.scores(hidden[start : start + size])
        is_chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(
            1, scores.topk(router.top_k, dim=1).indices, True
        )
        gaps = (scores[:, :, None] - scores[:, None, :]).clamp_min(0) / distances
        crosses = is_chosen[:, :, None] & ~is_chosen[:, None, :]
        # Two experts of one direction never change places; 0/0 is such a pair with equal scores, a tie.
        gaps = gaps.nan_to_num(nan=0.0, posinf=torch.inf)
        found.append(gaps.masked_fill(~crosses, torch.inf).flatten(1).amin(dim=1))
    return torch.cat(found)


@dataclass(frozen=True)
class OwnerStability:
    """Owners under drift of their tokens.

    Attributes:
        drifts: distances by which every token may move.
        unsure: share of records whose owner is not certain to stay under any such drift (tau, an upper bound).
        moved: share of records whose owner changes when every token moves that far in a random direction.
    """

    drifts: tuple[float, ...]
    unsure: tuple[float, ...]
    moved: tuple[float, ...]


def owner_stability(
    tokens: RoutedTokens, router: LinearRouter, vote: Vote, drifts: Sequence[float], seed: int = 0
) -> OwnerStability:
    """Both shares for each drift.

    Args:
        seed: of the random directions; the records are public and nothing is protected.
    """
    gates, probabilities = router.gated(tokens.hidden)
    margins = token_margins(router, tokens.hidden)
    owners = assign_owners(tokens.per_record(_ballots(gates, vote)))
    generator = torch.Generator().manual_seed(seed)
    directions = functional.normalize(
        torch.randn(tokens.hidden.shape, generator=generator, dtype=torch.float64), dim=1
    )
    unsure, moved = [], []
    for drift in drifts:
        sure = certain_owners(tokens, router, vote, drift, gates, probabilities, margins)
        unsure.append(1.0 - float(sure.double().mean()))
        after, _ = router.gated(tokens.hidden + drift * directions)
        changed = assign_owners(tokens.per_record(_ballots(after, vote))) != owners
        moved.append(float(changed.double().mean()))
    return OwnerStability(tuple(drifts), tuple(unsure), tuple(moved))


def certain_owners(
    tokens: RoutedTokens,
    router: LinearRouter,
    vote: Vote,
    drift: float,
    gates: Tensor,
    probabilities: Tensor,
    margins: Tensor,
) -> Tensor:
    """Whether each record keeps its owner wherever its tokens move by at most `drift`: (records,) bool.

    A token whose margin is larger keeps its experts, and each of its gates, a softmax, moves by at most `drift` times
    a quarter of the largest distance between two rows of the router. Any other token may take its votes away, and give
    an expert as much as its softmax could become.
    """
    stays = (margins > drift)[:, None]
    is_chosen = gates > 0
    if vote == "count":
        least, most = is_chosen.double(), torch.ones_like(gates)
        greatest = least
    else:
        reach = 0.25 * float(torch.cdist(router.weight, router.weight).max()) * drift
        least = (gates - reach).clamp_min(0.0)
        greatest = (gates + reach).clamp_max(1.0) * is_chosen
        most = (probabilities + reach).clamp_max(1.0)
        if router.gates == "chosen softmax":
            most = torch.ones_like(gates)
    low = tokens.per_record(least * is_chosen * stays)
    high = tokens.per_record(torch.where(stays, greatest, most))
    owners = assign_owners(tokens.per_record(_ballots(gates, vote)))[:, None]
    others = high.scatter(1, owners, -torch.inf).amax(dim=1)
    return low.gather(1, owners)[:, 0] > others


def _ballots(gates: Tensor, vote: Vote) -> Tensor:
    return (gates > 0).double() if vote == "count" else gates


@dataclass(frozen=True)
class Drift:
    """What a training did to the routing of public records, by comparing two models on the same tokens.

    Attributes:
        norm: median norm of a token at the router before.
        median, most: median and 95th percentile of how far tokens have moved.
        moved: share of records that would have another owner now.
        missed: share of records none of whose tokens goes to their (old) owner now.
        chi2_before, chi2_after: E sum (q - 1/E)^2 of the owners by either model.
    """

    norm: float
    median: float
    most: float
    moved: float
    missed: float
    chi2_before: float
    chi2_after: float


def drift_between(
    before: RoutedTokens, after: RoutedTokens, routers: tuple[LinearRouter, LinearRouter], vote: Vote
) -> Drift:
    """Compare a layer's routing before and after a training, on the same public records."""
    distance = (after.hidden - before.hidden).norm(dim=1)
    gates = [router.gated(tokens.hidden)[0] for router, tokens in zip(routers, (before, after), strict=True)]
    first, second = (assign_owners(before.per_record(_ballots(gate, vote))) for gate in gates)
    at_owner = before.per_record((gates[1] > 0).double()).gather(1, first[:, None])[:, 0]
    experts = gates[0].shape[1]
    return Drift(
        norm=float(before.hidden.norm(dim=1).median()),
        median=float(distance.median()),
        most=float(distance.quantile(0.95)),
        moved=float((first != second).double().mean()),
        missed=float((at_owner == 0).double().mean()),
        chi2_before=_chi2(first, experts),
        chi2_after=_chi2(second, experts),
    )


def _chi2(owners: Tensor, experts: int) -> float:
    loads = torch.bincount(owners, minlength=experts).numpy() / len(owners)
    return float(experts * np.square(loads - 1 / experts).sum())


def drift_grid(norm: float, points: int = 13) -> Floats:
    """Drifts from a thousandth of a token's norm to all of it, evenly on a log scale."""
    grid: Floats = norm * np.logspace(-3, 0, points)
    return grid
