"""The privacy plan: every public constant of the mechanism, fixed before the first private gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raptor.accounting.calibration import calibrate, split_sum
from raptor.accounting.types import Adjacency, Event, EventShape, Unit
from raptor.errors import BudgetError

SHARED = "shared"
EXPERT = "expert"
MONOLITHIC = "monolithic"
EVALUATION = "evaluation"


@dataclass(frozen=True)
class StreamPlan:
    """Public constants of one stream of releases.

    Attributes:
        name: the stream.
        rate: Poisson sampling rate.
        noise_multiplier: noise deviation over clipping norm.
        steps: planned releases.
        clipping_norm: C, the most that one unit adds to a sum.
        denominator: what a noisy sum is divided by, B for shared parameters and B/E for an expert.
        blocks: parameter blocks of which one unit moves one: 1, or the number of experts.
    """

    name: str
    rate: float
    noise_multiplier: float
    steps: int
    clipping_norm: float
    denominator: float
    blocks: int = 1

    @property
    def event(self) -> Event:
        return Event(rate=self.rate, noise_multiplier=self.noise_multiplier, steps=self.steps)


@dataclass(frozen=True)
class StreamShape:
    """A stream whose noise is still to be calibrated; `noise_weight` is its share of the common scale."""

    name: str
    steps: int
    clipping_norm: float
    denominator: float
    noise_weight: float = 1.0
    blocks: int = 1


@dataclass(frozen=True)
class PrivacyPlan:
    """What is protected, how well, and by which streams. Public as a whole.

    Attributes:
        unit, adjacency: who is protected against which change of the data.
        epsilon_target, delta: the budget.
        epsilon_planned: what all planned releases cost together, at most the target.
        epsilon_split_sum: the same releases as the paper counts them, each stream alone and added.
        population: public number of units; the sampling rate is batch size / population.
        population_source: where that number is from.
        layer: the protected sparse layer.
        generator: name of the noise generator.
        taken_as_public: facts about the private data that the guarantee does not cover.
        streams: the planned streams.
    """

    unit: Unit
    adjacency: Adjacency
    epsilon_target: float
    delta: float
    epsilon_planned: float
    epsilon_split_sum: float
    population: int
    population_source: str
    layer: int
    generator: str
    taken_as_public: tuple[str, ...]
    streams: tuple[StreamPlan, ...]

    def stream(self, name: str) -> StreamPlan:
        """Raises BudgetError when the plan has no such stream: nothing may be released outside the plan."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise BudgetError(
            f"The privacy plan has no stream {name!r}; it has {', '.join(stream.name for stream in self.streams)}. "
            "Run the training stage again, so that plan and releases belong together."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "unit": self.unit.value,
            "adjacency": self.adjacency.value,
            "taken_as_public": list(self.taken_as_public),
            "streams": [asdict(stream) for stream in self.streams],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PrivacyPlan:
        """Raises BudgetError when a field is missing or unknown."""
        try:
            return cls(
                **{
                    **data,
                    "unit": Unit(data["unit"]),
                    "adjacency": Adjacency(data["adjacency"]),
                    "taken_as_public": tuple(data["taken_as_public"]),
                    "streams": tuple(StreamPlan(**stream) for stream in data["streams"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BudgetError(
                f"The privacy plan does not have the expected fields ({error}). Run the training stage again."
            ) from error


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
) -> PrivacyPlan:
    """Calibrate the noise of all streams in one ledger, to at most the budget.

    Args:
        shapes: streams to calibrate; their noise multipliers keep the ratio of their weights.
        reserved: streams whose noise is given, such as the evaluation's; they are charged first.
        epsilon, delta, adjacency, unit: the guarantee.
        batch_size: expected batch size B of every calibrated stream.
        population: public number of units.
        population_source, layer, generator, taken_as_public: see `PrivacyPlan`.
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
        fixed=[stream.event for stream in reserved],
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
        epsilon_split_sum=split_sum([[stream.event] for stream in streams], delta, adjacency).epsilon,
        population=population,
        population_source=population_source,
        layer=layer,
        generator=generator,
        taken_as_public=tuple(taken_as_public),
        streams=streams,
    )
