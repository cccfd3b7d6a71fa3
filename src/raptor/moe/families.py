"""The sparse MoE families that are covered: where their routers and experts are, and how they route.

A new family is one `Family` entry: the class of its sparse block, and how to read its router's output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersSparseMLP,
)

from raptor.errors import ModelError


@dataclass(frozen=True)
class Routing:
    """The raw top-k choice of a router for every token.

    Attributes:
        experts: (records, tokens, k) int64, chosen experts before any capacity limit.
        weights: (records, tokens, k), router weight of each choice.
    """

    experts: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Family:
    """How one family of models builds its sparse blocks.

    Attributes:
        name: the family's name in messages.
        block: class of the sparse block; it holds `router` and `experts` as direct children.
        top_k: number of experts a token is sent to, from the block.
        num_experts: number of routed experts, from the block.
        read_routing: router output and number of records -> `Routing`.
    """

    name: str
    block: type[nn.Module]
    top_k: Callable[[nn.Module], int]
    num_experts: Callable[[nn.Module], int]
    read_routing: Callable[[Any, int], Routing]


@dataclass(frozen=True)
class SparseLayer:
    """One sparse layer of a model.

    Attributes:
        index: position of its transformer block, from 0.
        name: dotted module name of the sparse block; parameters of the layer start with it.
    """

    index: int
    name: str
    family: Family
    block: nn.Module

    @property
    def router(self) -> nn.Module:
        return self.block.get_submodule("router")

    @property
    def experts(self) -> nn.Module:
        return self.block.get_submodule("experts")

    @property
    def num_experts(self) -> int:
        return self.family.num_experts(self.block)

    @property
    def top_k(self) -> int:
        return self.family.top_k(self.block)

    def expert_prefix(self, expert: int) -> str:
        """Dotted prefix of the parameters of one expert."""
        return f"{self.name}.experts.expert_{expert}."


def _switch_routing(output: Any, records: int) -> Routing:
    # The first element already has over-capacity tokens dropped; the vote is on the raw choice.
    logits: Tensor = output[2]
    weights, experts = torch.softmax(logits, dim=-1).max(dim=-1, keepdim=True)
    return Routing(experts.reshape(records, -1, 1), weights.reshape(records, -1, 1))


SWITCH = Family(
    name="switch_transformers",
    block=SwitchTransformersSparseMLP,
    top_k=lambda block: 1,
    num_experts=lambda block: int(block.get_submodule("experts").num_experts),  # type: ignore[arg-type]
    read_routing=_switch_routing,
)
FAMILIES: tuple[Family, ...] = (SWITCH,)


def _block_index(name: str) -> int:
    """Position of the transformer block, which is the first number in a dotted module name."""
    return next(int(part) for part in name.split(".") if part.isdigit())


def sparse_layers(model: nn.Module) -> tuple[SparseLayer, ...]:
    """All sparse layers of a model, in the order of its blocks.

    Raises:
        ModelError: the model has no sparse layer of a covered family.
    """
    found = tuple(
        SparseLayer(_block_index(name), name, family, module)
        for name, module in model.named_modules()
        for family in FAMILIES
        if isinstance(module, family.block)
    )
    if not found:
        covered = ", ".join(family.name for family in FAMILIES)
        raise ModelError(
            f"{type(model).__name__} has no sparse layer: it holds no mixture-of-experts block of a covered "
            f"family ({covered}). Give a sparse model of one of them as base_model.source."
        )
    return found


def sparse_layer(model: nn.Module, index: int) -> SparseLayer:
    """The sparse layer at block `index`.

    Raises:
        ModelError: there is no sparse layer at this index.
    """
    layers = sparse_layers(model)
    for layer in layers:
        if layer.index == index:
            return layer
    raise ModelError(
        f"Layer {index} is not sparse. Sparse layers of this model: {[layer.index for layer in layers]}."
    )
