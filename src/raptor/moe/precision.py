"""Passes in float64 throughout, also where a model's own code falls back to float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raptor.moe.families import sparse_layers


def in_double(model: nn.Module) -> None:
    """Weights and buffers in float64, in place, with those routers that cast their inputs to a type of their own."""
    model.double()
    for layer in sparse_layers(model):
        router: Any = layer.router
        if isinstance(getattr(router, "dtype", None), torch.dtype):
            router.dtype = torch.float64


class DoubleThroughout(TorchFunctionMode):
    """Inside, whatever asks for float32 gets float64.

    DeepSeek-V2 routes and turns queries in float32 whatever its weights are in, and attention takes its softmax in it.
    A product in float32 is rounded by the shape of the batch, hence by other records.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        named = {name: _double(value) for name, value in (kwargs or {}).items()}
        return func(*(_double(value) for value in args), **named)


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
