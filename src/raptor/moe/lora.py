"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): a frozen weight W plus a trained update scale B A.

The update has rank r, A is (r, in) and B is (out, r). `raptor.moe.adapters` puts adapters on a model and folds
them into its weights again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from raptor.moe.experts import Assignment, ExpertBank, ExpertLinear, LowRank, Stack

ReadExperts = Callable[[nn.Module, str], ExpertBank]
MAPS = ("first", "second")


def _first_factor(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform within 1 / sqrt(in), as in the reference implementation of LoRA; `like` gives type and device."""
    bound = 1.0 / math.sqrt(shape[-1])
    # Drawn on the CPU in float32 whatever the model is in, so that the start is the same everywhere.
    values = torch.empty(tuple(shape)).uniform_(-bound, bound, generator=generator)
    return values.to(device=like.device, dtype=like.dtype)


def _add(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> None:
    """weight + scale B A in place, summed in float32 or better and rounded once."""
    exact = torch.promote_types(weight.dtype, torch.float32)
    weight.copy_(weight.to(exact) + scale * (up.to(exact) @ down.to(exact)))


def _product(linear: ExpertLinear, rows: Tensor, bounds: Sequence[int]) -> Tensor:
    """As `ExpertLinear.forward`, with a graph: (rows, in) -> (rows, out)."""
    parts = []
    for expert, (start, end) in enumerate(pairwise(bounds)):
        given = rows[start:end]
        part = functional.linear(given, linear.weight.of(expert))
        if linear.update is not None:
            low = functional.linear(given, linear.update.down.of(expert))
            part = part + linear.update.scale * functional.linear(low, linear.update.up.of(expert))
        parts.append(part)
    return torch.cat(parts)


class LoRALinear(nn.Module):
    """A frozen linear layer with a trained low-rank update: base(x) + scale lora_b(lora_a(x)).

    Both factors are ordinary linear layers without bias, so their per-record gradients are those of such.

    Attributes:
        base: the frozen layer, (in) -> (out).
        lora_a: (in) -> (rank).
        lora_b: (rank) -> (out), zero at first: a new adapter changes no output.
        scale: alpha / rank.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        weight = base.weight
        place: dict[str, Any] = {"bias": False, "device": weight.device, "dtype": weight.dtype}
        self.base = base.requires_grad_(False)
        # Without their own initialisation, which would draw from the global generator.
        self.lora_a: nn.Linear = skip_init(nn.Linear, base.in_features, rank, **place)  # type: ignore[no-untyped-call]
        self.lora_b: nn.Linear = skip_init(nn.Linear, rank, base.out_features, **place)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.lora_a.weight.copy_(_first_factor((rank, base.in_features), weight, generator))
            self.lora_b.weight.zero_()
        self.scale = alpha / rank

    @property
    def weight(self) -> Tensor:
        """The frozen weight (out, in): some blocks of transformers look at the type of a layer's weight."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        update: Tensor = self.lora_b(self.lora_a(inputs))
        result: Tensor = self.base(inputs) + self.scale * update
        return result

    @torch.no_grad()
    def fold(self) -> nn.Module:
        """Add the update to the base layer's weight, and return the base layer."""
        _add(self.base.weight, self.lora_b.weight, self.lora_a.weight, self.scale)
        return self.base


class LoRAExperts(nn.Module):
    """The experts of one sparse layer with a low-rank update of both linear maps of every expert.

    It takes the place of the module that the sparse block calls, and is called in the same way.

    Attributes:
        base: the family's own experts, frozen.
        first_lora_a, second_lora_a: (experts, rank, in).
        first_lora_b, second_lora_b: (experts, out, rank), zero at first.
        scale: alpha / rank.
        is_off: whether the base experts run alone.
    """

    def __init__(
        self,
        base: nn.Module,
        read_experts: ReadExperts,
        rank: int,
        alpha: float,
        generator: torch.Generator,
    ) -> None:
        """`read_experts` is the family's: a function of the module, so that a copy reads its own experts.

        Raises:
            ModelError: the layout of the experts is not covered.
        """
        super().__init__()
        bank = read_experts(base, "")
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.is_off = False
        self._read_experts = read_experts
        for name, linear in zip(MAPS, (bank.first, bank.second), strict=True):
            weight = linear.weight.of(0)
            out, inner = weight.shape
            down = _first_factor((bank.num_experts, rank, inner), weight, generator)
            self.register_parameter(f"{name}_lora_a", nn.Parameter(down))
            self.register_parameter(f"{name}_lora_b", nn.Parameter(weight.new_zeros(len(down), out, rank)))

    def bank(self, prefix: str = "") -> ExpertBank:
        """The experts with their updates; `prefix` is the dotted name of this module and a dot."""
        return _LoRABank(self, self._read_experts(self.base, f"{prefix}base."), prefix)

    def forward(self, *inputs: Any) -> Tensor:
        """The family's call, with a graph where parameters or inputs ask for one."""
        if self.is_off:
            found: Tensor = self.base(*inputs)
            return found
        bank = self.bank()
        hidden, assignment = bank.read(*inputs)
        between = _product(bank.first, hidden[assignment.token], assignment.bounds)
        outer = _product(bank.second, bank.activate(between), assignment.bounds)
        weighted = outer * assignment.weight[:, None]
        return torch.zeros_like(hidden).index_add(0, assignment.token, weighted.to(hidden.dtype))

    @torch.no_grad()
    def fold(self) -> nn.Module:
        """Add the updates to the weights of the base experts, and return the base experts."""
        bank = self.bank()
        for linear in (bank.first, bank.second):
            if linear.update is None:
                raise AssertionError("the maps of these experts have updates")
            for expert in range(bank.num_experts):
                up, down = linear.update.up.of(expert), linear.update.down.of(expert)
                _add(linear.weight.of(expert), up, down, self.scale)
        return self.base


class _LoRABank(ExpertBank):
    """The bank of the base experts, whose maps have updates."""

    def __init__(self, module: LoRAExperts, inner: ExpertBank, prefix: str) -> None:
        def updated(name: str, linear: ExpertLinear) -> ExpertLinear:
            down, up = (f"{name}_lora_a", f"{name}_lora_b")
            update = LowRank(
                Stack((prefix + down,), (module.get_parameter(down),)),
                Stack((prefix + up,), (module.get_parameter(up),)),
                module.scale,
            )
            return ExpertLinear(linear.weight, update)

        super().__init__(module, updated("first", inner.first), updated("second", inner.second))
        self._inner = inner

    @property
    def is_random(self) -> bool:
        return self._inner.is_random

    def read(self, *inputs: Any) -> tuple[Tensor, Assignment]:
        return self._inner.read(*inputs)

    def activate(self, rows: Tensor) -> Tensor:
        return self._inner.activate(rows)
