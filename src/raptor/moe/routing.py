"""How records route through a model: per-record votes of each expert in every sparse layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from raptor.errors import ParameterError
from raptor.moe.families import Routing, SparseLayer, sparse_layers
from raptor.moe.images import ImageInput

Vote = Literal["weight", "count"]


@contextmanager
def _traced(layers: tuple[SparseLayer, ...], records: Callable[[], int]) -> Iterator[dict[int, Routing]]:
    """Collect the routing of each layer during the forward passes made inside the block."""
    trace: dict[int, Routing] = {}

    def reader(layer: SparseLayer) -> Callable[[nn.Module, Any, Any], None]:
        def read(_module: nn.Module, _inputs: Any, output: Any) -> None:
            trace[layer.index] = layer.family.read_routing(output, records())

        return read

    handles = [layer.router.register_forward_hook(reader(layer)) for layer in layers]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _votes(routing: Routing, mask: Tensor, experts: int, vote: Vote) -> Tensor:
    """(records, experts) float64; padding tokens do not vote."""
    amount = routing.weights.double() if vote == "weight" else torch.ones_like(routing.weights).double()
    amount = amount * mask[:, :, None]
    chosen = functional.one_hot(routing.experts, experts).double()
    return torch.einsum("ntk,ntke->ne", amount, chosen)


def record_votes(
    encoder: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    vote: Vote = "weight",
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
    images: ImageInput | None = None,
) -> dict[int, Tensor]:
    """Votes of every record for every expert, in each sparse layer.

    `weight` sums the router weights of a record's tokens over their top-k choices, `count` counts the
    choices (RAPTOR, arXiv 2609.05770, figure 2 and section 3.3). Both use the raw choice, before any
    capacity limit, and leave padding out. The vote of a record does not depend on other records.

    Args:
        encoder: model with sparse layers; run in evaluation mode, its mode is restored.
        input_ids: (records, tokens) int64, padded.
        attention_mask: (records, tokens), 1 for real tokens.
        vote: the rule.
        batch_size: records of one forward pass.
        progress: called with the number of records done after each pass.
        images: pictures of the records; tokens in whose place a picture stands vote like others.

    Returns:
        layer index -> (records, experts) float64 on the CPU.

    Raises:
        ModelError: the model has no sparse layer.
        ParameterError: the rule is unknown.
    """
    if vote not in ("weight", "count"):
        raise ParameterError(f"ingestion.owner_vote is {vote!r}; it must be 'weight' or 'count'.")
    layers = sparse_layers(encoder)
    device = next(encoder.parameters()).device
    was_training = encoder.training
    encoder.eval()
    collected: dict[int, list[Tensor]] = {layer.index: [] for layer in layers}
    size = 0
    try:
        with torch.no_grad(), _traced(layers, lambda: size) as trace:
            for start in range(0, len(input_ids), batch_size):
                mask = attention_mask[start : start + batch_size]
                longest = max(int((mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).max()), 1)
                mask = mask[:, :longest].to(device)
                size = len(mask)
                given: dict[str, Any] = {"input_ids": input_ids[start : start + size, :longest].to(device)}
                if images is not None:
                    given["images"] = images[start : start + size].fit(longest).to(device)
                encoder(**given, attention_mask=mask)
                for layer in layers:
                    votes = _votes(trace[layer.index], mask, layer.num_experts, vote)
                    collected[layer.index].append(votes.cpu())
                if progress is not None:
                    progress(size)
    finally:
        encoder.train(was_training)
    return {
        layer.index: torch.cat(collected[layer.index])
        if collected[layer.index]
        else torch.zeros(0, layer.num_experts, dtype=torch.float64)
        for layer in layers
    }
