"""The routed experts of one sparse layer, in one form for every family.

Every covered expert is two linear maps around an activation: rows -> `first` -> `activate` -> `second`, each row
a token, its output scaled by the router's weight. A bank says where the matrices are, and reads the family's own
call into an `Assignment`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from raptor.errors import ModelError


@dataclass(frozen=True)
class Assignment:
    """Which token goes to which expert, one row for each pair, sorted by expert and then by token.

    Attributes:
        token: (rows,) int64, position of the token among all tokens of the batch.
        expert: (rows,) int64, ascending.
        weight: (rows,) router weight of the pair.
        bounds: first row of each expert, and the number of rows at the end; experts + 1 numbers.
    """

    token: Tensor
    expert: Tensor
    weight: Tensor
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, token: Tensor, expert: Tensor, weight: Tensor, experts: int) -> Assignment:
        """Sort pairs whose tokens ascend."""
        expert, order = torch.sort(expert, stable=True)
        return cls(token[order], expert, weight[order], row_bounds(expert, experts))

    def select(self, rows: Tensor) -> Assignment:
        """The pairs at `rows`, ascending int64."""
        expert = self.expert[rows]
        return Assignment(
            self.token[rows], expert, self.weight[rows], row_bounds(expert, len(self.bounds) - 1)
        )


def row_bounds(expert: Tensor, experts: int) -> tuple[int, ...]:
    """First row of each expert in ascending expert numbers, and the number of rows at the end."""
    counts = torch.bincount(expert, minlength=experts)
    return (0, *torch.cumsum(counts, dim=0).tolist())


class Stack:
    """One matrix for each expert: a fused tensor (experts, out, in), or a tensor of its own for each.

    Attributes:
        names: dotted parameter names, one for a fused tensor, else one for each expert.
        tensors: the parameters of these names.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self.names = tuple(names)
        self.tensors = tuple(tensors)

    @property
    def is_fused(self) -> bool:
        return self.tensors[0].ndim == 3

    def __len__(self) -> int:
        return self.tensors[0].shape[0] if self.is_fused else len(self.tensors)

    def of(self, expert: int) -> Tensor:
        """(out, in) matrix of one expert."""
        return self.tensors[0][expert] if self.is_fused else self.tensors[expert]

    def empty(self, dtype: torch.dtype) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Tensors by name with nothing in them yet, and one view into them for each expert."""
        whole = {
            name: torch.empty_like(tensor, dtype=dtype)
            for name, tensor in zip(self.names, self.tensors, strict=True)
        }
        return whole, list(whole[self.names[0]]) if self.is_fused else list(whole.values())


def by_expert(stacks: Iterable[Stack], values: Sequence[float]) -> dict[str, float | Tensor]:
    """One number for each expert, by parameter: (experts, 1, 1) for a fused one, else that of its expert.

    Raises:
        ModelError: there are not as many numbers as experts, or one is not above 0 and finite.
    """
    found: dict[str, float | Tensor] = {}
    if not all(0.0 < value < math.inf for value in values):
        raise ModelError(f"Numbers by expert must be above 0 and finite, not {list(values)}.")
    for stack in stacks:
        if len(stack) != len(values):
            raise ModelError(
                f"There are {len(values)} numbers for {len(stack)} experts, one for each is needed."
            )
        if stack.is_fused:
            found[stack.names[0]] = torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
        else:
            found |= dict(zip(stack.names, map(float, values), strict=True))
    return found


def grouped_product(rows: Tensor, stack: Stack, bounds: Sequence[int], *, transposed: bool = False) -> Tensor:
    """Each row times its expert's matrix: rows W^T as in a linear layer, or rows W with `transposed`.

    Args:
        rows: (rows, in), or (rows, out) with `transposed`; sorted by expert.
        stack: matrices (out, in).
        bounds: as in `Assignment`.
        transposed: go from outputs back to inputs.
    """
    out, inner = stack.of(0).shape
    result = rows.new_empty(len(rows), inner if transposed else out)
    for expert, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        matrix = stack.of(expert).to(rows.dtype)
        torch.mm(rows[start:end], matrix if transposed else matrix.t(), out=result[start:end])
    return result


@dataclass(frozen=True)
class LowRank:
    """A low-rank update of a linear map, scale B A (LoRA, Hu et al., arXiv 2106.09685).

    Attributes:
        down: A, (rank, in) for each expert.
        up: B, (out, rank) for each expert.
    """

    down: Stack
    up: Stack
    scale: float


@dataclass(frozen=True)
class ExpertLinear:
    """One linear map of every expert, with or without a low-rank update."""

    weight: Stack
    update: LowRank | None = None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (self.weight,) if self.update is None else (self.weight, self.update.down, self.update.up)

    def forward(self, rows: Tensor, bounds: Sequence[int]) -> Tensor:
        """(rows, in) -> (rows, out), without a graph."""
        result = grouped_product(rows, self.weight, bounds)
        if self.update is not None:
            low = grouped_product(rows, self.update.down, bounds)
            result.add_(grouped_product(low, self.update.up, bounds), alpha=self.update.scale)
        return result

    def one(self, rows: Tensor, expert: int) -> Tensor:
        """(rows, in) -> (rows, out) of one expert, without a graph."""
        result = rows @ self.weight.of(expert).to(rows.dtype).t()
        if self.update is not None:
            down, up = (stack.of(expert).to(rows.dtype).t() for stack in (self.update.down, self.update.up))
            result.addmm_(rows @ down, up, alpha=self.update.scale)
        return result

    def backward(self, gradient: Tensor, bounds: Sequence[int]) -> Tensor:
        """Gradient of the outputs (rows, out) -> gradient of the inputs (rows, in)."""
        result = grouped_product(gradient, self.weight, bounds, transposed=True)
        if self.update is not None:
            low = grouped_product(gradient, self.update.up, bounds, transposed=True)
            result.add_(
                grouped_product(low, self.update.down, bounds, transposed=True), alpha=self.update.scale
            )
        return result


class ExpertBank(ABC):
    """The experts of one sparse layer.

    Attributes:
        module: the module that the sparse block calls; its `forward` may be replaced for a pass.
        first, second: the two linear maps.
    """

    def __init__(self, module: nn.Module, first: ExpertLinear, second: ExpertLinear) -> None:
        self.module = module
        self.first = first
        self.second = second

    @property
    def num_experts(self) -> int:
        return len(self.first.weight)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return self.first.stacks + self.second.stacks

    @property
    def parameters(self) -> tuple[str, ...]:
        """Dotted names of all parameters of the experts."""
        return tuple(name for stack in self.stacks for name in stack.names)

    @property
    def is_random(self) -> bool:
        """Whether `activate` draws random numbers, as dropout does in training mode."""
        return False

    @abstractmethod
    def read(self, *inputs: Any) -> tuple[Tensor, Assignment]:
        """The call of the experts module as (tokens, width) hidden states and an assignment."""

    @abstractmethod
    def activate(self, rows: Tensor) -> Tensor:
        """What lies between the two maps; differentiable."""


class FusedBank(ExpertBank):
    """Experts in fused tensors behind the experts interface of transformers, one or two of them gated."""

    def __init__(self, module: nn.Module, prefix: str) -> None:
        """`prefix` is the dotted name of the module and a dot.

        Raises:
            ModelError: the layout is not covered.
        """
        layout = {
            "biases": getattr(module, "has_bias", False),
            "transposed matrices": getattr(module, "is_transposed", False),
            "interleaved gate and up matrices": not getattr(module, "is_concatenated", True),
            "a norm after each expert": getattr(module, "has_post_expert_norm", False),
            "expert parallelism": getattr(module, "_is_expert_parallel", False),
        }
        if found := [name for name, present in layout.items() if present]:
            raise ModelError(
                f"The experts {prefix[:-1]} have {' and '.join(found)}, for which no exact per-record gradient is "
                "known here. This architecture is not covered."
            )
        self._gated = bool(getattr(module, "has_gate", True))
        names = ("gate_up_proj" if self._gated else "up_proj", "down_proj")
        if absent := [name for name in names if name not in module._parameters]:
            raise ModelError(
                f"The experts {prefix[:-1]} are a {type(module).__name__} that does not hold {' and '.join(absent)} "
                "itself. An adapter of another library, such as PEFT's target_parameters, is around them, and no "
                "exact per-record gradient is known for it. Take it off, and use training.trainable=lora instead."
            )
        extra = [name for name, _ in module.named_parameters(recurse=False) if name not in names]
        if extra:
            raise ModelError(
                f"The experts {prefix[:-1]} hold parameters that no gradient is known for: {', '.join(extra)}. "
                "This architecture is not covered."
            )
        first, second = (
            ExpertLinear(Stack((prefix + name,), (module.get_parameter(name),))) for name in names
        )
        super().__init__(module, first, second)

    def read(self, *inputs: Any) -> tuple[Tensor, Assignment]:
        hidden, chosen, weights = inputs
        token = torch.arange(len(hidden), device=hidden.device).repeat_interleave(chosen.shape[1])
        return hidden, Assignment.of(token, chosen.flatten(), weights.flatten(), self.num_experts)

    def activate(self, rows: Tensor) -> Tensor:
        module: Any = self.module
        result: Tensor = module._apply_gate(rows) if self._gated else module.act_fn(rows)
        return result


class ModuleBank(ExpertBank):
    """Switch experts: a module for each, called with a one-hot dispatch mask."""

    def __init__(self, module: nn.Module, prefix: str, experts: int) -> None:
        """`prefix` is the dotted name of the module and a dot.

        Raises:
            ModelError: an expert holds more than its two weight matrices.
        """
        self._expert: Any = module.get_submodule("expert_0")
        maps = []
        for name in ("wi", "wo"):
            parts = [f"expert_{expert}.{name}.weight" for expert in range(experts)]
            maps.append(
                ExpertLinear(
                    Stack([prefix + part for part in parts], [module.get_parameter(p) for p in parts])
                )
            )
        super().__init__(module, *maps)
        extra = {prefix + name for name, _ in module.named_parameters()} - set(self.parameters)
        if extra:
            raise ModelError(
                f"The experts {prefix[:-1]} hold parameters that no gradient is known for: "
                f"{', '.join(sorted(extra))}. This architecture is not covered. For adapters on experts use "
                "training.trainable=lora instead of those of another library."
            )

    @property
    def is_random(self) -> bool:
        dropout = self._expert.dropout
        return bool(dropout.training and dropout.p > 0)

    def read(self, *inputs: Any) -> tuple[Tensor, Assignment]:
        hidden, dispatch, weights = inputs
        # A token over an expert's capacity has no row: the block passes it on unchanged.
        token, expert = dispatch[:, 0].nonzero(as_tuple=True)
        return hidden, Assignment.of(token, expert, weights[token, 0], self.num_experts)

    def activate(self, rows: Tensor) -> Tensor:
        result: Tensor = self._expert.dropout(self._expert.act(rows))
        return result
