"""The ledger: plan, releases, what is reserved, and totals, as one chain that can be checked alone.

Lines, in this order: `plan` (the plan as it was written before training, assumptions, versions, the digest of
the journal), one `release` per noisy sum that left the mechanism, one `reserved` per stream that is charged in
full, and `closing` (per stream: planned, executed, charged; whether the run was complete; the digest of the
model that was made of the releases).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from raptor import __version__
from raptor.accounting import checks
from raptor.accounting.accountant import OWN
from raptor.accounting.assumptions import ASSUMPTIONS
from raptor.accounting.chain import Line, canonical, digest, sealed, verify_chain
from raptor.accounting.journal import HEADER, RELEASE, open_lines
from raptor.accounting.plan import PrivacyPlan, StreamPlan, read_plan
from raptor.accounting.types import Event, Release
from raptor.errors import LedgerError, ParameterError

FORMAT = "raptor-ledger/1"
PLAN = "plan"
RESERVED = "reserved"
CLOSING = "closing"

_VERSIONS = frozenset({"raptor", "accountant", "dp-accounting", "python"})
_PLAN_FIELDS = frozenset({"format", "plan", "assumptions", "versions", "journal"})
_CLOSING_FIELDS = frozenset({"streams", "status", "model"})


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


@dataclass(frozen=True)
class Ledger:
    """A ledger whose chain, order, releases and totals were checked."""

    plan: PrivacyPlan
    totals: tuple[StreamTotal, ...]
    assumptions: tuple[dict[str, str], ...]
    versions: dict[str, str]
    model: str | None
    digest: str
    lines: int

    @property
    def status(self) -> Literal["complete", "incomplete"]:
        return _status(self.totals)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for total in self.totals for event in total.events)


def compose_ledger(
    plan: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], model: str | None = None
) -> list[Line]:
    """The ledger of one training.

    Args:
        plan: the privacy plan in its JSON form.
        journal: all lines of the release journal, header first; none when nothing was released.
        model: digest of the released model; None when there is none yet.

    Raises:
        LedgerError: the journal is broken or belongs to another plan, or a release is not the plan's.
    """
    checked = read_plan(plan)
    releases: list[Release] = []
    source = None
    if journal:
        header, releases = open_lines(list(journal), "the release log")
        if canonical(header) != canonical(dict(plan)):
            raise LedgerError("the release log belongs to another privacy plan: run the training stage again")
        source = {"digest": digest([dict(line) for line in journal]), "releases": len(releases)}
    entries: list[tuple[str, dict[str, Any]]] = [(PLAN, _heading(plan, source))]
    entries += [(RELEASE, release.to_json()) for release in releases]
    totals = _totals(checked, releases, "the release log")
    entries += [(RESERVED, _reserved(total)) for total in totals if total.planned.is_reserved]
    entries.append((CLOSING, _closing(totals, model)))
    return sealed(entries)


def read_ledger(lines: Sequence[object], where: str = "the ledger") -> Ledger:
    """The facts of a ledger after checking all of it.

    Raises:
        LedgerError: names the first line that is broken, out of place, or not what the plan says.
    """
    checked = verify_chain(lines, where)
    try:
        return _read(checked, where)
    except ParameterError as error:
        raise LedgerError(str(error)) from None


def _read(checked: list[Line], where: str) -> Ledger:
    if checked[0]["kind"] != PLAN:
        raise LedgerError(f"line 1 of {where} is not the plan")
    if checked[-1]["kind"] != CLOSING:
        raise LedgerError(f"{where} has no closing line: it was cut off")
    plan, heading = _read_heading(checked[0]["data"], where)
    reserved_at = next((at for at, line in enumerate(checked) if line["kind"] == RESERVED), len(checked) - 1)
    releases = [
        _read_release(line, number, where) for number, line in enumerate(checked[1:reserved_at], start=2)
    ]
    totals = _totals(plan, releases, where)
    _require_journal(heading, releases, where)
    expected = [(RESERVED, _reserved(total)) for total in totals if total.planned.is_reserved]
    closing = checks.fields(checked[-1]["data"], _CLOSING_FIELDS, f"the closing line of {where}")
    model = None if closing["model"] is None else checks.word(closing["model"], "model", where)
    expected.append((CLOSING, _closing(totals, model)))
    for line, (kind, data) in zip(checked[reserved_at:], expected, strict=False):
        _require_equal(line, kind, data, where)
    if len(checked) - reserved_at != len(expected):
        raise LedgerError(
            f"{where} has {len(checked)} lines, its plan asks for {reserved_at + len(expected)}"
        )
    return Ledger(
        plan=plan,
        totals=totals,
        assumptions=tuple(heading["assumptions"]),
        versions=dict(heading["versions"]),
        model=model,
        digest=digest(checked),
        lines=len(checked),
    )


def _require_journal(heading: Mapping[str, Any], releases: Sequence[Release], where: str) -> None:
    """The journal that the ledger names must be the one that these releases make."""
    stated = heading["journal"]
    if stated is None:
        if releases:
            raise LedgerError(f"line 1 of {where} names no journal, but there are releases")
        return
    if stated["releases"] != len(releases):
        raise LedgerError(f"{where} has {len(releases)} releases, its journal had {stated['releases']}")
    made = sealed([(HEADER, heading["plan"]), *((RELEASE, release.to_json()) for release in releases)])
    if digest(made) != stated["digest"]:
        raise LedgerError(f"the plan and releases of {where} are not those of the journal that it names")


def _heading(plan: Mapping[str, Any], journal: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "plan": dict(plan),
        "assumptions": [dict(item) for item in ASSUMPTIONS],
        "versions": {
            "raptor": __version__,
            "accountant": OWN,
            "dp-accounting": version("dp-accounting"),
            "python": platform.python_version(),
        },
        "journal": journal,
    }


def _read_heading(data: Mapping[str, Any], where: str) -> tuple[PrivacyPlan, dict[str, Any]]:
    place = f"line 1 of {where}"
    heading = checks.fields(data, _PLAN_FIELDS, place)
    if heading["format"] != FORMAT:
        raise LedgerError(f"{place} has the format {heading['format']!r}, this version reads {FORMAT}")
    versions = checks.fields(heading["versions"], _VERSIONS, f"versions in {place}")
    for name, value in versions.items():
        checks.word(value, name, f"versions in {place}")
    if heading["assumptions"] != [dict(item) for item in ASSUMPTIONS]:
        raise LedgerError(f"{place} does not state the assumptions of {FORMAT}")
    if heading["journal"] is not None:
        source = checks.fields(heading["journal"], frozenset({"digest", "releases"}), f"journal in {place}")
        checks.word(source["digest"], "digest", f"journal in {place}")
        checks.count(source["releases"], "releases", f"journal in {place}")
    return read_plan(heading["plan"]), heading


def _read_release(line: Line, number: int, where: str) -> Release:
    place = f"line {number} of {where}"
    if line["kind"] != RELEASE:
        raise LedgerError(f"{place} is {line['kind']!r} where a release should stand")
    try:
        return Release.from_json(line["data"], place)
    except ParameterError as error:
        raise LedgerError(f"{place} is no valid release: {error}") from None


def _totals(plan: PrivacyPlan, releases: Sequence[Release], where: str) -> tuple[StreamTotal, ...]:
    """Releases per stream; each must be the plan's next one of its stream, and no more than planned."""
    executed = {stream.name: 0 for stream in plan.streams}
    dimensions: dict[str, int] = {}
    for number, release in enumerate(releases, start=2):
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


