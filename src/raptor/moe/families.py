"""The sparse MoE families that are covered: where their routers and experts are, and how they route.

A new family is one `Family` entry: the class of its sparse block, the name of its router, and, where it does not
use the experts interface of transformers, how to read its router and its experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from raptor.errors import ModelError
from raptor.moe.experts import ExpertBank, FusedBank, ModuleBank
from raptor.moe.lora import LoRAExperts


@dataclass(frozen=True)
class Routing:
    """The raw top-k choice of a router for every token.

    Attributes:
        experts: (records, tokens, k) int64, chosen experts before any capacity limit.
        weights: (records, tokens, k), router weight of each choice.
    """

    experts: Tensor
    weights: Tensor


def _interface_routing(output: Any, records: int) -> Routing:
    _, weights, experts = output
    width = experts.shape[-1]
    return Routing(experts.reshape(records, -1, width), weights.reshape(records, -1, width))


def _switch_routing(output: Any, records: int) -> Routing:
    # The first element already has over-capacity tokens dropped; the vote is on the raw choice.
    logits: Tensor = output[2]
    weights, experts = torch.softmax(logits, dim=-1).max(dim=-1, keepdim=True)
    return Routing(experts.reshape(records, -1, 1), weights.reshape(records, -1, 1))


@dataclass(frozen=True)
class Family:
    """How one family of models builds its sparse blocks.

    Attributes:
        name: the family's name in messages, and its `model_type` in a config.
        block: name of the class of the sparse block; its direct child `experts` is called with the routed
            tokens. A name, since importing every family would delay each start.
        router: name of the block's direct child that routes.
        read_routing: router output and number of records -> `Routing`.
        read_experts: experts module and its dotted prefix -> `ExpertBank`.
        top_k: number of experts a token is sent to, from the router.
        is_causal: whether a token reads only those before it, so that the last one alone has read the whole record.
    """

    name: str
    block: str
    router: str = "gate"
    read_routing: Callable[[Any, int], Routing] = field(default=_interface_routing)
    read_experts: Callable[[nn.Module, str], ExpertBank] = field(default=FusedBank)
    top_k: Callable[[nn.Module], int] = field(default=lambda router: int(router.top_k))
    is_causal: bool = True

    def matches(self, module: nn.Module) -> bool:
        """Whether the module is a sparse block of this family, or of a class derived from one."""
        return any(kind.__name__ == self.block for kind in type(module).__mro__)


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
        return self.block.get_submodule(self.family.router)

    @property
    def experts(self) -> nn.Module:
        return self.block.get_submodule("experts")

    @property
    def num_experts(self) -> int:
        return int(self.router.num_experts)  # type: ignore[arg-type]

    @property
    def top_k(self) -> int:
        return self.family.top_k(self.router)

    @property
    def experts_prefix(self) -> str:
        """Dotted prefix of the parameters of all routed experts."""
        return f"{self.name}.experts."

    def bank(self) -> ExpertBank:
        """The experts in the form that all families share.

        Raises:
            ModelError: their layout is not covered.
        """
        experts = self.experts
        if isinstance(experts, LoRAExperts):
            return experts.bank(self.experts_prefix)
        return self.family.read_experts(experts, self.experts_prefix)


def _switch_bank(module: nn.Module, prefix: str) -> ExpertBank:
    return ModuleBank(module, prefix, int(module.num_experts))  # type: ignore[arg-type]


FAMILIES: tuple[Family, ...] = (
    Family(
        "switch_transformers",
        "SwitchTransformersSparseMLP",
        router="router",
        read_routing=_switch_routing,
        read_experts=_switch_bank,
        top_k=lambda router: 1,
        is_causal=False,
    ),
    Family("olmoe", "OlmoeSparseMoeBlock"),
    Family("flex_olmo", "FlexOlmoSparseMoeBlock"),
    Family("mixtral", "MixtralSparseMoeBlock"),
    Family("qwen2_moe", "Qwen2MoeSparseMoeBlock"),
    Family("qwen3_moe", "Qwen3MoeSparseMoeBlock"),
    Family("deepseek_v2", "DeepseekV2Moe"),
    Family("deepseek_vl_v2", "DeepseekOcr2TextMoe"),
    Family("granitemoe", "GraniteMoeMoE", router="router"),
    Family("upcycled", "UpcycledMoeBlock", is_causal=False),
)


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
        if family.matches(module)
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
