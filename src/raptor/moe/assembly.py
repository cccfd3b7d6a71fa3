"""Making a sparse encoder out of a dense one (sparse upcycling, arXiv 2212.05055), from public data only."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PreTrainedModel

from raptor.errors import ModelError, ParameterError
from raptor.moe.upcycled import KEY, UpcycledMoeBlock, Upcycling, sparsify, upcycled_class

ROUNDS = 30
"""Of clustering, and of balancing: more change nothing that is seen."""
SHARPNESS = 8.0
"""Router scores are cosines with a cluster's centre times this."""


def upcycle(
    dense: PreTrainedModel,
    *,
    experts: int = 8,
    top_k: int = 1,
    layers: Sequence[int],
    noise: float = 0.0,
    seed: int = 0,
) -> PreTrainedModel:
    """A sparse encoder whose experts are copies of the dense feed-forward layers.

    Without noise it computes what the dense encoder does, for any router: weights of the chosen experts sum to 1.

    Args:
        dense: an encoder built like BERT or DistilBERT; it is left as it is.
        experts: in each sparse layer.
        top_k: experts that a token is sent to.
        layers: blocks that become sparse.
        noise: standard deviation of what is added to each expert's weights, relative to that of the weights. It
            makes experts differ, so that training can tell them apart.
        seed: of that noise. It protects nothing.

    Returns:
        An encoder whose routers are zero: see `settle_routers`.

    Raises:
        ModelError: the architecture is not covered, or a layer does not exist.
        ParameterError: numbers that do not fit together.
    """
    if not 1 <= top_k <= experts or noise < 0 or not layers:
        raise ParameterError(
            f"Upcycling needs 1 <= top_k <= experts, noise of at least 0 and a layer; given were top_k {top_k}, "
            f"experts {experts}, noise {noise}, layers {list(layers)}."
        )
    shape = Upcycling(experts, top_k, tuple(sorted(set(layers))))
    config = copy.deepcopy(dense.config)
    setattr(config, KEY, shape.to_json())
    trial = copy.deepcopy(dense)
    replaced = sparsify(trial, shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer, block in replaced.values():
            for target, source in (
                (block.experts.up_proj, layer.first.weight),
                (block.experts.down_proj, layer.second.weight),
            ):
                spread = noise * float(source.std())
                target.copy_(source[None] + spread * torch.randn(target.shape, generator=generator))
            for buffer, linear in (
                (block.experts.get_buffer("up_bias"), layer.first),
                (block.get_buffer("down_bias"), layer.second),
            ):
                if linear.bias is not None:
                    buffer.copy_(linear.bias)
    encoder: Any = upcycled_class(config)(config)
    weights = {name: value for name, value in trial.state_dict().items() if not name.startswith("pooler.")}
    encoder.load_state_dict(weights)
    made: PreTrainedModel = encoder.eval()
    return made


def sparse_blocks(encoder: nn.Module) -> list[UpcycledMoeBlock]:
    """The sparse blocks, first one first."""
    return [module for module in encoder.modules() if isinstance(module, UpcycledMoeBlock)]


@torch.no_grad()
def settle_routers(
    encoder: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, batch_size: int = 128, seed: int = 0
) -> list[Tensor]:
    """Train the routers on public texts and balance them, one layer after the other, in place.

    A router's rows are the centres of clusters of the texts by the mean of what enters the layer, so that texts
    that are alike have one owner. Then its biases are corrected until the experts own like numbers of texts and of
    tokens (after arXiv 2408.15664, with records as part of the load).

    Args:
        encoder: an upcycled encoder.
        input_ids: (texts, tokens) int64, padded; public.
        attention_mask: (texts, tokens), 1 for real tokens.
        batch_size: texts of one forward pass.
        seed: of the first centres.

    Returns:
        For each sparse layer the share of the texts that each expert owns, (experts,).

    Raises:
        ModelError: there is no sparse block, or fewer texts than experts.
    """
    blocks = sparse_blocks(encoder)
    if not blocks or len(input_ids) < blocks[0].gate.num_experts:
        raise ModelError("Routers need an upcycled encoder and at least as many public texts as experts.")
    shares = []
    real = attention_mask.bool()
    for block in blocks:
        # Layers before this one are settled, so what enters it is what will enter it in use.
        with _inputs_of(block) as seen:
            for start in range(0, len(input_ids), batch_size):
                rows = slice(start, start + batch_size)
                encoder(input_ids=input_ids[rows], attention_mask=attention_mask[rows])
        hidden = torch.cat(seen)
        means = (hidden * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp_min(1)
        centre = means.mean(dim=0)
        centres = _centres(functional.normalize(means - centre, dim=1), block.gate.num_experts, seed)
        spread = (hidden[real] - centre).norm(dim=1).mean()
        block.gate.weight.copy_(SHARPNESS * centres / spread)
        block.gate.bias.copy_(-(block.gate.weight @ centre))
        shares.append(_balance(block, hidden, real))
    return shares


@contextmanager
def _inputs_of(block: nn.Module) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []
    handle = block.register_forward_pre_hook(lambda _module, given: seen.append(given[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()


def _centres(points: Tensor, number: int, seed: int) -> Tensor:
    """Unit centres (number, width) of unit points, by spherical k-means."""
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randperm(len(points), generator=generator)[:number]].clone()
    for _ in range(ROUNDS):
        nearest = (points @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add(0, nearest, points)
        empty = sums.norm(dim=1) == 0
        centres = torch.where(empty[:, None], centres, functional.normalize(sums, dim=1))
    return centres


def _balance(block: UpcycledMoeBlock, hidden: Tensor, real: Tensor) -> Tensor:
    """Correct a router's biases; the share of the texts of each expert afterwards."""
    gate = block.gate
    scores = functional.linear(hidden, gate.weight)
    even = 1.0 / gate.num_experts
    texts = torch.full((gate.num_experts,), even)
    for turn in range(2 * ROUNDS):
        chosen = (scores + gate.bias).topk(gate.top_k, dim=-1).indices
        votes = functional.one_hot(chosen, gate.num_experts).sum(dim=2) * real[..., None]
        texts = torch.bincount(votes.sum(dim=1).argmax(dim=1), minlength=gate.num_experts) / len(hidden)
        tokens = votes.sum(dim=(0, 1)) / votes.sum()
        if turn < 2 * ROUNDS - 1:
            load = 0.7 * texts + 0.3 * tokens
            gate.bias.sub_((1.0 - turn / (2 * ROUNDS)) * torch.log((load + 0.01) / (even + 0.01)))
    return texts


def load_dense(directory: Path) -> PreTrainedModel:
    """A dense encoder from a Hugging Face directory, in float32. Code that comes with it is never run.

    Raises:
        ModelError: the directory holds no readable model.
    """
    try:
        model: Any = AutoModel.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{directory} holds no dense encoder that can be loaded: {error}") from error
    encoder: PreTrainedModel = model.eval()
    return encoder
