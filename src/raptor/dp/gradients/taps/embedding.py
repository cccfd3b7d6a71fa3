"""Embedding tables, alone and tied to an output head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raptor.dp.gradients import kernels
from raptor.dp.gradients.kernels import accumulate
from raptor.dp.gradients.taps.base import OneOutputTap, Pass, Tap
from raptor.dp.gradients.taps.linear import LinearTap
from raptor.errors import ModelError


class EmbeddingTap(OneOutputTap):
    """`nn.Embedding` over (records, tokens) ids. The rows of padding get no gradient.

    Several modules may hold one table (a model and its encoder). Any one of them may be called in a pass, and
    no second one.
    """

    def __init__(self, modules: Sequence[nn.Embedding], weight: str) -> None:
        """Raises ModelError when gradients are scaled by frequency, which counts tokens over the batch."""
        super().__init__(modules[-1], (weight,))
        self._tables = tuple(modules)
        self._padding: int | None = None
        if any(table.scale_grad_by_freq or table.max_norm is not None or table.sparse for table in modules):
            raise ModelError(
                f"{weight} uses max_norm, sparse gradients, or gradients scaled by the frequency of tokens in the "
                "batch, which couples records. This architecture is not covered."
            )

    def _attach(self) -> None:
        for table in self._tables:
            self._handles.append(table.register_forward_hook(self._listen, with_kwargs=True))

    def _listen(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        self._padding = module.padding_idx  # type: ignore[assignment]
        return super()._listen(module, inputs, named, output)

    def _keep(self, gradient: Tensor) -> None:
        padding = self._padding
        if padding is not None and self._input is not None:
            gradient = gradient.masked_fill((self._input == padding)[..., None], 0.0)
        super()._keep(gradient)

    def rows(self) -> tuple[Tensor, Tensor] | None:
        """(records, tokens) ids and (records, tokens, width) gradients, or None without a gradient.

        Where users are the units, their rows stand one behind the other in the second dimension.
        """
        kept = self.kept()
        if kept is None:
            return None
        ids, gradient = kept
        if ids.ndim != 2 or ids.shape[0] != self._pass.rows:
            raise ModelError(
                f"{self.parameters[0]} is not looked up by (records, tokens) ids. This architecture is not covered."
            )
        units = self._pass.records
        return ids.reshape(units, -1), accumulate(gradient).reshape(units, -1, gradient.shape[-1])

    def squared_norms(self) -> Tensor:
        rows = self.rows()
        if rows is None:
            return accumulate(self._tables[0].weight.new_zeros(self._pass.records))
        return kernels.embedding_squared_norms(*rows)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        total = accumulate(torch.zeros_like(self._tables[0].weight))
        rows = self.rows()
        if rows is not None:
            ids, gradient = rows
            total.index_add_(0, ids.flatten(), (gradient * factors[:, None, None]).flatten(0, 1))
        return {self.parameters[0]: total}


class TiedEmbeddingTap(Tap):
    """One matrix that is both embedding table and output head.

    Its gradient is the sum of both uses, so the squared norm has a cross term, twice their inner product; the
    norm of the two parts side by side would be another number.
    """

    def __init__(self, tables: Sequence[nn.Embedding], head: nn.Linear, weight: str) -> None:
        super().__init__((weight,))
        self._table = EmbeddingTap(tables, weight)
        self._head = LinearTap(head, weight, None)

    def open(self, current: Pass) -> None:
        super().open(current)
        self._table.open(current)
        self._head.open(current)

    def close(self) -> None:
        self._table.close()
        self._head.close()
        super().close()

    def require_called(self) -> None:
        self._table.require_called()
        self._head.require_called()

    def _attach(self) -> None:
        pass

    def _forget(self) -> None:
        pass

    def squared_norms(self) -> Tensor:
        total = self._table.squared_norms() + self._head.squared_norms()
        table, head = self._table.rows(), self._head.rows()
        if table is None or head is None:
            return total
        cross = 2 * kernels.tied_inner_products(*table, *(accumulate(value) for value in head))
        # Two uses may cancel, and rounding must not make less of the norm than it is.
        return total + cross + 8 * torch.finfo(total.dtype).eps * total

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        name = self.parameters[0]
        return {name: self._table.weighted_sum(factors)[name] + self._head.weighted_sum(factors)[name]}

    def erase(self, records: Tensor) -> None:
        self._table.erase(records)
        self._head.erase(records)
