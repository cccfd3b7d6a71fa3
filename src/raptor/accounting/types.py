"""What is protected, what was released and what it costs: the values that carry the guarantee.

All are frozen and checked when they are made, so that a wrong number cannot travel.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

from raptor.accounting import checks
from raptor.errors import ParameterError


class Adjacency(StrEnum):
    """When two data sets are neighbours.

    ADD_REMOVE: one unit more or less. Public rates and denominators make the population a public
    constant, so this is also the zero-out relation at known population.
    REPLACE_ONE: one unit exchanged for another.
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


class Unit(StrEnum):
    """Who is protected: one record, or one user with all of the user's records."""

    RECORD = "record"
    USER = "user"


class Mode(StrEnum):
    """How a generator got its randomness, as the part of its name before the colon.

    SECURE: keyed from the operating system's entropy, cryptographic stream. FAST: fresh seed from the
    operating system's entropy, statistical stream. SEEDED: reproducible from a seed, for tests: its
    noise can be subtracted by whoever knows the seed, so it protects nobody.
    """

    SECURE = "secure"
    FAST = "fast"
    SEEDED = "seeded"


def generator_mode(generator: str, where: str = "") -> Mode:
    """Mode of a generator's name such as `secure:aes-256-ctr` or `seeded:torch-cpu`.

    Raises:
        ParameterError: the name starts with no known mode, so nothing can be said about its privacy.
    """
    name = checks.word(generator, "generator", where)
    return checks.member(Mode, name.partition(":")[0], "the mode of generator", where)


