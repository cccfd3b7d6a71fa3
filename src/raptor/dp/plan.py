"""Making the privacy plan: noise for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raptor.accounting.accountant import epsilon as joint_epsilon
from raptor.accounting.calibration import calibrate, calibrate_split, split_sum
from raptor.accounting.plan import Accounting, PrivacyPlan, StreamPlan
from raptor.accounting.selection import Search
from raptor.accounting.types import Adjacency, EventShape, Unit
from raptor.errors import BudgetError, ParameterError

SHARED = "shared"
EXPERT = "expert"
MONOLITHIC = "monolithic"
EVALUATION = "evaluation"
DIAGNOSTICS = "diagnostics"


@dataclass(frozen=True)
class StreamShape:
    """A stream whose noise is still to be calibrated.

    Attributes:
        batch_size: expected batch size B of its steps, a public constant; B over the population is its rate.
        noise_weight: its share of the common scale of noise.
        block_norms, block_steps: see `StreamPlan`.
    """

    name: str
    steps: int
    clipping_norm: float
    denominator: float
    batch_size: int
    noise_weight: float = 1.0
    blocks: int = 1
    block_norms: tuple[float, ...] = ()
    block_steps: tuple[float, ...] = ()


def make_plan(
    *,
    shapes: Sequence[StreamShape],
    reserved: Sequence[StreamPlan],
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    unit: Unit,
    population: int,
    population_source: str,
    layers: Sequence[int],
    generator: str,
    taken_as_public: Sequence[str],
    allow_large_delta: bool = False,
    trainable: str = "full",
    rho: float | None = None,
    search: Search | None = None,
) -> PrivacyPlan:
    """Calibrate the noise of all streams to at most the budget: in one ledger, or as the paper splits it.

    Args:
        shapes: streams to calibrate; their noise multipliers keep the ratio of their weights.
        reserved: streams whose noise is given, such as the evaluation's; they are charged first.
        epsilon, delta, adjacency, unit: the guarantee.
        population: public number of units.
        population_source, layers, generator, taken_as_public, trainable: see `PrivacyPlan`.
        allow_large_delta: accept delta >= 1/population.
        rho: share of epsilon for the shared stream, which asks for the paper's split; None for one ledger.
        search: the search that the run belongs to.

    Raises:
        ParameterError: a split is asked for other streams than one shared and one expert, or with weights.
        BudgetError: delta is too large for the population, B exceeds it, or no noise meets the budget.
    """
    largest = max((shape.batch_size for shape in shapes), default=0)
    if largest > population:
        raise BudgetError(
            f"training.batch_size is {largest}, but there are only {population} units to sample from "
            f"({population_source}). Choose a smaller expected batch size, for the run or for the stream that has one "
            "of its own."
        )
    if delta * population >= 1 and not allow_large_delta:
        raise BudgetError(
            f"privacy.delta is {delta}, at least 1/n for n = {population} ({population_source}): publishing one "
            f"whole record would satisfy such a guarantee. Choose delta well below {1 / population:.1e}, or set "
            "privacy.allow_large_delta=true if this is meant."
        )
    fixed = [stream.events(stream.steps) for stream in reserved]
    events = [EventShape(shape.batch_size / population, shape.steps, shape.noise_weight) for shape in shapes]
    if rho is None:
        calibrated = calibrate(
            events,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            fixed=[event for stream in fixed for event in stream],
        )
        multipliers, planned = calibrated.noise_multipliers, calibrated.epsilon
    else:
        shares = _split_shares(shapes, rho)
        multipliers = calibrate_split(events, shares, epsilon, delta, adjacency, fixed).noise_multipliers
        noisy = [shape.at(noise / shape.weight) for shape, noise in zip(events, multipliers, strict=True)]
        together = [*noisy, *(event for stream in fixed for event in stream)]
        planned = joint_epsilon(together, delta, adjacency).epsilon
    streams = tuple(
        StreamPlan(
            name=shape.name,
            rate=event.rate,
            noise_multiplier=noise_multiplier,
            steps=shape.steps,
            clipping_norm=shape.clipping_norm,
            denominator=shape.denominator,
            blocks=shape.blocks,
            block_norms=shape.block_norms,
            block_steps=shape.block_steps,
        )
        for shape, event, noise_multiplier in zip(shapes, events, multipliers, strict=True)
    ) + tuple(reserved)
    spent = [stream.events(stream.steps) for stream in streams]
    return PrivacyPlan(
        unit=unit,
        adjacency=adjacency,
        epsilon_target=epsilon,
        delta=delta,
        epsilon_planned=planned,
        epsilon_split_sum=split_sum(spent, delta, adjacency).epsilon,
        population=population,
        population_source=population_source,
        layers=tuple(layers),
        generator=generator,
        taken_as_public=tuple(taken_as_public),
        streams=streams,
        trainable=trainable,
        accounting=Accounting.JOINT if rho is None else Accounting.SPLIT,
        rho=rho,
        search=search or Search(),
    )


def _split_shares(shapes: Sequence[StreamShape], rho: float) -> tuple[float, ...]:
    """Shares of epsilon in the order of the shapes: rho for the shared stream, the rest for the expert stream.

    Raises:
        ParameterError: the split does not say how much each stream gets, or something would change nothing.
    """
    if sorted(shape.name for shape in shapes) != [EXPERT, SHARED]:
        raise ParameterError(
            "privacy.accounting=split needs steps in both streams, shared and expert, to split the budget between "
            "them. Give both steps_per_cycle above 0, or set privacy.accounting=joint."
        )
    if any(shape.noise_weight != 1 for shape in shapes):
        raise ParameterError(
            "noise_weight is set, but with privacy.accounting=split the noise of each stream follows from "
            "privacy.rho: leave noise_weight at 1, or set privacy.accounting=joint."
        )
    return tuple(rho if shape.name == SHARED else 1 - rho for shape in shapes)
