"""What the report says of the guarantee: public facts from the plan, proven figures from the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raptor.errors import LedgerError
from raptor.reporting.words import round_up

# Squared fractions of the training at which the budget curve is computed: epsilon grows fastest at the start.
_CURVE_POINTS = 8


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
    split_sum: the published way of adding up, each stream alone at its share of delta.
    curve: joint epsilon after a number of private steps, from the public plan.
    protects: False when the noise came from a seed, so that the run is a test and protects nobody.
    complete: False when the training was stopped before its last planned step.
    taken_as_public: facts that the guarantee does not cover, in the operator's words.
    search: what the whole search costs that the run belongs to, as a sentence; empty without one.
    """

    epsilon: float
    target: float
    split_sum: float
    delta: float
    adjacency: str
    unit: str
    streams: tuple[StreamFacts, ...]
    curve: tuple[tuple[int, float], ...]
    accountant: str
    generator: str
    protects: bool
    complete: bool
    population: int
    taken_as_public: tuple[str, ...]
    search: str = ""


def read_guarantee(plan: Mapping[str, Any], certificate: Mapping[str, Any]) -> Guarantee:
    """What the certificate proves, and how the budget was planned.

    Raises:
        LedgerError: a field is missing, or the certificate belongs to another plan.
    """
    try:
        if (certificate["delta"], certificate["epsilon_planned"]) != (plan["delta"], plan["epsilon_planned"]):
            raise LedgerError(
                "The certificate belongs to another privacy plan. Run the training and the accounting stage again."
            )
        accountant = certificate["accountant"]
        return Guarantee(
            epsilon=float(certificate["epsilon"]),
            target=float(certificate["epsilon_target"]),
            split_sum=float(certificate["epsilon_split_sum"]),
            delta=float(certificate["delta"]),
            adjacency=str(certificate["adjacency"]),
            unit=str(certificate["unit"]),
            streams=tuple(_stream(stream) for stream in certificate["streams"]),
            curve=budget_over_time(plan),
            accountant=" and ".join(accountant["asked"]) + f", method {accountant['method']}",
            generator=str(certificate["generator"]["name"]),
            protects=bool(certificate["private"]),
            complete=certificate["status"] == "complete",
            population=int(certificate["population"]),
            taken_as_public=tuple(_sentence(fact) for fact in certificate["taken_as_public"]),
            search=_search(certificate["search"]),
        )
    except (KeyError, TypeError) as error:
        raise LedgerError(
            f"The privacy certificate lacks {error}. Run the accounting stage again."
        ) from error


def budget_over_time(plan: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """Private steps -> joint epsilon, as the plan spends it; what is reserved for evaluation is spent first."""
    from raptor.accounting.accountant import epsilon
    from raptor.accounting.plan import read_plan

    checked = read_plan(plan)
    trained = [stream for stream in checked.streams if not stream.is_reserved]
    reserved = [stream for stream in checked.streams if stream.is_reserved]
    curve: dict[int, float] = {}
    for point in range(_CURVE_POINTS):
        share = (point / _CURVE_POINTS) ** 2
        steps = [round(share * stream.steps) for stream in trained]
        events = [event for stream in reserved for event in stream.events(stream.steps)]
        for stream, count in zip(trained, steps, strict=True):
            events += stream.events(count)
        curve[sum(steps)] = epsilon(events, checked.delta, checked.adjacency, confirm=False).epsilon
    curve[sum(stream.steps for stream in trained)] = checked.epsilon_planned
    return tuple(sorted(curve.items()))


def _search(search: Mapping[str, Any] | None) -> str:
    if search is None:
        return ""
    runs = f"{search['runs']:,} runs on these records"
    which = (
        f"one of {runs}"
        if search["selection"] == "naive"
        else f"the best of a random number of runs, about {runs}"
    )
    return (
        f"This run is {which}. The figures here are those of one run; for the whole search epsilon is at most "
        f"{round_up(float(search['epsilon']))}, on conditions that the certificate states."
    )


def _stream(stream: Mapping[str, Any]) -> StreamFacts:
    return StreamFacts(
        name=str(stream["name"]),
        rate=float(stream["rate"]),
        noise_multiplier=float(stream["noise_multiplier"]),
        steps=int(stream["steps_charged"]),
        clipping_norm=float(stream["clipping_norm"]),
        denominator=float(stream["denominator"]),
        blocks=int(stream["blocks"]),
        epsilon_alone=float(stream["epsilon_alone"]),
    )


def _sentence(fact: str) -> str:
    text = fact[:1].upper() + fact[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
