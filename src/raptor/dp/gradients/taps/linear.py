"""`nn.Linear`, with and without bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raptor.dp.gradients import kernels
from raptor.dp.gradients.kernels import accumulate
from raptor.dp.gradients.taps.base import OneOutputTap, by_record


class LinearTap(OneOutputTap):
    """A linear layer over records, or over all tokens in the order of records (as in shared experts)."""

    def __init__(self, module: nn.Linear, weight: str | None, bias: str | None) -> None:
        super().__init__(module, tuple(name for name in (weight, bias) if name is not None))
        self._linear = module
        self._weight = weight
        self._bias = bias
        self._norms: Tensor | None = None

    def rows(self) -> tuple[Tensor, Tensor] | None:
        """(records, rows, in) inputs and (records, rows, out) gradients, or None without a gradient."""
        kept = self.kept()
        if kept is None:
            return None
        name = self.parameters[0]
        return by_record(kept[0], self._pass, name), by_record(kept[1], self._pass, name)

    def _keep(self, gradient: Tensor) -> None:
        super()._keep(gradient)
        # Taken at once, while the gradient is still in the cache.
        self._norms = self._squared_norms()

    def _forget(self) -> None:
        super()._forget()
        self._norms = None

    def squared_norms(self) -> Tensor:
        if self._norms is None:
            return accumulate(self._linear.weight.new_zeros(self._pass.records))
        return self._norms

    def _squared_norms(self) -> Tensor | None:
        rows = self.rows()
        if rows is None:
            return None
        inputs, gradient = rows
        total = accumulate(gradient.new_zeros(self._pass.records))
        if self._weight is not None:
            total = total + kernels.linear_squared_norms(inputs, gradient, self._pass.way, self._pass.grams)
        if self._bias is not None:
            total = total + accumulate(gradient).sum(dim=1).square().sum(dim=1)
        return total

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        rows = self.rows()
        if rows is None:
            return {
                name: accumulate(torch.zeros_like(value))
                for name, value in ((self._weight, self._linear.weight), (self._bias, self._linear.bias))
                if name is not None
            }
        inputs, gradient = (accumulate(value) for value in rows)
        result: dict[str, Tensor] = {}
        if self._weight is not None:
            result[self._weight] = kernels.weighted_product(inputs, gradient, factors, self._pass.scaled)
        if self._bias is not None:
            result[self._bias] = factors @ gradient.sum(dim=1)
        return result
