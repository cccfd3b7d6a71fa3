"""The privacy plan: every public constant of the mechanism, fixed before the first private gradient."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from raptor.accounting import checks
from raptor.accounting.selection import NO_SEARCH, Search
from raptor.accounting.types import Adjacency, Event, Mode, Release, Unit, generator_mode
from raptor.errors import BudgetError, LedgerError, ParameterError, RaptorError

_LATER = frozenset({"trainable", "accounting", "rho", "search"})
"""Fields that a plan may lack."""
BLOCKWISE = ("block_norms", "block_steps")
"""Fields that a stream may lack."""
RESERVED = frozenset({"evaluation", "diagnostics"})
"""Streams that are charged in full from the start, whether their releases are made or not."""


class Accounting(StrEnum):
    """How the noise was calibrated: all streams in one ledger, or each alone at its share as the paper does."""

    JOINT = "joint"
    SPLIT = "split"


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
        blocks: parameter blocks that a unit moves as one vector within C: 1, or the number of experts, of which it
            moves its owner's alone unless all its active experts count.
        block_norms: clipping norm of each block over `clipping_norm`, where they differ. The noise on a block is that
            many times the stream's, so that the noise multiplier is the same for all.
        block_steps: step size of each block over the stream's, where they differ: post-processing, kept here as it is
            a public constant.
    """

    name: str
    rate: float
    noise_multiplier: float
    steps: int
    clipping_norm: float
    denominator: float
    blocks: int = 1
    block_norms: tuple[float, ...] = ()
    block_steps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        name = checks.word(self.name, "name", "a stream of the privacy plan")
        where = f"stream {name} of the privacy plan"
        checks.rate(self.rate, "rate", where)
        checks.positive(self.noise_multiplier, "noise_multiplier", where)
        checks.count(self.steps, "steps", where)
        checks.positive(self.clipping_norm, "clipping_norm", where)
        checks.positive(self.denominator, "denominator", where)
        checks.count(self.blocks, "blocks", where, minimum=1)
        for name in BLOCKWISE:
            values = getattr(self, name)
            numbers = tuple(checks.positive(value, name, where) for value in _sequence(values, name))
            if numbers and self.blocks > 1 and len(numbers) != self.blocks:
                raise ParameterError(f"{name} of {where} must be {self.blocks} numbers, one for each block")
            object.__setattr__(self, name, numbers)

    def to_json(self) -> dict[str, Any]:
        """As a mapping, without what plans had no word for at first and this one does not use."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name not in BLOCKWISE or value
        }

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on each coordinate of a sum."""
        return self.noise_multiplier * self.clipping_norm

    @property
    def is_reserved(self) -> bool:
        return self.name in RESERVED

    def events(self, steps: int) -> tuple[Event, ...]:
        """`steps` releases of this stream, for the accountant."""
        return (Event(self.rate, self.noise_multiplier, steps),) if steps else ()


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
        layers: the protected sparse layers. A record has one owner in each, and the expert stream's clipping norm
            bounds what it moves in all of them together.
        generator: name of the noise generator.
        taken_as_public: facts about the private data that the guarantee does not cover.
        streams: the planned streams.
        trainable: which parameters are trained: `full`, or adapters, in words.
        accounting: how the noise was calibrated; the claim is the joint figure under both.
        rho: share of epsilon of the shared stream where accounting is split, else None.
        search: the search that the run belongs to.
    """

    unit: Unit
    adjacency: Adjacency
    epsilon_target: float
    delta: float
    epsilon_planned: float
    epsilon_split_sum: float
    population: int
    population_source: str
    layers: tuple[int, ...]
    generator: str
    taken_as_public: tuple[str, ...]
    streams: tuple[StreamPlan, ...]
    trainable: str = "full"
    accounting: Accounting = Accounting.JOINT
    rho: float | None = None
    search: Search = NO_SEARCH

    @property
    def expert_norms(self) -> tuple[float, ...]:
        """Clipping norm of each expert over the common one; none where all have that."""
        return next((stream.block_norms for stream in self.streams if stream.block_norms), ())

    @property
    def mode(self) -> Mode:
        return generator_mode(self.generator)

    def find(self, name: str) -> StreamPlan | None:
        return next((stream for stream in self.streams if stream.name == name), None)

    def stream(self, name: str) -> StreamPlan:
        """Raises BudgetError when the plan has no such stream: nothing may be released outside the plan."""
        found = self.find(name)
        if found is None:
            names = ", ".join(stream.name for stream in self.streams)
            raise BudgetError(
                f"The privacy plan has no stream {name!r}; it has {names}. Run the training stage again, so that "
                "plan and releases belong together."
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "unit": self.unit.value,
            "adjacency": self.adjacency.value,
            "layers": list(self.layers),
            "taken_as_public": list(self.taken_as_public),
            "streams": [stream.to_json() for stream in self.streams],
            "accounting": self.accounting.value,
            "search": self.search.to_json(),
        }

    def require(self, release: Release, where: str) -> None:
        """Refuse a release that is not one of the plan's.

        Raises:
            LedgerError: says which value differs, and both values.
        """
        stream = self.find(release.stream)
        if stream is None:
            names = ", ".join(stream.name for stream in self.streams)
            raise LedgerError(f"{where} belongs to stream {release.stream}, the plan has {names}")
        sensitivity = release.sensitivity
        pairs = {
            "rate": (release.rate, stream.rate),
            "noise multiplier": (release.noise_multiplier, stream.noise_multiplier),
            "clipping norm": (sensitivity.norm, stream.clipping_norm),
            "noise deviation": (release.noise_deviation, stream.noise_deviation),
            "denominator": (release.denominator, stream.denominator),
            "adjacency": (sensitivity.adjacency.value, self.adjacency.value),
            "unit": (sensitivity.unit.value, self.unit.value),
            "generator": (release.generator, self.generator),
        }
        for name, (found, planned) in pairs.items():
            if found != planned:
                raise LedgerError(
                    f"{where} (stream {release.stream}, step {release.step}) has {name} {found}, "
                    f"the plan says {planned}"
                )


def read_plan(data: object) -> PrivacyPlan:
    """The plan from its JSON form.

    Raises:
        LedgerError: a field is missing, unknown or out of range.
    """
    if isinstance(data, Mapping) and "layer" in data:
        raise LedgerError(
            "the privacy plan is of an earlier version of raptor, which named one layer. Use that version on it, or "
            "run the training stage and those after it again"
        )
    try:
        wanted = frozenset(PrivacyPlan.__dataclass_fields__)
        found = checks.fields(data, wanted - _LATER, "the privacy plan", _LATER)
        return _plan(found)
    except RaptorError as error:
        raise LedgerError(str(error)) from None


def plan_digest(plan: Mapping[str, Any]) -> str:
    """SHA-256 of a plan's JSON form, to say which plan something belongs to."""
    canonical = read_plan(plan).to_json()
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


