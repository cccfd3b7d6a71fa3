"""Putting low-rank adapters on a sparse model, and folding them into its weights again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Literal

import torch
from torch import Tensor, nn

from raptor.errors import ModelError, ParameterError
from raptor.moe.families import sparse_layer, sparse_layers
from raptor.moe.lora import LoRAExperts, LoRALinear

Targets = Literal["attention"] | Sequence[str]
ATTENTION = (
    "*.SelfAttention.[qkvo]",
    "*.self_attn.*_proj",
    "*.self_attn.kv_a_proj_with_mqa",
    "*.attention.self.*",
    "*.attention.output.dense",
    "*.attention.*_lin",
)
"""The linear layers of attention in the covered families; no family has them all."""
# The start of training is public and has to be the same wherever it is made: when parameters are checked, in the
# private run and in the baselines. It protects nothing, so it comes from a constant and never from the streams
# of private noise.
SEED = 2106_09685
HEAD = "head"
_SHOWN = 4


def _holders(model: nn.Module, weight: Tensor) -> int:
    """How often a weight is registered in a model."""
    modules = (module for _, module in model.named_modules(remove_duplicate=False))
    return sum(value is weight for module in modules for value in module._parameters.values())


def _candidates(model: nn.Module) -> dict[str, nn.Linear]:
    """Linear layers that may get an adapter: outside routers, routed experts and the head, which is new anyway."""
    inside = [
        prefix
        for layer in sparse_layers(model)
        for prefix in (layer.experts_prefix, f"{layer.name}.{layer.family.router}.")
    ]
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != HEAD and not name.startswith(tuple(inside))
    }


def _matched(candidates: Collection[str], targets: Targets) -> list[str]:
    if targets == "attention":
        found = [name for name in candidates if any(fnmatch(name, pattern) for pattern in ATTENTION)]
        missing = [] if found else [f"attention ({', '.join(ATTENTION)})"]
    else:
        found = [name for name in candidates if any(fnmatch(name, pattern) for pattern in targets)]
        missing = [
            repr(pattern) for pattern in targets if not any(fnmatch(name, pattern) for name in candidates)
        ]
    if missing or not found:
        known = sorted({re.sub(r"\d+", "*", name) for name in candidates})
        raise ParameterError(
            f"training.lora.targets has {', '.join(missing) or 'no pattern'}, which matches no linear layer outside "
            f"routers, routed experts and the head, so no adapter would be trained there. Such layers are "
            f"{', '.join(known[:_SHOWN])}{', ...' if len(known) > _SHOWN else ''}."
        )
    return found


def _require_rank(rank: int, name: str, *shapes: Sequence[int]) -> None:
    smallest = min(side for shape in shapes for side in shape[-2:])
    if rank > smallest:
        raise ParameterError(
            f"training.lora.rank is {rank}, but {name} has a side of {smallest}: such an adapter would hold more "
            f"numbers than the weight itself. Choose a rank of at most {smallest}."
        )


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)


def add_lora(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    targets: Targets = "attention",
    expert_layers: Sequence[int],
) -> tuple[str, ...]:
    """Put adapters on linear layers and on all routed experts of some sparse layers, in place.

    The outputs of the model stay as they are: an adapter's second factor is zero at first.

    Args:
        model: a sparse model; wrapped weights are frozen.
        rank: r, the columns of an update's first factor.
        alpha: an update is scaled by alpha / rank.
        targets: name patterns of linear layers; `attention` takes the attention projections of the family.
        expert_layers: indices of the sparse layers whose experts get adapters.

    Returns:
        Names of the adapters' parameters.

    Raises:
        ParameterError: a pattern matches nothing, or the rank exceeds a side of a weight.
        ModelError: the model has adapters already, a layer is not sparse, or a matched weight is tied.
    """
    if present := _adapter_names(model):
        raise ModelError(f"The model has adapters already, such as {present[0]}. Fold them in first.")
    chosen = _matched(linears := _candidates(model), targets)
    layers = [sparse_layer(model, index) for index in expert_layers]
    # Everything is checked before anything is replaced, so that a refusal leaves the model as it was.
    for name in chosen:
        if _holders(model, linears[name].weight) > 1:
            raise ModelError(
                f"{name} shares its weight with another module, so that an adapter on it could not be folded in "
                "without changing the other. Leave it out of training.lora.targets."
            )
        _require_rank(rank, f"{name}.weight", linears[name].weight.shape)
    for layer in layers:
        for stack in layer.bank().stacks:
            _require_rank(rank, stack.names[0], stack.of(0).shape)
    generator = torch.Generator().manual_seed(SEED)
    for name in chosen:
        _replace(model, name, LoRALinear(linears[name], rank, alpha, generator))
    for layer in layers:
        experts = LoRAExperts(layer.experts, layer.family.read_experts, rank, alpha, generator)
        _replace(model, layer.experts_prefix[:-1], experts)
    return lora_parameters(model)


def _adapters(model: nn.Module) -> Iterator[tuple[str, LoRALinear | LoRAExperts]]:
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, LoRALinear | LoRAExperts):
            yield name, module


def lora_parameters(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters of all adapters; none of the weights below them."""
    wrapped = tuple(f"{name}.base." for name, _ in _adapters(model))
    prefixes = tuple(f"{name}." for name, _ in _adapters(model))
    return tuple(
        name
        for name, _ in model.named_parameters()
        if name.startswith(prefixes) and not name.startswith(wrapped)
    )


def _adapter_names(model: nn.Module) -> list[str]:
    """Parameters that belong to adapters by their names, of this package or of another."""
    return [name for name, _ in model.named_parameters() if re.search(r"lora_[ab]", name, re.IGNORECASE)]


@contextmanager
def expert_updates_off(model: nn.Module) -> Iterator[None]:
    """Run the model as if the updates of its experts were zero; other adapters stay as they are.

    Raises:
        ModelError: no experts have adapters, so that there is nothing to switch off.
    """
    found = [module for module in model.modules() if isinstance(module, LoRAExperts)]
    if not found:
        raise ModelError(
            "The experts have no adapters, so their updates cannot be switched off: a second copy of all expert "
            "weights would have to be kept for it. Set training.trainable=lora, or training.residual_weights=false."
        )
    for module in found:
        module.is_off = True
    try:
        yield
    finally:
        for module in found:
            module.is_off = False


def merge_lora(model: nn.Module) -> tuple[str, ...]:
    """Fold all adapters into the weights below them, in place, and put the plain modules back.

    Returns:
        Names of the modules that had an adapter.

    Raises:
        ModelError: there is no adapter to fold in, or one would be left: a model without what was trained must
            not pass for the trained one.
    """
    found = list(_adapters(model))
    if not found:
        raise ModelError(
            "The model has no adapter to fold in, so what was trained is not in it. Fold the model that was "
            "trained, and fold it once."
        )
    folded: dict[int, nn.Module] = {}
    for name, module in found:
        # A module that is registered under two names is folded once and put back under both.
        if id(module) not in folded:
            folded[id(module)] = module.fold()
        _replace(model, name, folded[id(module)])
    require_merged(model)
    return tuple(name for name, _ in found)


def require_merged(model: nn.Module) -> None:
    """Refuse a model that still has adapters.

    Raises:
        ModelError: names some of their parameters.
    """
    if left := _adapter_names(model):
        raise ModelError(
            f"The adapters {', '.join(left[:_SHOWN])}{', ...' if len(left) > _SHOWN else ''} are not folded into the "
            "weights. A model saved like this would lose them; fold them in with the library that made them."
        )
