"""Routed experts: the rows an expert sees are tokens of many records, so every row carries its record."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from raptor.dp.gradients import kernels
from raptor.dp.gradients.kernels import accumulate
from raptor.dp.gradients.taps.base import Tap
from raptor.errors import ModelError
from raptor.moe.experts import Assignment, ExpertBank, ExpertLinear, Stack, grouped_product


class _Captured(torch.autograd.Function):
    """A linear map of all experts whose backward pass keeps the gradient of the outputs."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, linear: ExpertLinear, bounds: tuple[int, ...], kept: list[Tensor]
    ) -> Tensor:
        ctx.linear, ctx.bounds, ctx.kept = linear, bounds, kept
        return linear.forward(rows, bounds)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        gradient = gradient.contiguous()
        ctx.kept.append(gradient.detach())
        return ctx.linear.backward(gradient, ctx.bounds), None, None, None


def _as_autocast(rows: Tensor) -> Tensor:
    """In the type that autocast gives the inputs of a linear layer; it does not see the products made here."""
    device = rows.device.type
    if rows.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return rows
    return rows.to(torch.get_autocast_dtype(device))


class _Rows:
    """What a pass keeps: for each of the two maps its inputs, and the gradients of its outputs."""

    def __init__(self, assignment: Assignment, inputs: tuple[Tensor, Tensor]) -> None:
        self.assignment = assignment
        self.inputs = inputs
        self.gradients: tuple[list[Tensor], list[Tensor]] = ([], [])

    def select(self, rows: Tensor) -> None:
        """Keep only some rows of everything."""
        self.assignment = self.assignment.select(rows)
        self.inputs = (self.inputs[0].index_select(0, rows), self.inputs[1].index_select(0, rows))
        for gradient in self.gradients:
            gradient[:] = [gradient[0].index_select(0, rows)] if gradient else []


