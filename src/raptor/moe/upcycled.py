"""Dense encoders of which some feed-forward layers are mixtures of experts (sparse upcycling, arXiv 2212.05055).

Unlike in the original, an expert's weight is normalised over the chosen ones, so that experts that are copies of
one layer give what that layer gives, whatever the router says. The biases of the dense layer stay as they are and
are shared by all experts: constants, and no parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import MODEL_MAPPING, PretrainedConfig, PreTrainedModel

from raptor.errors import ModelError

KEY = "upcycled"
"""Where a config says which layers are sparse."""


@dataclass(frozen=True)
class Upcycling:
    """The sparse part of an upcycled encoder, as its config keeps it.

    Attributes:
        experts: number of experts in each sparse layer.
        top_k: experts that a token is sent to.
        layers: indices of the sparse blocks.
    """

    experts: int
    top_k: int
    layers: tuple[int, ...]

    @classmethod
    def read(cls, config: PretrainedConfig) -> Upcycling | None:
        """What a config says; None for an encoder that is not upcycled.

        Raises:
            ModelError: the entry cannot be understood.
        """
        entry: Any = getattr(config, KEY, None)
        if entry is None:
            return None
        try:
            return cls(int(entry["experts"]), int(entry["top_k"]), tuple(int(i) for i in entry["layers"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"The model's config has an unreadable entry {KEY!r}: {entry!r}.") from error

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "layers": list(self.layers)}


class UpcycledRouter(nn.Module):
    """Linear scores of a token, and the largest `top_k` of them as weights that sum to 1."""

    def __init__(self, width: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.num_experts = experts
        self.top_k = top_k
        self.weight = nn.Parameter(torch.zeros(experts, width))
        self.bias = nn.Parameter(torch.zeros(experts))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, width) -> scores (tokens, experts), weights and experts (tokens, top_k)."""
        scores = functional.linear(hidden, self.weight, self.bias)
        best, chosen = scores.topk(self.top_k, dim=-1)
        return scores, best.softmax(dim=-1), chosen


class UpcycledExperts(nn.Module):
    """Experts in fused tensors, behind the call that the experts interface of transformers has."""

    has_gate = False

    def __init__(self, width: int, inner: int, experts: int, activation: nn.Module) -> None:
        super().__init__()
        self.num_experts = experts
        self.activation = activation
        self.up_proj = nn.Parameter(torch.zeros(experts, inner, width))
        self.down_proj = nn.Parameter(torch.zeros(experts, width, inner))
        self.register_buffer("up_bias", torch.zeros(inner))

    def act_fn(self, rows: Tensor) -> Tensor:
        """What lies between the two maps, the bias of the first one among it."""
        result: Tensor = self.activation(rows + self.get_buffer("up_bias"))
        return result

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """(tokens, width), experts and weights (tokens, top_k) -> (tokens, width)."""
        result = torch.zeros_like(hidden)
        for expert in range(self.num_experts):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            inner = self.act_fn(functional.linear(hidden[token], self.up_proj[expert]))
            outer = functional.linear(inner, self.down_proj[expert])
            result = result.index_add(0, token, (outer * weights[token, place][:, None]).to(result.dtype))
        return result


