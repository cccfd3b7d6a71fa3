"""Models of transformers in float64 throughout, so that they can be held to 1e-8."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.nn import functional


class _Double:
    """torch, with float64 in the place of float32."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def keep_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 throughout, where the models of transformers fall back to float32.

    DeepSeek-V2 turns queries and keys in float32, and routes in it: of one record or of many, the product is rounded
    otherwise on some processors. Attention takes its softmax in float32, in which the lowest
    float64, the mask's, is minus infinity: a padding token with nothing but padding before it would be NaN. FlexOlmo
    takes its norms in float32.
    """
    deepseek = importlib.import_module("transformers.models.deepseek_v2.modeling_deepseek_v2")
    olmo = importlib.import_module("transformers.models.flex_olmo.modeling_flex_olmo")
    rotate_in_float32, softmax = deepseek.apply_rotary_emb, functional.softmax
    router = deepseek.DeepseekV2TopkRouter
    route_in_float32 = router.forward

    def rotate(queries: torch.Tensor, keys: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if queries.dtype != torch.float64:
            return rotate_in_float32(queries, keys, angles)
        angles = angles.to(torch.complex128).unsqueeze(1)
        turned = [
            torch.view_as_complex(value.reshape(*value.shape[:-1], -1, 2)) * angles
            for value in (queries, keys)
        ]
        return tuple(torch.view_as_real(value).flatten(3) for value in turned)

    def route(self: Any, hidden: torch.Tensor) -> Any:
        with monkeypatch.context() as patched:
            if hidden.dtype == torch.float64:
                patched.setattr(deepseek, "torch", _Double())
            return route_in_float32(self, hidden)

    def soft(value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if value.dtype == torch.float64:
            kwargs["dtype"] = torch.float64
        return softmax(value, *args, **kwargs)

    normalise_in_float32 = olmo.FlexOlmoRMSNorm.forward

    def normalise(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        with monkeypatch.context() as patched:
            if hidden.dtype == torch.float64:
                patched.setattr(olmo, "torch", _Double())
            return normalise_in_float32(self, hidden)

    monkeypatch.setattr(olmo.FlexOlmoRMSNorm, "forward", normalise)
    monkeypatch.setattr(deepseek, "apply_rotary_emb", rotate)
    monkeypatch.setattr(router, "forward", route)
    monkeypatch.setattr(functional, "softmax", soft)