def _reserved(total: StreamTotal) -> dict[str, Any]:
    planned = total.planned
    return {
        "stream": planned.name,
        "rate": planned.rate,
        "noise_multiplier": planned.noise_multiplier,
        "steps": planned.steps,
    }


def _closing(totals: Sequence[StreamTotal], model: str | None) -> dict[str, Any]:
    return {"streams": [total.to_json() for total in totals], "status": _status(totals), "model": model}


def _status(totals: Sequence[StreamTotal]) -> Literal["complete", "incomplete"]:
    done = all(total.executed == total.planned.steps for total in totals if not total.planned.is_reserved)
    return "complete" if done else "incomplete"


def _require_equal(line: Line, kind: str, data: dict[str, Any], where: str) -> None:
    place = f"line {line['index'] + 1} of {where}"
    if line["kind"] != kind:
        raise LedgerError(f"{place} is {line['kind']!r} where {kind!r} should stand")
    for key, value in data.items():
        if canonical(line["data"].get(key)) != canonical(value):
            raise LedgerError(
                f"{place} says that {key} is {line['data'].get(key)}, its plan and releases give {value}"
            )
    unknown = sorted(set(line["data"]) - set(data))
    if unknown:
        raise LedgerError(f"{place} has the unknown field {unknown[0]}")