class UpcycledMoeBlock(nn.Module):
    """A router and its experts in place of one feed-forward layer."""

    def __init__(self, width: int, inner: int, shape: Upcycling, activation: nn.Module) -> None:
        super().__init__()
        self.gate = UpcycledRouter(width, shape.experts, shape.top_k)
        self.experts = UpcycledExperts(width, inner, shape.experts, activation)
        self.register_buffer("down_bias", torch.zeros(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(records, tokens, width) -> the same shape."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        _, weights, chosen = self.gate(flat)
        result: Tensor = self.experts(flat, chosen, weights) + self.get_buffer("down_bias")
        return result.view_as(hidden)


@dataclass(frozen=True)
class FeedForward:
    """A dense feed-forward layer: where it is, its two linear maps and what lies between them."""

    index: int
    block: nn.Module
    first: nn.Linear
    second: nn.Linear
    activation: nn.Module

    def replace(self, sparse: UpcycledMoeBlock) -> None:
        """Put a sparse block in its place; dropout, residual and norm around it stay."""
        if hasattr(self.block, "ffn"):
            self.block.ffn = sparse
        else:
            self.block.intermediate = sparse
            self.block.get_submodule("output").dense = nn.Identity()


def feed_forward_layers(encoder: nn.Module) -> tuple[FeedForward, ...]:
    """The feed-forward layers of a dense encoder, first block first.

    Raises:
        ModelError: the architecture is not covered.
    """
    found = tuple(_found(encoder))
    if not found:
        raise ModelError(
            f"{type(encoder).__name__} has no feed-forward layers of a covered form, so it cannot be upcycled. "
            "Covered are encoders built like BERT (bert, roberta, electra, mpnet, ...) and DistilBERT."
        )
    return found


def _found(encoder: nn.Module) -> Iterator[FeedForward]:
    for name, block in encoder.named_modules():
        index = next((int(part) for part in reversed(name.split(".")) if part.isdigit()), None)
        if index is None or not name.split(".")[-1].isdigit():
            continue
        inner: Any = getattr(block, "intermediate", None)
        outer: Any = getattr(block, "output", None)
        ffn: Any = getattr(block, "ffn", None)
        if inner is not None and isinstance(getattr(outer, "dense", None), nn.Linear):
            yield FeedForward(index, block, inner.dense, outer.dense, inner.intermediate_act_fn)
        elif isinstance(getattr(ffn, "lin1", None), nn.Linear):
            yield FeedForward(index, block, ffn.lin1, ffn.lin2, ffn.activation)


def sparsify(encoder: nn.Module, shape: Upcycling) -> dict[int, tuple[FeedForward, UpcycledMoeBlock]]:
    """Put sparse blocks of zeros in the place of some feed-forward layers; returns what was there.

    Raises:
        ModelError: the architecture is not covered, or a layer does not exist.
    """
    dense = {layer.index: layer for layer in feed_forward_layers(encoder)}
    if unknown := sorted(set(shape.layers) - set(dense)):
        raise ModelError(f"The encoder has no blocks {unknown} to upcycle; it has {sorted(dense)}.")
    replaced = {}
    for index in shape.layers:
        layer = dense[index]
        activation = (
            layer.activation if isinstance(layer.activation, nn.Module) else _Function(layer.activation)
        )
        block = UpcycledMoeBlock(layer.first.in_features, layer.first.out_features, shape, activation)
        layer.replace(block)
        replaced[index] = (layer, block)
    return replaced


class _Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self._function(rows)
        return result


_CLASSES: dict[type[PreTrainedModel], type[PreTrainedModel]] = {}


def upcycled_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class of an upcycled encoder: the dense one, with the sparse blocks that its config names.

    Raises:
        ModelError: transformers has no encoder for such a config.
    """
    mapping: Mapping[Any, Any] = MODEL_MAPPING
    if type(config) not in mapping:
        raise ModelError(f"transformers has no encoder for a config of type {config.model_type!r}.")
    dense: Any = mapping[type(config)]
    if dense not in _CLASSES:

        def create(self: Any, config: PretrainedConfig) -> None:
            dense.__init__(self, config)
            shape = Upcycling.read(config)
            if shape is None:
                raise ModelError(f"The config has no entry {KEY!r}.")
            # Neither has a part in the hidden states, and an unused parameter would only get noise.
            if hasattr(self, "pooler"):
                self.pooler = None
            sparsify(self, shape)

        _CLASSES[dense] = type(f"Upcycled{dense.__name__}", (dense,), {"__init__": create})
    return _CLASSES[dense]
