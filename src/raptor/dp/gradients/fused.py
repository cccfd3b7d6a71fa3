"""Root-mean-square norms in one forward and one backward formula, for the time of a pass.

The norms of transformers are written as a chain of elementwise operations, each of which reads and writes all
activations and is recorded for autograd. The same function with its derivative by hand takes half the time. A
module qualifies by what it computes, not by its name.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn


class _RmsNorm(torch.autograd.Function):
    """w x / sqrt(mean(x^2) + eps) over the last dimension; w is a constant."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, epsilon: float, kept: list[Tensor] | None
    ) -> Tensor:
        width = values.shape[-1]
        length = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        scale = length.square_().div_(width).add_(epsilon).rsqrt_()
        normalised = values * scale
        ctx.save_for_backward(normalised, scale, weight)
        if kept is not None:
            kept[:] = [normalised]
        result: Tensor = normalised * weight
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        normalised, scale, weight = ctx.saved_tensors
        inner = gradient * weight
        mean = torch.linalg.vecdot(inner, normalised, dim=-1).unsqueeze(-1).div_(-inner.shape[-1])
        return inner.addcmul_(normalised, mean).mul_(scale), None, None, None


def _epsilon(module: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def is_rms_norm(module: nn.Module) -> bool:
    """Whether a float32 module computes a root-mean-square norm times its weight; a copy of it is called."""
    parameters = dict(module.named_parameters())
    epsilon = _epsilon(module)
    weight = parameters.get("weight")
    if epsilon is None or weight is None or len(parameters) != 1 or weight.ndim != 1:
        return False
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) or "Norm" not in type(module).__name__:
        return False
    if "forward" in vars(module) or weight.dtype != torch.float32:
        return False
    if len(inspect.signature(module.forward).parameters) != 1:
        # A gate, or whatever else a norm is given beside its input.
        return False
    generator = torch.Generator().manual_seed(0)
    trial = copy.deepcopy(module).to("cpu", torch.float32)
    width = len(weight)
    # From rows that are almost zero to large ones: where epsilon stands, or a branch, shows there alone.
    scales = torch.logspace(-7, 7, 15)[:, None]
    with torch.no_grad():
        trial.get_parameter("weight").copy_(torch.randn(width, generator=generator))
        for shape in ((15, width), (3, 15, width), (2, 3, 15, width)):
            values = torch.randn(shape, generator=generator) * scales
            try:
                found = trial.forward(values)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
                return False
            expected = _RmsNorm.apply(values, trial.get_parameter("weight"), epsilon, None)  # type: ignore[no-untyped-call]
            if not isinstance(found, Tensor) or not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
                return False
    return True


class FusedRms:
    """Stands in for the forward of one root-mean-square norm while it is open.

    Attributes:
        normalised: x / sqrt(mean(x^2) + eps) of the last call; None when it is not to be kept, or when the module's
            own formula ran.
    """

    def __init__(self, module: nn.Module, *, keeps: bool = False) -> None:
        """`module` satisfies `is_rms_norm`; with `keeps`, its normalised input is kept."""
        self._module = module
        self._keeps = keeps
        self._kept: list[Tensor] = []
        self._epsilon = _epsilon(module) or 0.0
        self._is_open = False

    @property
    def normalised(self) -> Tensor | None:
        return self._kept[0] if self._kept else None

    @property
    def epsilon(self) -> float:
        return self._epsilon

    def open(self) -> None:
        """Take the place of the module's forward, unless another library has done so since."""
        self._is_open = "forward" not in vars(self._module)
        if self._is_open:
            self._module.forward = self._forward

    def close(self) -> None:
        """Give it back, and forget what was kept."""
        if self._is_open:
            self._module.__dict__.pop("forward", None)
        self._is_open = False
        self._kept.clear()

    def _forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        (values,) = (*inputs, *named.values())
        weight = self._module.get_parameter("weight").detach()
        if values.dtype != torch.float32 or weight.dtype != torch.float32:
            # Families differ in where other types are rounded to float32; the module keeps its own rules.
            self._kept.clear()
            result: Tensor = type(self._module).forward(self._module, values)
            return result
        kept = self._kept if self._keeps else None
        return _RmsNorm.apply(values, weight, self._epsilon, kept)  # type: ignore[no-untyped-call, no-any-return]
