"""Totals of a ledger: releases per stream, what is charged, and how far the run came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raptor.accounting.facts import RunEnd
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
    def is_whole(self) -> bool:
        """All planned releases were made; what is reserved need not be."""
        return self.planned.is_reserved or self.executed == self.planned.steps

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


def closing_line(totals: Sequence[StreamTotal], end: RunEnd | None, model: str | None) -> dict[str, Any]:
    return {
        "streams": [total.to_json() for total in totals],
        "status": status_of(totals, end),
        "model": model,
    }


def status_of(totals: Sequence[StreamTotal], end: RunEnd | None) -> Literal["complete", "incomplete"]:
    """Complete is a run whose model was made of all planned releases.

    Counts alone do not tell: where releases were lost in a crash, others were made in their place until all were
    paid for, and the last steps of the schedule were left out.
    """
    whole = all(total.is_whole for total in totals) and (end is None or not end.left_out)
    return "complete" if whole else "incomplete"


def require_ended(totals: Sequence[StreamTotal], end: RunEnd | None, where: str) -> None:
    """A run that made its last step has made all its releases.

    Raises:
        LedgerError: releases are missing from the schedule of a run that says that it came to its end.
    """
    missing = next((total for total in totals if not total.is_whole), None)
    if missing is not None and end is not None and not end.left_out:
        raise LedgerError(
            f"{where} says that the run came to its end, but has {missing.executed} of {missing.planned.steps} "
            f"releases of stream {missing.planned.name}: some were taken out"
        )
