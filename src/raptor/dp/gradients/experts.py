"""Taps on routed experts: the rows an expert sees are tokens, and each token belongs to a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from raptor.dp.gradients.taps import RowsTap
from raptor.errors import ModelError
from raptor.moe.families import SparseLayer


class ExpertRows:
    """Which record each row of each expert belongs to, in the current pass.

    Either read from the router's dispatch when the experts are called (`listen`), or set by the caller.
    """

    def __init__(self, layer: SparseLayer) -> None:
        self._layer = layer
        self._record: dict[int, Tensor] = {}
        self._records = 0
        self._handle: RemovableHandle | None = None

    def set(self, expert: int, record: Tensor) -> None:
        self._record[expert] = record

    def of(self, expert: int) -> Tensor:
        return self._record[expert]

    def listen(self, records: int) -> None:
        """Follow the next pass, which has this many records."""
        self._records = records
        self._handle = self._layer.experts.register_forward_pre_hook(self._read)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._record.clear()

    def _read(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        dispatch: Tensor = inputs[1]
        tokens = dispatch.shape[0] // self._records
        for expert in range(self._layer.num_experts):
            self._record[expert] = dispatch[:, 0, expert].nonzero().squeeze(1) // tokens


def expert_module(layer: SparseLayer, expert: int) -> nn.Module:
    return layer.experts.get_submodule(f"expert_{expert}")


def claim_experts(layer: SparseLayer, rows: ExpertRows, prefix: str, names: Sequence[str]) -> list[RowsTap]:
    """One tap for each linear layer of each expert of a sparse layer.

    Args:
        layer: the sparse layer.
        rows: what tells the record of a row.
        prefix: name of the model part that the layer was found in, "" for the model itself.
        names: dotted parameter names to claim; those of other layers are ignored.

    Raises:
        ModelError: a parameter of an expert is not the weight of a linear layer.
    """
    wanted = set(names)
    taps: list[RowsTap] = []
    for expert in range(layer.num_experts):
        start = prefix + layer.expert_prefix(expert)
        for local, _ in expert_module(layer, expert).named_parameters():
            name = start + local
            if name not in wanted:
                continue
            holder, _, attribute = local.rpartition(".")
            module = expert_module(layer, expert).get_submodule(holder)
            if not isinstance(module, nn.Linear) or attribute != "weight":
                raise ModelError(
                    f"No exact per-record gradient is known for the expert parameter {name}. "
                    "This architecture is not covered."
                )
            taps.append(RowsTap(module, name, lambda expert=expert: rows.of(expert)))  # type: ignore[misc]
    return taps


class ExpertOutput:
    """Runs the experts of one layer without a graph, and hands their output on as a leaf.

    Nothing below the experts is trained in an expert step, so the backward pass may stop here. The forward
    pass is the ordinary one: every active expert contributes.
    """

    def __init__(self, layer: SparseLayer) -> None:
        self._experts: Any = layer.experts
        self.hidden: Tensor
        self.dispatch: Tensor
        self.weights: Tensor
        self.leaf: Tensor

    def open(self) -> None:
        original = type(self._experts).forward

        def forward(hidden: Tensor, dispatch: Tensor, weights: Tensor) -> Tensor:
            with torch.no_grad():
                output: Tensor = original(self._experts, hidden, dispatch, weights)
            self.hidden, self.dispatch, self.weights = hidden.detach(), dispatch, weights.detach()
            self.leaf = output.detach().requires_grad_()
            return self.leaf

        self._experts.forward = forward

    def close(self) -> None:
        self._experts.__dict__.pop("forward", None)
        for name in ("hidden", "dispatch", "weights", "leaf"):
            self.__dict__.pop(name, None)
