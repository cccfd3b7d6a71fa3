"""What the gate is told about an engine, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.gradients.losses import RecordWeights
from raptor.errors import ModelError


@dataclass(frozen=True)
class EngineSpec:
    """An engine that the schedule will use, in a form that can be built again on a copy of the model.

    Attributes:
        name: the parameter group that it sums over, for messages.
        build: makes the engine for a model; called for copies in float64 too.
        owner_layers: sparse layers in which a record's owner expert alone counts, in the order of the columns of
            `Batch.owners`; empty for engines without owners.
        weights: what the engine weights the losses of records by, if it does.
    """

    name: str
    build: Callable[[nn.Module], GradientEngine]
    owner_layers: tuple[int, ...] = ()
    weights: RecordWeights | None = None


def refusal(check: str, found: str, advice: str) -> ModelError:
    """The error of a failed check. Synthetic records are public, so that it may say what was found."""
    return ModelError(f"Isolation gate, {check}: {found} Nothing was spent. {advice}")