def _plan(found: Mapping[str, Any]) -> PrivacyPlan:
    where = "the privacy plan"
    streams = tuple(_stream(item) for item in _sequence(found["streams"], "streams"))
    names = [stream.name for stream in streams]
    if not names or len(set(names)) < len(names):
        raise ParameterError("the streams of the privacy plan must be named, each once")
    facts = _sequence(found["taken_as_public"], "taken_as_public")
    generator = checks.word(found["generator"], "generator", where)
    generator_mode(generator, where)
    accounting = checks.member(Accounting, found.get("accounting", "joint"), "accounting", where)
    rho = found.get("rho")
    if (accounting is Accounting.SPLIT) != (rho is not None):
        raise ParameterError(f"rho of {where} goes with accounting split and with nothing else")
    return PrivacyPlan(
        unit=checks.member(Unit, found["unit"], "unit", where),
        adjacency=checks.member(Adjacency, found["adjacency"], "adjacency", where),
        epsilon_target=checks.budget_epsilon(found["epsilon_target"], where),
        delta=checks.budget_delta(found["delta"], where),
        epsilon_planned=checks.real(found["epsilon_planned"], "epsilon_planned", where),
        epsilon_split_sum=checks.real(found["epsilon_split_sum"], "epsilon_split_sum", where),
        population=checks.count(found["population"], "population", where, minimum=1),
        population_source=checks.word(found["population_source"], "population_source", where),
        layers=_layers(found["layers"], where),
        generator=generator,
        taken_as_public=tuple(checks.word(fact, "a fact taken as public", where) for fact in facts),
        streams=streams,
        trainable=checks.word(found.get("trainable", "full"), "trainable", where),
        accounting=accounting,
        rho=None if rho is None else checks.share(rho, "rho", where),
        search=Search.from_json(found["search"], where) if "search" in found else NO_SEARCH,
    )


def _layers(value: object, where: str) -> tuple[int, ...]:
    layers = tuple(checks.count(layer, "layers", where) for layer in _sequence(value, "layers"))
    if not layers or len(set(layers)) < len(layers):
        raise ParameterError(f"layers of {where} must name the protected layers, each once")
    return layers


def _stream(data: object) -> StreamPlan:
    later = frozenset(BLOCKWISE)
    wanted = frozenset(StreamPlan.__dataclass_fields__) - later
    found = checks.fields(data, wanted, "a stream of the privacy plan", later)
    return StreamPlan(**found)  # type: ignore[arg-type]


def _sequence(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ParameterError(f"{name} of the privacy plan must be a list")
    return list(value)
