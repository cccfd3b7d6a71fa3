"""Routed experts: the rows an expert sees are tokens of many records, so every row carries its record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from raptor.dp.gradients import kernels
from raptor.dp.gradients.kernels import accumulate
from raptor.dp.gradients.routed import GroupedLinear, combine
from raptor.dp.gradients.taps.base import Tap
from raptor.errors import ModelError
from raptor.moe.experts import Assignment, ExpertBank, Stack, by_expert, grouped_product


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

    def __init__(
        self, bank: ExpertBank, names: Collection[str], position: int = 0, factors: Sequence[float] = ()
    ) -> None:
        """`names` are the trained ones among the bank's; `position` is the layer's column among the owners.

        `factors` are public, one for each expert's gradients, in norms and sums alike; 1 for all by default.
        """
        self._stacks = [stack for stack in bank.stacks if set(stack.names) <= set(names)]
        super().__init__(tuple(name for stack in self._stacks for name in stack.names))
        self._bank = bank
        self._factors = tuple(factors)
        self.scales = by_expert(self._stacks, self._factors) if self._factors else {}
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
        between = GroupedLinear.apply(inputs, bank.first, assignment.bounds, gradients[0])  # type: ignore[no-untyped-call]
        active = bank.activate(between)
        outer = GroupedLinear.apply(active, bank.second, assignment.bounds, gradients[1])  # type: ignore[no-untyped-call]
        rows = _Rows(assignment, (inputs.detach(), active.detach()))
        rows.gradients = gradients
        return rows, combine(hidden, assignment, outer)

    def _run_alone(self, hidden: Tensor, assignment: Assignment) -> tuple[_Rows, Tensor]:
        """Without a graph, one expert after the other, so that only rows that count are held for longer."""
        bank, owned = self._bank, None
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        with torch.no_grad():
            counted = assignment
            if self._pass.owners is not None:
                owned = self._owned(assignment)
                counted = assignment.select(owned)
            output = torch.zeros_like(hidden)
            for expert, (start, end) in enumerate(pairwise(assignment.bounds)):
                token = assignment.token[start:end]
                rows = _as_autocast(hidden.index_select(0, token))
                between = bank.first.one(rows, expert)
                outer = bank.second.one(bank.activate(between), expert)
                weighted = outer * assignment.weight[start:end, None]
                output.index_add_(0, token, weighted.to(hidden.dtype))
                if owned is not None:
                    inside = owned[counted.bounds[expert] : counted.bounds[expert + 1]] - start
                    rows, between = rows.index_select(0, inside), between.index_select(0, inside)
                kept[0].append(rows)
                kept[1].append(between)
        return _Rows(counted, (torch.cat(kept[0]), torch.cat(kept[1]))), output.requires_grad_()

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
            parts = norms.view(experts, records)
            if self._factors:
                parts = parts * parts.new_tensor(self._factors).square()[:, None]
            total = total + parts.sum(dim=0)
        return total

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        pairs = {id(stack): (inputs, gradient) for stack, inputs, gradient in self._pairs()}
        for stack in self._stacks:
            whole, views = stack.empty(factors.dtype)
            result.update(whole)
            if id(stack) in pairs:
                self._fill(views, *pairs.pop(id(stack)), factors)
            else:
                for view in views:
                    view.zero_()
        return result

    def _fill(self, views: list[Tensor], inputs: Tensor, gradient: Tensor, factors: Tensor) -> None:
        """Write the weighted sum of each expert's matrix."""
        rows, record = self._rows, self._record
        if rows is None or record is None:
            raise AssertionError("no rows were kept")
        factor = factors[record][:, None]
        if gradient.shape[1] <= inputs.shape[1]:
            gradient = gradient * factor
        else:
            inputs = inputs * factor
        for expert, (start, end) in enumerate(pairwise(rows.assignment.bounds)):
            view = views[expert]
            if start < end:
                torch.mm(gradient[start:end].t(), inputs[start:end], out=view)
                if self._factors:
                    view.mul_(self._factors[expert])
            else:
                view.zero_()

    def erase(self, records: Tensor) -> None:
        rows, record = self._rows, self._record
        if rows is None or record is None:
            return
        # Dropped, not set to zero: a low-rank update multiplies them by an expert's matrices once more, which
        # need not be finite either.
        sound = (~records[record]).nonzero().squeeze(1)
        rows.select(sound)
        self._record = record[sound]
