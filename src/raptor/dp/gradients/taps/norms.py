"""Normalisation layers: parameters that multiply or shift each feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raptor.dp.gradients.fused import FusedRms
from raptor.dp.gradients.kernels import accumulate
from raptor.dp.gradients.taps.base import OneOutputTap, Tap, by_record
from raptor.errors import ModelError


class FunctionalNormTap(OneOutputTap):
    """`nn.LayerNorm` and `nn.RMSNorm`: weight and bias act on the normalised input, which is computed again."""

    def __init__(self, module: nn.LayerNorm | nn.RMSNorm, names: dict[str, str]) -> None:
        """`names` maps attribute names of the module to dotted parameter names."""
        super().__init__(module, tuple(names.values()))
        self._norm = module
        self._names = names
        if len(module.normalized_shape) != 1:
            raise ModelError(
                f"{self.parameters[0]} normalises over several dimensions. This architecture is not covered."
            )

    def _per_record(self) -> dict[str, Tensor]:
        """Parameter name -> (records, width) gradients."""
        kept = self.kept()
        records = self._pass.records
        if kept is None:
            width = self._norm.normalized_shape[0]
            zeros = accumulate(next(self._norm.parameters()).new_zeros(records, width))
            return dict.fromkeys(self.parameters, zeros)
        values, gradient = (accumulate(by_record(value, self._pass, self.parameters[0])) for value in kept)
        result = {}
        if "weight" in self._names:
            shape = self._norm.normalized_shape
            if isinstance(self._norm, nn.RMSNorm):
                values = functional.rms_norm(values, shape, None, self._norm.eps)
            else:
                values = functional.layer_norm(values, shape, None, None, self._norm.eps)
            result[self._names["weight"]] = (gradient * values).sum(dim=1)
        if "bias" in self._names:
            result[self._names["bias"]] = gradient.sum(dim=1)
        return result

    def squared_norms(self) -> Tensor:
        return torch.stack([value.square().sum(dim=1) for value in self._per_record().values()]).sum(dim=0)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        return {name: factors @ value for name, value in self._per_record().items()}


class RmsNormTap(OneOutputTap):
    """A root-mean-square norm of transformers, run in one formula (`raptor.dp.gradients.fused`)."""

    def __init__(self, module: nn.Module, weight: str) -> None:
        """`module` satisfies `is_rms_norm`."""
        super().__init__(module, (weight,))
        self._fused = FusedRms(module, keeps=True)
        self._sums: Tensor | None = None

    def _attach(self) -> None:
        self._fused.open()
        super()._attach()

    def close(self) -> None:
        self._fused.close()
        super().close()

    def _forget(self) -> None:
        super()._forget()
        self._sums = None

    def _keep(self, gradient: Tensor) -> None:
        super()._keep(gradient)
        kept = self.kept()
        if kept is None:
            raise AssertionError("a gradient arrived before the call")
        values, name = kept[0], self.parameters[0]
        normalised = self._fused.normalised
        if normalised is None:
            normalised = functional.rms_norm(
                accumulate(values), values.shape[-1:], None, self._fused.epsilon
            ).to(values.dtype)
        products = accumulate(gradient) * accumulate(normalised)
        # Summed here and now, so that neither activations nor gradients of the norm outlive the backward pass.
        self._sums = by_record(products, self._pass, name).sum(dim=1)
        super()._forget()

    def _per_record(self) -> Tensor:
        """(records, width) gradients."""
        weight = self._module.get_parameter("weight")
        return (
            accumulate(weight.new_zeros(self._pass.records, len(weight)))
            if self._sums is None
            else self._sums
        )

    def squared_norms(self) -> Tensor:
        return self._per_record().square().sum(dim=1)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        return {self.parameters[0]: factors @ self._per_record()}

    def erase(self, records: Tensor) -> None:
        if self._sums is not None:
            self._sums = self._sums.masked_fill(records[:, None], 0.0)


class ElementwiseTap(Tap):
    """A module whose one-dimensional parameters multiply or shift its input (norms of any formula).

    Every record gets its own copy of the parameters for the time of the call, and autograd fills the copies'
    gradients; that works for any formula that broadcasts.
    """

    def __init__(self, module: nn.Module, names: dict[str, str]) -> None:
        """`names` maps attribute names of the module to dotted parameter names."""
        super().__init__(tuple(names.values()))
        self._module = module
        self._names = names
        self._copies: dict[str, Tensor] = {}

    def _attach(self) -> None:
        self._handles.append(self._module.register_forward_pre_hook(self._enter, with_kwargs=True))
        self._handles.append(self._module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        values = inputs[0] if inputs else next(iter(named.values()))
        self._enter_call()
        for attribute, name in self._names.items():
            if name not in self._copies:
                self._copies[name] = self._copy(module.get_parameter(attribute), values, name)
            # An instance attribute hides the registered parameter for the time of the call.
            module.__dict__[attribute] = self._copies[name]

    def _copy(self, parameter: Tensor, values: Tensor, name: str) -> Tensor:
        if values.shape[0] not in self._pass.leading:
            raise ModelError(
                f"The input of {name} has neither records nor tokens of records as its first dimension. This "
                "architecture is not covered."
            )
        shape = (values.shape[0], *[1] * (values.ndim - 2), parameter.shape[0])
        return parameter.detach().expand(shape).contiguous().requires_grad_()

    def _leave(self, module: nn.Module, _inputs: tuple[Any, ...], _output: Any) -> None:
        for attribute in self._names:
            module.__dict__.pop(attribute, None)

    def close(self) -> None:
        # Recomputation may stop inside the module, before its hook could put the parameter back.
        self._leave(self._module, (), None)
        super().close()

    def _forget(self) -> None:
        self._copies.clear()

    def _per_record(self, attribute: str) -> Tensor:
        """(records, width) gradients of one parameter."""
        copy = self._copies.get(self._names[attribute])
        records = self._pass.records
        if copy is None or copy.grad is None:
            parameter = self._module.get_parameter(attribute)
            return accumulate(parameter.new_zeros(records, parameter.shape[0]))
        return accumulate(copy.grad).reshape(records, -1, copy.shape[-1]).sum(dim=1)

    def squared_norms(self) -> Tensor:
        return torch.stack([self._per_record(a).square().sum(dim=1) for a in self._names]).sum(dim=0)

    def weighted_sum(self, factors: Tensor) -> dict[str, Tensor]:
        return {name: factors @ self._per_record(attribute) for attribute, name in self._names.items()}

    def erase(self, records: Tensor) -> None:
        for copy in self._copies.values():
            if copy.grad is not None:
                copy.grad[records.repeat_interleave(copy.shape[0] // len(records))] = 0