@dataclass(frozen=True)
class Sensitivity:
    """How far one unit can move a sum before noise. Made by the code that clips, never typed in again.

    `norm` is the largest L2 norm that one unit contributes (the clipping norm C). Adding or removing the
    unit moves the sum by at most C, replacing it by at most 2 C; the accountant applies that factor, so
    the noise multiplier is always noise deviation / C.
    """

    norm: float
    adjacency: Adjacency
    unit: Unit

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", checks.positive(self.norm, "norm", "a sensitivity"))
        object.__setattr__(
            self, "adjacency", checks.member(Adjacency, self.adjacency, "adjacency", "a sensitivity")
        )
        object.__setattr__(self, "unit", checks.member(Unit, self.unit, "unit", "a sensitivity"))

    @property
    def distance(self) -> float:
        """Largest L2 distance between the sums of two neighbouring data sets."""
        return self.norm if self.adjacency is Adjacency.ADD_REMOVE else 2 * self.norm

    def to_json(self) -> dict[str, Any]:
        return {"norm": self.norm, "adjacency": self.adjacency.value, "unit": self.unit.value}

    @classmethod
    def from_json(cls, data: object, where: str = "a sensitivity") -> Sensitivity:
        found = checks.fields(data, frozenset({"norm", "adjacency", "unit"}), where)
        return cls(**found)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Release:
    """One noisy sum that left the mechanism. Written by the function that adds the noise, before its use.

    Attributes:
        stream: name of the stream of the plan (`shared`, `expert`, `evaluation` ...).
        step: number of the release within its stream, from 0.
        rate: Poisson sampling rate of the units in the sum.
        noise_multiplier: noise deviation of each coordinate over `sensitivity.norm`.
        sensitivity: what the clipping code guarantees.
        denominator: public constant that the noisy sum is divided by.
        dimension: number of coordinates that got noise.
        generator: name of the noise generator, mode first (see `Mode`).
        follows: SHA-256 over checksums of the noisy sums of the stream's release before this one, so that a
            resumed run can show that it makes the same releases again; None for the first, and where none was
            kept. It is made of what was released, and is as public.
    """

    stream: str
    step: int
    rate: float
    noise_multiplier: float
    sensitivity: Sensitivity
    denominator: float
    dimension: int
    generator: str
    follows: str | None = None

    def __post_init__(self) -> None:
        stream = checks.word(self.stream, "stream", "a release")
        step = checks.count(self.step, "step", f"a release of stream {stream}")
        where = f"release {step} of stream {stream}"
        if not isinstance(self.sensitivity, Sensitivity):
            raise ParameterError(f"sensitivity of {where} must come from the clipping code")
        generator_mode(self.generator, where)
        if self.follows is not None and not re.fullmatch(
            "[0-9a-f]{64}", checks.word(self.follows, "follows", where)
        ):
            raise ParameterError(f"follows of {where} must be a SHA-256 in hexadecimal")
        values = {
            "step": step,
            "rate": checks.rate(self.rate, "rate", where),
            "noise_multiplier": checks.positive(self.noise_multiplier, "noise_multiplier", where),
            "denominator": checks.positive(self.denominator, "denominator", where),
            "dimension": checks.count(self.dimension, "dimension", where, minimum=1),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum, before the denominator."""
        return self.noise_multiplier * self.sensitivity.norm

    @property
    def mode(self) -> Mode:
        return generator_mode(self.generator)

    def to_json(self) -> dict[str, Any]:
        data = {**asdict(self), "sensitivity": self.sensitivity.to_json()}
        if self.follows is None:
            del data["follows"]
        return data

    @classmethod
    def from_json(cls, data: object, where: str = "a release") -> Release:
        wanted = frozenset(cls.__dataclass_fields__) - {"follows"}
        found = checks.fields(data, wanted, where, frozenset({"follows"}))
        found["sensitivity"] = Sensitivity.from_json(found["sensitivity"], f"sensitivity of {where}")
        return cls(**found)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Event:
    """`steps` Poisson-subsampled Gaussian sums of one rate and one noise multiplier.

    `noise_multiplier` is noise deviation over clipping norm under either adjacency.
    """

    rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.rate(self.rate, "rate", "an event"))
        multiplier = checks.positive(self.noise_multiplier, "noise_multiplier", "an event")
        object.__setattr__(self, "noise_multiplier", multiplier)
        object.__setattr__(self, "steps", checks.count(self.steps, "steps", "an event"))


@dataclass(frozen=True)
class EventShape:
    """An event whose noise is to be found: its noise multiplier will be `weight` times a common factor."""

    rate: float
    steps: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.rate(self.rate, "rate", "an event to calibrate"))
        object.__setattr__(self, "steps", checks.count(self.steps, "steps", "an event to calibrate"))
        object.__setattr__(self, "weight", checks.positive(self.weight, "weight", "an event to calibrate"))

    def at(self, factor: float) -> Event:
        return Event(self.rate, factor * self.weight, self.steps)


@dataclass(frozen=True)
class EpsilonBound:
    """An epsilon that the composed events do not exceed at `delta`.

    Attributes:
        method: `pld` (privacy loss distribution), `rdp` (Renyi divergence, sound but looser) or `none`
            (nothing was released).
        library: accountants that were asked, with versions.
        bound: always `upper`: the true epsilon is at most `epsilon`.
        grid: width of the privacy-loss grid that gave the figure; None without a grid.
        refined: relative change of epsilon in the last halving of the grid; None without a grid.
        renyi: bound by Renyi divergences at the best order, a check: it may never be below `epsilon`.
        note: plain words when the figure is looser than usual or was not confirmed, else empty.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    method: Literal["pld", "rdp", "none"]
    library: str
    bound: Literal["upper"] = "upper"
    grid: float | None = None
    refined: float | None = None
    renyi: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "adjacency": self.adjacency.value}


@dataclass(frozen=True)
class Calibration:
    """Noise multipliers, one per shape in their order, whose joint epsilon is at most `target`.

    Every noise multiplier is `factor` times the weight of its shape.
    """

    noise_multipliers: tuple[float, ...]
    epsilon: float
    target: float
    factor: float
    achieved: EpsilonBound

    def to_json(self) -> dict[str, Any]:
        rest = {key: value for key, value in self.achieved.to_json().items() if key != "epsilon"}
        return {
            "sigmas": list(self.noise_multipliers),
            "epsilon": self.epsilon,
            "target": self.target,
            "factor": self.factor,
            **rest,
        }