class ExpertsTap(Tap):
    """All routed experts of one sparse layer.

    With owners in the pass, a record's gradient is that of its owner expert alone: parameters of other active
    experts are constants for it, while their inputs keep their gradient (RAPTOR, arXiv 2609.05770, section
    3.3). Where nothing below the layer needs a gradient, the experts run without a graph, the backward pass
    ends at their output, and only rows at an owner are pushed through them.
    """

    def __init__(self, bank: ExpertBank, names: Collection[str], position: int = 0) -> None:
        """`names` are the trained ones among the bank's; `position` is the layer's column among the owners."""
        self._stacks = [stack for stack in bank.stacks if set(stack.names) <= set(names)]
        super().__init__(tuple(name for stack in self._stacks for name in stack.names))
        self._bank = bank
        self._position = position
        self._rows: _Rows | None = None
        self._record: Tensor | None = None
        self._output_gradient: Tensor | None = None
        self._ends_here = False

    def _attach(self) -> None:
        present = {id(parameter) for parameter in self._bank.module.parameters()}
        if any(id(tensor) not in present for stack in self._bank.stacks for tensor in stack.tensors):
            raise ModelError(
                f"The parameters of the experts of {self.parameters[0]} were replaced after the engine was made, so "
                "that it would use the old ones. Make a new engine for the model as it is now."
            )
        self._bank.module.forward = self._forward

    def close(self) -> None:
        self._bank.module.__dict__.pop("forward", None)
        super().close()

    def _forget(self) -> None:
        self._rows = self._record = self._output_gradient = None

    def _forward(self, *inputs: Any) -> Tensor:
        hidden, assignment = self._bank.read(*inputs)
        is_first = self._enter_call()
        if len(hidden) != self._pass.records * self._pass.tokens:
            raise ModelError(
                f"The experts of {self.parameters[0]} are not given all tokens of all records in order, so it is "
                "not known which record a row belongs to. This architecture is not covered."
            )
        if self._bank.is_random and not hidden.requires_grad:
            # An activation with dropout must not run twice, so its graph is kept.
            hidden = hidden.detach().requires_grad_()
        self._ends_here = not hidden.requires_grad
        run = self._run_alone if self._ends_here else self._run_in_graph
        rows, output = run(hidden, assignment)
        if is_first:
            self._rows = rows
            if self._ends_here:
                output.register_hook(self._keep)  # type: ignore[no-untyped-call]
        return output

    def _keep(self, gradient: Tensor) -> None:
        self._output_gradient = gradient.detach()

    def _run_in_graph(self, hidden: Tensor, assignment: Assignment) -> tuple[_Rows, Tensor]:
        bank = self._bank
        inputs = _as_autocast(hidden.index_select(0, assignment.token))
        gradients: tuple[list[Tensor], list[Tensor]] = ([], [])
        between = _Captured.apply(inputs, bank.first, assignment.bounds, gradients[0])  # type: ignore[no-untyped-call]
        active = bank.activate(between)
        outer = _Captured.apply(active, bank.second, assignment.bounds, gradients[1])  # type: ignore[no-untyped-call]
        rows = _Rows(assignment, (inputs.detach(), active.detach()))
        rows.gradients = gradients
        return rows, self._combine(hidden, assignment, outer)

    def _run_alone(self, hidden: Tensor, assignment: Assignment) -> tuple[_Rows, Tensor]:
        bank = self._bank
        with torch.no_grad():
            inputs = _as_autocast(hidden.index_select(0, assignment.token))
            between = bank.first.forward(inputs, assignment.bounds)
            outer = bank.second.forward(bank.activate(between), assignment.bounds)
            output = self._combine(hidden, assignment, outer)
            if self._pass.owners is not None:
                chosen = self._owned(assignment)
                assignment = assignment.select(chosen)
                inputs, between = inputs.index_select(0, chosen), between.index_select(0, chosen)
        return _Rows(assignment, (inputs, between)), output.requires_grad_()

    @staticmethod
    def _combine(hidden: Tensor, assignment: Assignment, outer: Tensor) -> Tensor:
        weighted = outer * assignment.weight[:, None]
        return torch.zeros_like(hidden).index_add(0, assignment.token, weighted.to(hidden.dtype))

    def _records_of(self, assignment: Assignment) -> Tensor:
        return torch.div(assignment.token, self._pass.tokens, rounding_mode="floor")

    def _owned(self, assignment: Assignment) -> Tensor:
        """Positions of the rows at the owner of their record."""
        if self._pass.owners is None:
            raise AssertionError("a pass without owners has no owned rows")
        owner = self._pass.owners[:, self._position][self._records_of(assignment)]
        return (assignment.expert == owner).nonzero().squeeze(1)

    def settle(self) -> None:
        rows = self._rows
        if rows is None:
            return
        if self._ends_here:
            self._push_back(rows)
        elif self._pass.owners is not None and rows.gradients[0]:
            rows.select(self._owned(rows.assignment))
        self._record = self._records_of(rows.assignment)

    def _push_back(self, rows: _Rows) -> None:
        """Through second map, activation and no further: the first map's inputs need no gradient."""
        if self._output_gradient is None:
            return
        assignment, bank = rows.assignment, self._bank
        outer = self._output_gradient.index_select(0, assignment.token) * assignment.weight[:, None].detach()
        between = rows.inputs[1].detach().requires_grad_()
        with torch.enable_grad():
            active = bank.activate(between)
        inner = bank.second.backward(outer.to(active.dtype), assignment.bounds)
        rows.gradients[0][:] = torch.autograd.grad(active, between, inner)
        rows.gradients[1][:] = [outer]
        rows.inputs = (rows.inputs[0], active.detach())

    def _pairs(self) -> list[tuple[Stack, Tensor, Tensor]]:
        """For each trained stack, the rows whose products with each other are its gradient: (in), (out)."""
        rows = self._rows
        if rows is None or not rows.gradients[0]:
            return []
        pairs: list[tuple[Stack, Tensor, Tensor]] = []
        for linear, values, gradients in zip(
            (self._bank.first, self._bank.second), rows.inputs, rows.gradients, strict=True
        ):
            inputs, gradient = accumulate(values), accumulate(gradients[0])
            if linear.weight in self._stacks:
                pairs.append((linear.weight, inputs, gradient))
            update, bounds = linear.update, rows.assignment.bounds
            if update is not None and update.up in self._stacks:
                low = grouped_product(inputs, update.down, bounds) * update.scale
                pairs.append((update.up, low, gradient))
            if update is not None and update.down in self._stacks:
                low = grouped_product(gradient, update.up, bounds, transposed=True) * update.scale
                pairs.append((update.down, inputs, low))
        return pairs

    def squared_norms(self) -> Tensor:
        records, experts = self._pass.records, self._bank.num_experts
        total = accumulate(self._stacks[0].tensors[0].new_zeros(records))
        rows, record = self._rows, self._record
        if rows is None or record is None or not len(record):
            return total
        segments = kernels.Segments(rows.assignment.expert * records + record, experts * records)
        for _, inputs, gradient in self._pairs():
            norms = segments.squared_norms(inputs, gradient, self._pass.way)
            total = total + norms.view(experts, records).sum(dim=0)
        return total

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        views: dict[int, list[Tensor]] = {}
        for stack in self._stacks:
            whole, views[id(stack)] = stack.zeros(factors.dtype)
            result.update(whole)
        rows, record = self._rows, self._record
        if rows is None or record is None:
            return result
        factor = factors[record][:, None]
        bounds = rows.assignment.bounds
        for stack, inputs, gradient in self._pairs():
            scaled = gradient * factor if gradient.shape[1] <= inputs.shape[1] else gradient
            other = inputs if gradient.shape[1] <= inputs.shape[1] else inputs * factor
            for expert, view in enumerate(views[id(stack)]):
                start, end = bounds[expert], bounds[expert + 1]
                if start < end:
                    torch.mm(scaled[start:end].t(), other[start:end], out=view)
        return result

    def erase(self, records: Tensor) -> None:
        rows, record = self._rows, self._record
        if rows is None or record is None:
            return
        # Dropped, not set to zero: a low-rank update multiplies them by an expert's matrices once more, which
        # need not be finite either.
        sound = (~records[record]).nonzero().squeeze(1)
        rows.select(sound)
        self._record = record[sound]
