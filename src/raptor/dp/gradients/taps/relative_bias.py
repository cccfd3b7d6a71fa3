"""The relative position bias of T5 and Switch."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from raptor.dp.gradients.kernels import accumulate
from raptor.dp.gradients.taps.base import Tap


class RelativeBiasTap(Tap):
    """One table of biases added to the attention scores of every record, looked up by distance."""

    def __init__(self, attention: nn.Module, weight: str) -> None:
        super().__init__((weight,))
        self._attention: Any = attention
        self._buckets: Tensor | None = None
        self._scores: Tensor | None = None
        self._gradients: Tensor | None = None

    def _attach(self) -> None:
        original = type(self._attention).compute_bias
        tap = self

        def compute_bias(attention: Any, queries: int, keys: int, *args: Any, **kwargs: Any) -> Tensor:
            bias: Tensor = original(attention, queries, keys, *args, **kwargs).detach()
            return tap._copy(bias, queries, keys)

        self._attention.compute_bias = MethodType(compute_bias, self._attention)

    def _copy(self, bias: Tensor, queries: int, keys: int) -> Tensor:
        """The bias, given to each record as a leaf of its own."""
        is_first = self._enter_call()
        if not is_first and self._scores is not None:
            return self._scores
        attention = self._attention
        position = (
            torch.arange(keys, device=bias.device)[None] - torch.arange(queries, device=bias.device)[:, None]
        )
        self._buckets = attention._relative_position_bucket(
            position,
            bidirectional=not attention.is_decoder,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        self._scores = bias.expand(self._pass.rows, -1, -1, -1).contiguous().requires_grad_()
        return self._scores

    def close(self) -> None:
        self._attention.__dict__.pop("compute_bias", None)
        super().close()

    def _forget(self) -> None:
        self._buckets = self._scores = self._gradients = None

    def _per_record(self) -> Tensor:
        """(records, buckets, heads) gradients."""
        if self._gradients is None:
            self._gradients = self._from_scores()
        return self._gradients

    def _from_scores(self) -> Tensor:
        weight: Tensor = self._attention.relative_attention_bias.weight
        if self._scores is None or self._scores.grad is None or self._buckets is None:
            return accumulate(weight.new_zeros(self._pass.records, *weight.shape))
        gradient = accumulate(self._scores.grad).flatten(2)
        chosen = torch.nn.functional.one_hot(self._buckets.flatten(), weight.shape[0]).to(gradient.dtype)
        by_row = (gradient @ chosen).transpose(1, 2)
        return by_row.reshape(self._pass.records, self._pass.members, *weight.shape).sum(dim=1)

    def squared_norms(self) -> Tensor:
        return self._per_record().square().sum(dim=(1, 2))

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        return {self.parameters[0]: torch.tensordot(factors, self._per_record(), dims=1)}

    def erase(self, records: Tensor) -> None:
        self._gradients = self._per_record().masked_fill(records[:, None, None], 0.0)
