"""Routed experts with a backward pass by hand, for the time of a pass: their parameters are constants in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from raptor.moe.experts import Assignment, ExpertBank, ExpertLinear, ModuleBank


class GroupedLinear(torch.autograd.Function):
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


class _Combine(torch.autograd.Function):
    """Outputs of experts times the router's weights, added up for each token, with one tensor for its gradient."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, weight: Tensor, token: Tensor, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(outer, weight, token)
        weighted = outer * weight[:, None]
        return torch.zeros_like(hidden).index_add_(0, token, weighted.to(hidden.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        outer, weight, token = ctx.saved_tensors
        rows = gradient.index_select(0, token)
        to_weight = torch.linalg.vecdot(rows, outer.to(rows.dtype)).to(weight.dtype)
        return rows.mul_(weight[:, None]).to(outer.dtype), to_weight, None, None


def combine(hidden: Tensor, assignment: Assignment, outer: Tensor) -> Tensor:
    """(tokens, width): for each token, the outputs of its experts times the router's weights."""
    combined: Tensor = _Combine.apply(outer, assignment.weight, assignment.token, hidden.detach())  # type: ignore[no-untyped-call]
    return combined


class _OneByOne(torch.autograd.Function):
    """All experts, one after the other, so that what lies between two maps stays in the cache."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, token: Tensor, bounds: tuple[int, ...], bank: ExpertBank
    ) -> Tensor:
        result = torch.zeros_like(hidden)
        kept: list[tuple[Tensor, Tensor]] = []
        for expert, (start, end) in enumerate(pairwise(bounds)):
            chosen = token[start:end]
            rows = hidden.index_select(0, chosen)
            between = bank.first.one(rows, expert)
            outer = bank.second.one(bank.activate(between), expert)
            if any(ctx.needs_input_grad):
                kept.append((between, outer))
                outer = outer * weight[start:end, None]
            else:
                outer.mul_(weight[start:end, None])
            result.index_add_(0, chosen, outer)
        ctx.save_for_backward(weight, token, *(tensor for pair in kept for tensor in pair))
        ctx.bounds, ctx.bank = bounds, bank
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        weight, token, *kept = ctx.saved_tensors
        bank: ExpertBank = ctx.bank
        to_hidden, to_weight = torch.zeros_like(gradient), torch.empty_like(weight)
        for expert, (start, end) in enumerate(pairwise(ctx.bounds)):
            chosen = token[start:end]
            rows = gradient.index_select(0, chosen)
            torch.linalg.vecdot(rows, kept[2 * expert + 1], out=to_weight[start:end])
            inner = rows.mul_(weight[start:end, None]) @ bank.second.weight.of(expert)
            between = kept[2 * expert].detach().requires_grad_()
            with torch.enable_grad():
                active = bank.activate(between)
            (inner,) = torch.autograd.grad(active, between, inner)
            to_hidden.index_add_(0, chosen, inner @ bank.first.weight.of(expert))
        return to_hidden, to_weight, None, None, None


class FrozenExperts:
    """Stands in for the forward of experts that are not trained, while it is open.

    In the backward pass the library writes a gradient of all tokens for each expert. Here tokens are sorted once.
    """

    def __init__(self, bank: ExpertBank) -> None:
        """`bank` satisfies `is_faster`."""
        self._bank = bank
        self._is_open = False

    @staticmethod
    def is_faster(bank: ExpertBank) -> bool:
        """Whether the library runs the experts one by one; fused ones have grouped products of their own."""
        return isinstance(bank, ModuleBank) and bank.first.update is None and bank.second.update is None

    def open(self) -> None:
        """Take the place of the module's forward, unless another library has done so since."""
        self._is_open = "forward" not in vars(self._bank.module)
        if self._is_open:
            self._bank.module.forward = self._forward

    def close(self) -> None:
        """Give it back."""
        if self._is_open:
            self._bank.module.__dict__.pop("forward", None)
        self._is_open = False

    def _forward(self, *inputs: Any) -> Tensor:
        bank, hidden = self._bank, inputs[0]
        own = bank.first.weight.tensors[0].dtype
        if bank.is_random or hidden.dtype != own or torch.is_autocast_enabled(hidden.device.type):
            # Dropout must not be drawn twice, and families differ in where other types are rounded.
            result: Tensor = type(bank.module).forward(bank.module, *inputs)
            return result
        hidden, assignment = bank.read(*inputs)
        output: Tensor = _OneByOne.apply(  # type: ignore[no-untyped-call]
            hidden, assignment.weight, assignment.token, assignment.bounds, bank
        )
        return output
