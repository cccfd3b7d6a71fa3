"""Taps: what each kind of module keeps of one forward and backward pass, to give its per-record gradients.

A tap claims some parameters, listens to its module during a pass, and afterwards gives two things: each
record's squared gradient norm, and the sum of the gradients weighted by one factor per record. Weight
gradients of single records are never built where a cheaper way exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from raptor.dp.gradients import kernels
from raptor.errors import ModelError


def _grown(output: Tensor) -> Tensor:
    """The output as something a gradient reaches: frozen parameters alone would build no graph."""
    return output if output.requires_grad else output.detach().requires_grad_()


class Tap(ABC):
    """Per-record gradients of the parameters of one module.

    Attributes:
        parameters: dotted names of the parameters it claims.
    """

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self._handles: list[RemovableHandle] = []
        self._records = 0

    def open(self, records: int) -> None:
        """Listen to the next pass, which has this many records."""
        self._records = records
        self._attach()

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

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """(records,) squared norm of each record's gradient of the claimed parameters."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        """Sum of the records' gradients, each times its factor: name -> tensor of the parameter's shape."""

    @abstractmethod
    def erase(self, records: Tensor) -> None:
        """Make the gradients of the marked records exactly zero; (records,) bool."""


class _OneOutputTap(Tap):
    """A tap on a module that is called once in a pass: it keeps an input and the gradient of the output."""

    def __init__(self, module: nn.Module, parameters: tuple[str, ...]) -> None:
        super().__init__(parameters)
        self._module = module
        self._input: Tensor | None = None
        self._gradient: Tensor | None = None

    def _attach(self) -> None:
        self._handles.append(self._module.register_forward_hook(self._listen))

    def _listen(self, _module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if self._input is not None:
            raise ModelError(
                f"The module of {self.parameters[0]} is called more than once in a forward pass; its per-record "
                "gradient would be wrong. This architecture is not covered."
            )
        self._input = inputs[0].detach()
        output = _grown(output)
        output.register_hook(self._keep)  # type: ignore[no-untyped-call]
        return output

    def _keep(self, gradient: Tensor) -> None:
        self._gradient = gradient.detach()

    def _forget(self) -> None:
        self._input = self._gradient = None

    def _kept(self) -> tuple[Tensor, Tensor] | None:
        """Input and output gradient, or None when no gradient reached the module."""
        if self._input is None or self._gradient is None:
            return None
        return self._input, self._gradient

    def _marked_rows(self, records: Tensor) -> Tensor:
        return records

    def erase(self, records: Tensor) -> None:
        marked = self._marked_rows(records)
        if self._input is not None and self._input.is_floating_point():
            self._input = self._input.clone()
            self._input[marked] = 0
        if self._gradient is not None:
            self._gradient = self._gradient.clone()
            self._gradient[marked] = 0


class LinearTap(_OneOutputTap):
    """`nn.Linear` whose input has the records as its leading dimension."""

    def __init__(self, module: nn.Linear, weight: str | None, bias: str | None) -> None:
        super().__init__(module, tuple(name for name in (weight, bias) if name is not None))
        self._linear = module
        self._weight = weight
        self._bias = bias

    def _rows(self) -> tuple[Tensor, Tensor] | None:
        kept = self._kept()
        if kept is None:
            return None
        inputs, gradient = kept
        if inputs.shape[0] != self._records:
            raise ModelError(
                f"The input of {self.parameters[0]} does not have the records as its first dimension; tokens "
                "would be clipped as records. This architecture is not covered."
            )
        size = self._records
        return inputs.reshape(size, -1, inputs.shape[-1]), gradient.reshape(size, -1, gradient.shape[-1])

    def squared_norms(self) -> Tensor:
        rows = self._rows()
        total = self._linear.weight.new_zeros(self._records)
        if rows is None:
            return total
        if self._weight is not None:
            total = total + kernels.linear_squared_norms(*rows)
        if self._bias is not None:
            total = total + rows[1].sum(dim=1).square().sum(dim=1)
        return total

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        rows = self._rows()
        result: dict[str, Tensor] = {}
        scaled = None if rows is None else rows[1] * factors[:, None, None]
        if self._weight is not None:
            result[self._weight] = (
                torch.zeros_like(self._linear.weight)
                if rows is None or scaled is None
                else scaled.flatten(0, 1).t() @ rows[0].flatten(0, 1)
            )
        if self._bias is not None:
            result[self._bias] = (
                torch.zeros_like(self._linear.bias) if scaled is None else scaled.sum(dim=(0, 1))
            )
        return result


class RowsTap(_OneOutputTap):
    """`nn.Linear` inside an expert: its rows are tokens, each of a known record, in ascending order."""

    def __init__(self, module: nn.Linear, weight: str, record_of_row: Callable[[], Tensor]) -> None:
        super().__init__(module, (weight,))
        self._linear = module
        self._record_of_row = record_of_row

    def squared_norms(self) -> Tensor:
        kept = self._kept()
        if kept is None:
            return self._linear.weight.new_zeros(self._records)
        return kernels.segment_squared_norms(*kept, self._record_of_row(), self._records)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        kept = self._kept()
        if kept is None:
            return {self.parameters[0]: torch.zeros_like(self._linear.weight)}
        inputs, gradient = kept
        return {self.parameters[0]: (gradient * factors[self._record_of_row()][:, None]).t() @ inputs}

    def _marked_rows(self, records: Tensor) -> Tensor:
        return records[self._record_of_row()]


class EmbeddingTap(_OneOutputTap):
    """`nn.Embedding` over (records, tokens) ids. The rows of padding get no gradient."""

    def __init__(self, module: nn.Embedding, weight: str) -> None:
        super().__init__(module, (weight,))
        self._embedding = module

    def _keep(self, gradient: Tensor) -> None:
        padding = self._embedding.padding_idx
        if padding is not None and self._input is not None:
            gradient = gradient.masked_fill((self._input == padding)[..., None], 0.0)
        super()._keep(gradient)

    def squared_norms(self) -> Tensor:
        kept = self._kept()
        if kept is None:
            return self._embedding.weight.new_zeros(self._records)
        return kernels.embedding_squared_norms(*kept)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        total = torch.zeros_like(self._embedding.weight)
        kept = self._kept()
        if kept is not None:
            ids, gradient = kept
            total.index_add_(0, ids.flatten(), (gradient * factors[:, None, None]).flatten(0, 1))
        return {self.parameters[0]: total}


class _LeafTap(Tap):
    """A tap that gives every record its own copy of a small parameter, and reads the copies' gradients."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        super().__init__(parameters)
        self._copies: dict[str, Tensor] = {}

    def _copy(self, name: str, value: Tensor) -> Tensor:
        if name in self._copies:
            raise ModelError(
                f"{name} is used more than once in a forward pass. This architecture is not covered."
            )
        self._copies[name] = value.contiguous().requires_grad_()
        return self._copies[name]

    def _forget(self) -> None:
        self._copies.clear()

    def _gradient(self, name: str) -> Tensor | None:
        copy = self._copies.get(name)
        return None if copy is None else copy.grad

    @abstractmethod
    def _per_record(self, name: str) -> Tensor:
        """(records, *parameter shape) gradients."""

    def squared_norms(self) -> Tensor:
        return torch.stack(
            [self._per_record(name).flatten(1).square().sum(dim=1) for name in self.parameters]
        ).sum(0)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        return {name: torch.tensordot(factors, self._per_record(name), dims=1) for name in self.parameters}

    def erase(self, records: Tensor) -> None:
        for copy in self._copies.values():
            if copy.grad is not None:
                copy.grad[records] = 0


class ElementwiseTap(_LeafTap):
    """A module whose one-dimensional parameters multiply or shift its input (every RMSNorm form)."""

    def __init__(self, module: nn.Module, names: dict[str, str]) -> None:
        """`names` maps attribute names of the module to dotted parameter names."""
        super().__init__(tuple(names.values()))
        self._module = module
        self._names = names

    def _attach(self) -> None:
        self._handles.append(self._module.register_forward_pre_hook(self._enter))
        self._handles.append(self._module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        shape = inputs[0].shape
        if shape[0] != self._records:
            raise ModelError(
                f"The input of {self.parameters[0]} does not have the records as its first dimension. "
                "This architecture is not covered."
            )
        for attribute, name in self._names.items():
            value = module.get_parameter(attribute).detach()
            copies = value.expand(shape[0], *[1] * (len(shape) - 2), value.shape[0])
            # An instance attribute hides the registered parameter for the time of the call.
            module.__dict__[attribute] = self._copy(name, copies)

    def _leave(self, module: nn.Module, _inputs: tuple[Any, ...], _output: Any) -> None:
        for attribute in self._names:
            module.__dict__.pop(attribute, None)

    def _per_record(self, name: str) -> Tensor:
        gradient = self._gradient(name)
        if gradient is None:
            attribute = next(key for key, value in self._names.items() if value == name)
            return self._module.get_parameter(attribute).new_zeros(
                self._records, *self._module.get_parameter(attribute).shape
            )
        return gradient.reshape(self._records, -1)


class RelativeBiasTap(_LeafTap):
    """The relative position bias of T5 and Switch: one table added to the attention scores of every record."""

    def __init__(self, attention: nn.Module, weight: str) -> None:
        super().__init__((weight,))
        self._attention: Any = attention
        self._buckets: Tensor | None = None

    def _attach(self) -> None:
        original = type(self._attention).compute_bias
        tap = self

        def compute_bias(
            attention: Any, query_length: int, key_length: int, *args: Any, **kwargs: Any
        ) -> Tensor:
            bias: Tensor = original(attention, query_length, key_length, *args, **kwargs).detach()
            position = (
                torch.arange(key_length, device=bias.device)[None]
                - torch.arange(query_length, device=bias.device)[:, None]
            )
            tap._buckets = attention._relative_position_bucket(
                position,
                bidirectional=not attention.is_decoder,
                num_buckets=attention.relative_attention_num_buckets,
                max_distance=attention.relative_attention_max_distance,
            )
            return tap._copy(tap.parameters[0], bias.expand(tap._records, -1, -1, -1))

        self._attention.compute_bias = MethodType(compute_bias, self._attention)

    def close(self) -> None:
        self._attention.__dict__.pop("compute_bias", None)
        super().close()

    def _forget(self) -> None:
        super()._forget()
        self._buckets = None

    def _per_record(self, name: str) -> Tensor:
        weight: Tensor = self._attention.relative_attention_bias.weight
        gradient = self._gradient(name)
        result = weight.new_zeros(self._records, *weight.shape)
        if gradient is not None and self._buckets is not None:
            scores = gradient.flatten(2).transpose(1, 2)
            index = self._buckets.flatten()[None, :, None].expand_as(scores)
            result.scatter_add_(1, index, scores)
        return result
