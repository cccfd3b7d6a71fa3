"""Making the privacy plan: noise for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raptor.accounting.calibration import calibrate, split_sum
from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Adjacency, EventShape, Unit
from raptor.errors import BudgetError

SHARED = "shared"
EXPERT = "expert"
MONOLITHIC = "monolithic"
EVALUATION = "evaluation"


@dataclass(frozen=True)
class StreamShape:
    """A stream whose noise is still to be calibrated; `noise_weight` is its share of the common scale."""

    name: str
    steps: int
    clipping_norm: float
    denominator: float
    noise_weight: float = 1.0
    blocks: int = 1


def make_plan(
    *,
    shapes: Sequence[StreamShape],
    reserved: Sequence[StreamPlan],
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    unit: Unit,
    batch_size: int,
    population: int,
    population_source: str,
    layer: int,
    generator: str,
    taken_as_public: Sequence[str],
    allow_large_delta: bool = False,
    trainable: str = "full",
) -> PrivacyPlan:
    """Calibrate the noise of all streams in one ledger, to at most the budget.

    Args:
        shapes: streams to calibrate; their noise multipliers keep the ratio of their weights.
        reserved: streams whose noise is given, such as the evaluation's; they are charged first.
        epsilon, delta, adjacency, unit: the guarantee.
        batch_size: expected batch size B of every calibrated stream.
        population: public number of units.
        population_source, layer, generator, taken_as_public, trainable: see `PrivacyPlan`.
        allow_large_delta: accept delta >= 1/population.

    Raises:
        BudgetError: delta is too large for the population, B exceeds it, or no noise meets the budget.
    """
    if batch_size > population:
        raise BudgetError(
            f"training.batch_size is {batch_size}, but there are only {population} units to sample from "
            f"({population_source}). Choose a smaller expected batch size."
        )
    if delta * population >= 1 and not allow_large_delta:
        raise BudgetError(
            f"privacy.delta is {delta}, at least 1/n for n = {population} ({population_source}): publishing one "
            f"whole record would satisfy such a guarantee. Choose delta well below {1 / population:.1e}, or set "
            "privacy.allow_large_delta=true if this is meant."
        )
    rate = batch_size / population
    calibrated = calibrate(
        [EventShape(rate=rate, steps=shape.steps, weight=shape.noise_weight) for shape in shapes],
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        fixed=[event for stream in reserved for event in stream.events(stream.steps)],
    )
    streams = tuple(
        StreamPlan(
            name=shape.name,
            rate=rate,
            noise_multiplier=noise_multiplier,
            steps=shape.steps,
            clipping_norm=shape.clipping_norm,
            denominator=shape.denominator,
            blocks=shape.blocks,
        )
        for shape, noise_multiplier in zip(shapes, calibrated.noise_multipliers, strict=True)
    ) + tuple(reserved)
    return PrivacyPlan(
        unit=unit,
        adjacency=adjacency,
        epsilon_target=epsilon,
        delta=delta,
        epsilon_planned=calibrated.epsilon,
        epsilon_split_sum=split_sum(
            [stream.events(stream.steps) for stream in streams], delta, adjacency
        ).epsilon,
        population=population,
        population_source=population_source,
        layer=layer,
        generator=generator,
        taken_as_public=tuple(taken_as_public),
        streams=streams,
        trainable=trainable,
    )
