"""The role of every parameter of an MoE: shared, router or expert (RAPTOR, arXiv 2609.05770, section 3.1)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from raptor.moe.families import SparseLayer, sparse_layers


class Role(StrEnum):
    SHARED = "shared"
    ROUTER = "router"
    EXPERT = "expert"


@dataclass(frozen=True)
class ParameterRole:
    """Role of one parameter; `layer` is set for routed experts and routers.

    Which expert a parameter belongs to is not said here: fused tensors hold them all (see `raptor.moe.experts`).
    """

    role: Role
    layer: int | None = None


def _role_in(layer: SparseLayer, name: str) -> ParameterRole:
    if name.startswith(layer.experts_prefix):
        return ParameterRole(Role.EXPERT, layer.index)
    if name.startswith(f"{layer.name}.{layer.family.router}."):
        return ParameterRole(Role.ROUTER, layer.index)
    # Always-on experts of the block are used by every token, so they play the shared role.
    return ParameterRole(Role.SHARED)


def parameter_roles(model: nn.Module) -> dict[str, ParameterRole]:
    """Role of every parameter, by its dotted name; a tied parameter appears once, as in `named_parameters`.

    Raises:
        ModelError: the model has no sparse layer.
    """
    layers = sparse_layers(model)
    roles: dict[str, ParameterRole] = {}
    for name, _ in model.named_parameters():
        inside = [layer for layer in layers if name.startswith(f"{layer.name}.")]
        roles[name] = _role_in(inside[0], name) if inside else ParameterRole(Role.SHARED)
    return roles


def shared_parameters(model: nn.Module) -> tuple[str, ...]:
    """Names of all parameters in the shared role."""
    return tuple(name for name, entry in parameter_roles(model).items() if entry.role is Role.SHARED)


def expert_parameters(model: nn.Module, layers: Collection[int] | None = None) -> tuple[str, ...]:
    """Names of the routed experts' parameters, of some layers or of all."""
    return tuple(
        name
        for name, entry in parameter_roles(model).items()
        if entry.role is Role.EXPERT and (layers is None or entry.layer in layers)
    )
