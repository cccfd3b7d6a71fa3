"""The steps that are measured: ours, the non-private floor of the same role, and both with an optimizer.

The unit is forward, backward, per-record norms, clipping and the clipped sum. The floor is plain autograd with
gradients for the parameters of that role only; for experts it takes all tokens of all experts of the protected
layer. All steps of a case but those of peers share one model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.cases import Subject
from benchmarks.clock import Step
from raptor.accounting.plan import StreamPlan
from raptor.accounting.types import Release
from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.gradients.engine import GradientEngine, JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import classification_loss
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.streams import RandomSource
from raptor.moe.roles import expert_parameters, shared_parameters

SHARED, EXPERT, MONOLITHIC = "shared", "expert", "monolithic"
# Small enough that every record is clipped.
RULE = ClippingRule(0.1)
_MANY = 10**6


def role_parameters(subject: Subject, role: str) -> tuple[str, ...]:
    """Names of the parameters that a step of the role trains."""
    model = subject.model
    if role == SHARED:
        return shared_parameters(model)
    if role == EXPERT:
        return expert_parameters(model, [subject.layer])
    return shared_parameters(model) + expert_parameters(model)


def train_only(model: nn.Module, names: Sequence[str]) -> None:
    """Let autograd see the named parameters only, and drop every gradient."""
    chosen = set(names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
        parameter.grad = None


def engine_of(subject: Subject, role: str, *, fused: bool = True) -> GradientEngine:
    """Our engine for a role; without `fused` it runs the library's norms, as the floor does."""
    if role == EXPERT:
        return OwnerExpertGradients(subject.model, subject.layer, fused=fused)
    return JointGradients(subject.model, role_parameters(subject, role), fused=fused)


def _adam(model: nn.Module, names: Sequence[str]) -> torch.optim.Adam:
    # A rate of zero does all the work and leaves the model as it is, so no round differs from another.
    return torch.optim.Adam([model.get_parameter(name) for name in names], lr=0.0, fused=True)


class Floor(Step):
    """A non-private step."""

    def __init__(self, subject: Subject, role: str, *, adam: bool = False) -> None:
        self._subject = subject
        self._names = role_parameters(subject, role)
        self._adam = _adam(subject.model, self._names) if adam else None

    def prepare(self) -> None:
        train_only(self._subject.model, self._names)

    def run(self) -> None:
        losses = classification_loss(self._subject.model, self._subject.batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        if self._adam is not None:
            self._adam.step()


class Ours(Step):
    """A step of one of our engines."""

    def __init__(self, subject: Subject, role: str, *, fused: bool = True) -> None:
        self._subject = subject
        self._engine = engine_of(subject, role, fused=fused)
        self.result: ClippedSum | None = None

    def prepare(self) -> None:
        train_only(self._subject.model, ())
        self.result = None

    def run(self) -> None:
        # Kept, as a floor keeps its gradients.
        self.result = self._engine.clipped_sum(self._subject.batch, RULE)


class _NoLedger:
    """Takes releases and writes nothing: the ledger costs one small write a step, whatever the model."""

    def append(self, release: Release) -> None:
        pass


class OursWithNoise(Step):
    """The same, with the mechanism's noise and Adam."""

    def __init__(self, subject: Subject, role: str) -> None:
        self._subject = subject
        self._engine = engine_of(subject, role)
        model = subject.model
        self._parameters: dict[str, Tensor] = {
            name: model.get_parameter(name) for name in self._engine.parameters
        }
        self._adam = _adam(model, self._engine.parameters)
        plan = StreamPlan(role, 0.01, 1.0, _MANY, RULE.norm, float(len(subject.batch)))
        source = RandomSource.seeded(0)
        self._mechanism = GaussianMechanism(plan, source.stream(f"{role}/noise"), source.name, _NoLedger())

    def prepare(self) -> None:
        train_only(self._subject.model, ())

    def run(self) -> None:
        update = self._mechanism.release(self._engine.clipped_sum(self._subject.batch, RULE))
        for name, value in update.items():
            self._parameters[name].grad = value
        self._adam.step()
