"""Totals of a ledger: releases per stream, what is charged, and how far the run came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Event, Release
from raptor.errors import LedgerError


@dataclass(frozen=True)
class StreamTotal:
    """Releases of one stream: `charged` is what epsilon counts."""

    planned: StreamPlan
    executed: int
    dimension: int | None

    @property
    def charged(self) -> int:
        return self.planned.steps if self.planned.is_reserved else self.executed

    @property
    def events(self) -> tuple[Event, ...]:
        return self.planned.events(self.charged)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.planned.name,
            "planned": self.planned.steps,
            "executed": self.executed,
            "charged": self.charged,
            "dimension": self.dimension,
        }


def count_releases(
    plan: PrivacyPlan, releases: Sequence[tuple[int, Release]], where: str
) -> tuple[StreamTotal, ...]:
    """Releases per stream, given with their lines; each must be the plan's next one of its stream."""
    executed = {stream.name: 0 for stream in plan.streams}
    dimensions: dict[str, int] = {}
    for number, release in releases:
        place = f"line {number} of {where}"
        plan.require(release, place)
        if release.step != executed[release.stream]:
            raise LedgerError(
                f"{place} is step {release.step} of stream {release.stream}, "
                f"where step {executed[release.stream]} should stand: a release is missing, repeated or moved"
            )
        executed[release.stream] += 1
        if dimensions.setdefault(release.stream, release.dimension) != release.dimension:
            raise LedgerError(
                f"{place} has dimension {release.dimension}, "
                f"earlier releases of stream {release.stream} have {dimensions[release.stream]}"
            )
    totals = tuple(
        StreamTotal(stream, executed[stream.name], dimensions.get(stream.name)) for stream in plan.streams
    )
    for total in totals:
        if total.executed > total.planned.steps:
            raise LedgerError(
                f"{where} has {total.executed} releases of stream {total.planned.name}, "
                f"the plan allows {total.planned.steps}"
            )
    return totals


def reserved_line(total: StreamTotal) -> dict[str, Any]:
    planned = total.planned
    return {
        "stream": planned.name,
        "rate": planned.rate,
        "noise_multiplier": planned.noise_multiplier,
        "steps": planned.steps,
    }


def closing_line(totals: Sequence[StreamTotal], model: str | None) -> dict[str, Any]:
    return {"streams": [total.to_json() for total in totals], "status": status_of(totals), "model": model}


def status_of(totals: Sequence[StreamTotal]) -> Literal["complete", "incomplete"]:
    done = all(total.executed == total.planned.steps for total in totals if not total.planned.is_reserved)
    return "complete" if done else "incomplete"
