"""What every tap is, and the tap on a module that turns one input into one output.

A tap claims some parameters, listens to its module during a pass, and afterwards gives two things: each record's
squared gradient norm, and the sum of the gradients weighted by one factor per record. Weight gradients of single
records are never built where a cheaper way exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from raptor.dp.gradients.kernels import Grams, Scaled, Way
from raptor.errors import ModelError


@dataclass
class Pass:
    """One forward and backward pass over a batch.

    Attributes:
        records: number of records; where users are the units, of users.
        tokens: padded length of a record; of a user, of all the user's rows together.
        way: how norms of linear layers are computed.
        owners: (records, layers) owner experts, in passes where only owners' gradients count.
        is_recomputing: set once the forward pass is over. Modules that run again after it are recomputed by
            gradient checkpointing: they must do the same, and nothing is kept of them.
        grams: inner products of activations, shared by layers with the same input.
        scaled: activations times factors, shared by layers with the same input.
        members: rows of a unit. A user's gradient is that of one long record: the sum over all tokens of all rows.
        tiles: of each row's pictures, which a vision tower is given as rows of their own, in the order of records.
    """

    records: int
    tokens: int
    way: Way = "auto"
    owners: Tensor | None = None
    is_recomputing: bool = False
    grams: Grams = field(default_factory=Grams)
    scaled: Scaled = field(default_factory=Scaled)
    members: int = 1
    tiles: int = 1

    @property
    def leading(self) -> tuple[int, int, int]:
        """First dimensions under which values stand in the order of records."""
        return self.rows, self.records * self.tokens, self.rows * self.tiles

    @property
    def rows(self) -> int:
        """First dimension of what the model is given."""
        return self.records * self.members


def by_record(value: Tensor, current: Pass, name: str) -> Tensor:
    """(records, rows, width) view of values whose rows are records, or their tokens or tiles in the order of records.

    Raises:
        ModelError: the leading dimension is none of them; another grouping would clip tokens as records.
    """
    size = current.records
    if value.ndim < 2 or value.shape[0] not in current.leading:
        raise ModelError(
            f"The input of {name} has neither records nor tokens of records as its first dimension; other rows "
            "would be clipped as records. This architecture is not covered."
        )
    return value.reshape(size, -1, value.shape[-1])


class Tap(ABC):
    """Per-record gradients of the parameters of one module.

    Attributes:
        parameters: dotted names of the parameters it claims.
        scales: public factors on their gradients, in norms and sums alike (see `raptor.dp.clipping.Scales`).
    """

    scales: Mapping[str, float | Tensor] = MappingProxyType({})

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self._handles: list[RemovableHandle] = []
        self._pass = Pass(0, 0)
        self._is_called = False

    def open(self, current: Pass) -> None:
        """Listen to the next pass."""
        self._pass = current
        self._is_called = False
        self._attach()

    def _enter_call(self) -> bool:
        """Note a call of the module; False when gradient checkpointing makes it again.

        Raises:
            ModelError: a second call, or one that autograd cannot follow.
        """
        if self._pass.is_recomputing:
            return False
        name = self.parameters[0]
        if self._is_called:
            raise ModelError(
                f"The module of {name} is called more than once in a forward pass; its per-record gradient would "
                "be wrong. This architecture is not covered."
            )
        if not torch.is_grad_enabled():
            raise ModelError(
                f"The module of {name} runs with gradients switched off, so its per-record gradient would be "
                "missing. With gradient checkpointing, use use_reentrant=False."
            )
        self._is_called = True
        return True

    def require_called(self) -> None:
        """Refuse a module that the forward pass went around: how its parameters were used is not known.

        Raises:
            ModelError: the module was not called.
        """
        if not self._is_called:
            raise ModelError(
                f"The module of {', '.join(self.parameters)} is not called in the forward pass; no exact "
                "per-record gradient is known. Leave these parameters out of training."
            )

    def close(self) -> None:
        """Stop listening and forget what was kept."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()

    @abstractmethod
    def _attach(self) -> None: ...

    @abstractmethod
    def _forget(self) -> None: ...

    def settle(self) -> None:  # noqa: B027 - most taps have nothing left to do
        """Finish what the backward pass left open, before norms are asked for."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """(records,) squared norm of each record's gradient of the claimed parameters."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        """Sum of the records' gradients, each times its factor: name -> tensor of the parameter's shape."""

    @abstractmethod
    def erase(self, records: Tensor) -> None:
        """Make the gradients of the marked records exactly zero; (records,) bool."""


class OneOutputTap(Tap):
    """A tap on a module that is called once in a pass: it keeps an input and the gradient of the output."""

    def __init__(self, module: nn.Module, parameters: tuple[str, ...]) -> None:
        super().__init__(parameters)
        self._module = module
        self._input: Tensor | None = None
        self._version = 0
        self._gradient: Tensor | None = None

    def _attach(self) -> None:
        self._handles.append(self._module.register_forward_hook(self._listen, with_kwargs=True))

    def _listen(
        self, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        is_first = self._enter_call()
        # Frozen parameters alone would build no graph, so a gradient must be given a place to arrive at.
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        if not is_first:
            return output
        given: Tensor = inputs[0] if inputs else next(iter(named.values()))
        self._input, self._version = given.detach(), given._version
        output.register_hook(self._keep)  # type: ignore[no-untyped-call]
        return output

    def _keep(self, gradient: Tensor) -> None:
        self._gradient = gradient.detach()

    def _forget(self) -> None:
        self._input = self._gradient = None

    def kept(self) -> tuple[Tensor, Tensor] | None:
        """Input and output gradient, or None when no gradient reached the module."""
        if self._input is None or self._gradient is None:
            return None
        if self._input._version != self._version:
            raise ModelError(
                f"The input of {self.parameters[0]} is changed in place after its use; the per-record gradient "
                "would be wrong. This architecture is not covered."
            )
        return self._input, self._gradient

    def erase(self, records: Tensor) -> None:
        for name in ("_input", "_gradient"):
            value: Tensor | None = getattr(self, name)
            if value is not None and value.is_floating_point():
                rows = records.repeat_interleave(value.shape[0] // len(records))
                setattr(self, name, value.masked_fill(rows.view(-1, *[1] * (value.ndim - 1)), 0.0))
        self._version = 0 if self._input is None else self._input._version
