"""Plain autograd on one record alone: what an engine's clipped sum must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from raptor.dp.gradients.losses import RecordLoss
from raptor.dp.records import Batch
from raptor.moe.families import sparse_layers

Vector = Mapping[str, Tensor]


def length(vector: Vector) -> float:
    """Norm of the concatenation, taken in float64."""
    return float(sum(float(value.double().square().sum()) for value in vector.values()) ** 0.5)


def distances(found: Vector, expected: Vector, scale: float = 1.0) -> dict[str, float]:
    """Norm of found minus scale times expected, for each parameter."""
    return {
        name: float(torch.sub(found[name].double(), value.double(), alpha=scale).norm())
        for name, value in expected.items()
    }


def total(values: Mapping[str, float]) -> float:
    """Norm of the concatenation from the norms of its parts."""
    return float(sum(value * value for value in values.values()) ** 0.5)


def plain_gradient(
    model: nn.Module, names: Sequence[str], single: Batch, loss: RecordLoss, owner_layers: Sequence[int]
) -> dict[str, Tensor]:
    """Gradient of the loss of one record; in `owner_layers` that of experts that do not own it is zero.

    Parameters are frozen again afterwards.
    """
    parameters = [model.get_parameter(name).requires_grad_(True) for name in names]
    try:
        found = torch.autograd.grad(loss(model, single).sum(), parameters, allow_unused=True)
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
    gradients = {
        name: torch.zeros_like(parameter) if gradient is None else gradient.detach()
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }
    if owner_layers:
        _keep_owners(model, gradients, single.owners.reshape(-1), owner_layers)
    return gradients


def _keep_owners(
    model: nn.Module, gradients: dict[str, Tensor], owners: Tensor, layers: Sequence[int]
) -> None:
    for layer in sparse_layers(model):
        owner = int(owners[list(layers).index(layer.index)]) if layer.index in layers else None
        for stack in layer.bank().stacks:
            for expert in range(len(stack)):
                name = stack.names[0] if stack.is_fused else stack.names[expert]
                if expert != owner and name in gradients:
                    (gradients[name][expert] if stack.is_fused else gradients[name]).zero_()
