"""What the report says of the guarantee: public facts from the plan, proven figures from the certificate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamFacts:
    """One stream of releases.

    epsilon_alone: what the stream would cost if nothing else were released; a diagnostic, it does not add up.
    """

    name: str
    rate: float
    noise_multiplier: float
    steps: int
    clipping_norm: float
    denominator: float
    blocks: int
    epsilon_alone: float


@dataclass(frozen=True)
class Guarantee:
    """The certificate in the words of the report.

    epsilon: proven by the ledger at `delta`; target: what was allowed.
    curve: joint epsilon after a number of private steps, from the public plan.
    protects: False when the noise came from a seed, so that the run is a test and protects nobody.
    taken_as_public: facts that the guarantee does not cover, in the operator's words.
    """

    epsilon: float
    target: float
    delta: float
    adjacency: str
    unit: str
    streams: tuple[StreamFacts, ...]
    curve: tuple[tuple[int, float], ...]
    accountant: str
    generator: str
    protects: bool
    population: int
    taken_as_public: tuple[str, ...]
