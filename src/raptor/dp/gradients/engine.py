"""Engines: from a batch of private records to one clipped sum, for a role.

An engine runs one forward and one backward pass that computes activation gradients only; every parameter is
a constant for autograd. The taps turn what they kept into the clipped sum. No engine returns anything else:
no loss, no norm, no gradient of a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from raptor.dp.clipping import ClippedSum, ClippingRule, clip_and_sum
from raptor.dp.gradients.coverage import claim
from raptor.dp.gradients.experts import ExpertOutput, ExpertRows, claim_experts, expert_module
from raptor.dp.records import Batch
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer, sparse_layers
from raptor.moe.roles import Role, expert_parameters, parameter_roles


class GradientEngine(Protocol):
    """Gives the clipped sum of the per-record gradients of its parameters."""

    parameters: tuple[str, ...]

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        """Sum over the batch of clipped gradients; a batch without records gives zeros."""
        ...


def record_losses(model: nn.Module, batch: Batch) -> Tensor:
    """(records,) cross-entropy, each of one record alone: never a mean over the batch."""
    logits: Tensor = model(batch.input_ids, batch.attention_mask)
    return functional.cross_entropy(logits, batch.labels, reduction="none")


def _zeros(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(model.get_parameter(name)) for name in names}


def freeze(model: nn.Module) -> None:
    """Make every parameter a constant for autograd, so that no pass can leave a gradient on one."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None


class JointGradients:
    """One vector per record over all named parameters: the shared role, and the monolithic baseline.

    Routed experts may be among the parameters; then every active expert of a record counts.
    """

    def __init__(self, model: MoEClassifier, parameters: Sequence[str]) -> None:
        """Raises ModelError when a parameter is not covered."""
        self.parameters = tuple(parameters)
        self._model = model
        freeze(model)
        roles = parameter_roles(model)
        routed = {name for name in parameters if roles[name].role is Role.EXPERT}
        self._taps = claim(model, [name for name in parameters if name not in routed])
        self._rows: list[ExpertRows] = []
        for layer in sparse_layers(model):
            rows = ExpertRows(layer)
            taps = claim_experts(layer, rows, "", sorted(routed))
            if taps:
                self._rows.append(rows)
                self._taps += taps

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        records = len(batch)
        if records == 0:
            return ClippedSum(_zeros(self._model, self.parameters), rule.sensitivity)
        with ExitStack() as stack:
            for rows in self._rows:
                stack.callback(rows.close)
                rows.listen(records)
            for tap in self._taps:
                stack.callback(tap.close)
                tap.open(records)
            with torch.enable_grad():
                record_losses(self._model, batch).sum().backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                return clip_and_sum(self._taps, records, rule)


class OwnerExpertGradients:
    """One vector per record over its owner expert in one layer: the expert role.

    The sums of all experts come back together. A record adds to the block of its owner only, because active
    experts that do not own it are constants for it; their inputs keep their gradient in other roles' passes
    (RAPTOR, arXiv 2609.05770, section 3.3). A record with no token at its owner adds zero.
    """

    def __init__(self, model: MoEClassifier, layer: int) -> None:
        """Raises ModelError when the layer is not sparse or an expert parameter is not covered."""
        self._model = model
        self._layer = sparse_layer(model, layer)
        self.parameters = expert_parameters(model, layer)
        freeze(model)
        self._output = ExpertOutput(self._layer)
        self._rows = ExpertRows(self._layer)
        self._taps = claim_experts(self._layer, self._rows, "", self.parameters)

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        records = len(batch)
        if records == 0:
            return ClippedSum(_zeros(self._model, self.parameters), rule.sensitivity)
        with ExitStack() as stack:
            stack.callback(self._rows.close)
            stack.callback(self._output.close)
            self._output.open()
            with torch.enable_grad():
                record_losses(self._model, batch).sum().backward()  # type: ignore[no-untyped-call]
            for tap in self._taps:
                stack.callback(tap.close)
                tap.open(records)
            self._backward_through_owners(batch.owners, records)
            with torch.no_grad():
                return clip_and_sum(self._taps, records, rule)

    def _backward_through_owners(self, owners: Tensor, records: int) -> None:
        kept = self._output
        gradient = kept.leaf.grad
        if gradient is None:
            raise AssertionError("the loss does not depend on the experts' output")
        tokens = kept.hidden.shape[0] // records
        owner_of_row = owners.repeat_interleave(tokens)
        for expert in range(self._layer.num_experts):
            rows = (kept.dispatch[:, 0, expert].bool() & (owner_of_row == expert)).nonzero().squeeze(1)
            self._rows.set(expert, rows // tokens)
            if len(rows) == 0:
                continue
            with torch.enable_grad():
                output: Tensor = expert_module(self._layer, expert)(kept.hidden[rows])
            output.backward(gradient[rows] * kept.weights[rows])  # type: ignore[no-untyped-call]
