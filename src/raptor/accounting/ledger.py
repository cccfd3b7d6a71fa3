"""The ledger: plan, releases, what is reserved, and totals, as one chain that can be checked alone.

Lines, in this order: `plan` (the plan as it was written before training, versions, the digest of the journal),
all lines of the journal after its header (one `release` per noisy sum that left the mechanism, `run` and `end`
for what the run checked), one `reserved` per stream that is charged in full, and `closing` (per stream: planned,
executed, charged; whether the run was complete; the digest of the model that was made of the releases).
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
from raptor.accounting.chain import Line, canonical, digest, sealed, verify_chain
from raptor.accounting.facts import END, RUN, RunEnd, RunStart, read_fact
from raptor.accounting.journal import HEADER, RELEASE, open_lines
from raptor.accounting.plan import PrivacyPlan, read_plan
from raptor.accounting.totals import (
    StreamTotal,
    closing_line,
    count_releases,
    require_ended,
    reserved_line,
    status_of,
)
from raptor.accounting.types import Event, Release
from raptor.errors import LedgerError, ParameterError

FORMAT = "raptor-ledger/4"
PLAN = "plan"
RESERVED = "reserved"
CLOSING = "closing"

_VERSIONS = frozenset({"raptor", "accountant", "dp-accounting", "python"})
_PLAN_FIELDS = frozenset({"format", "plan", "versions", "journal"})
_CLOSING_FIELDS = frozenset({"streams", "status", "model"})


@dataclass(frozen=True)
class Ledger:
    """A ledger whose chain, order, releases and totals were checked.

    Attributes:
        starts: what each process of the run checked before its first release.
        end: what the last one checked after its last release; None when the run did not come that far.
        checked_from_start: whether a `run` line stands before the first release.
    """

    plan: PrivacyPlan
    totals: tuple[StreamTotal, ...]
    starts: tuple[RunStart, ...]
    end: RunEnd | None
    checked_from_start: bool
    versions: dict[str, str]
    model: str | None
    digest: str
    lines: int

    @property
    def status(self) -> Literal["complete", "incomplete"]:
        return status_of(self.totals, self.end)

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
    entries: list[tuple[str, Mapping[str, Any]]] = [(PLAN, _heading(plan, source))]
    entries += [(line["kind"], line["data"]) for line in journal[1:]]
    places = [number for number, line in enumerate(journal, start=1) if line["kind"] == RELEASE]
    totals = count_releases(checked, list(zip(places, releases, strict=True)), "the release log")
    entries += [(RESERVED, reserved_line(total)) for total in totals if total.planned.is_reserved]
    _, end = _read_facts(journal, "the release log")
    require_ended(totals, end, "the release log")
    entries.append((CLOSING, closing_line(totals, end, model)))
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
    middle = checked[1:reserved_at]
    starts, end = _read_facts(middle, where)
    releases = [
        (number, _read_release(line, number, where))
        for number, line in enumerate(middle, start=2)
        if line["kind"] not in (RUN, END)
    ]
    totals = count_releases(plan, releases, where)
    require_ended(totals, end, where)
    _require_coordinates(starts, totals, where)
    _require_journal(heading, middle, len(releases), where)
    expected = [(RESERVED, reserved_line(total)) for total in totals if total.planned.is_reserved]
    closing = checks.fields(checked[-1]["data"], _CLOSING_FIELDS, f"the closing line of {where}")
    model = None if closing["model"] is None else checks.word(closing["model"], "model", where)
    expected.append((CLOSING, closing_line(totals, end, model)))
    for line, (kind, data) in zip(checked[reserved_at:], expected, strict=False):
        _require_equal(line, kind, data, where)
    if len(checked) - reserved_at != len(expected):
        raise LedgerError(
            f"{where} has {len(checked)} lines, its plan asks for {reserved_at + len(expected)}"
        )
    return Ledger(
        plan=plan,
        totals=totals,
        starts=starts,
        end=end,
        checked_from_start=bool(middle) and middle[0]["kind"] == RUN,
        versions=dict(heading["versions"]),
        model=model,
        digest=digest(checked),
        lines=len(checked),
    )


def _read_facts(
    middle: Sequence[Mapping[str, Any]], where: str
) -> tuple[tuple[RunStart, ...], RunEnd | None]:
    """What the run says that it checked; nothing may stand after its end."""
    facts = [
        read_fact(line["kind"], line["data"], f"line {line['index'] + 1} of {where}")
        for line in middle
        if line["kind"] in (RUN, END)
    ]
    ends = [line["index"] + 1 for line in middle if line["kind"] == END]
    if ends and ends[0] != middle[-1]["index"] + 1:
        raise LedgerError(f"line {ends[0]} of {where} ends the run, but lines of the run stand after it")
    starts = tuple(fact for fact in facts if isinstance(fact, RunStart))
    return starts, next((fact for fact in facts if isinstance(fact, RunEnd)), None)


def _require_coordinates(starts: Sequence[RunStart], totals: Sequence[StreamTotal], where: str) -> None:
    """Every release has noise on as many coordinates as the run said that the stream trains."""
    for start in starts:
        for total in totals:
            said = start.coordinates.get(total.planned.name)
            if None not in (said, total.dimension) and said != total.dimension:
                raise LedgerError(
                    f"{where} has releases of {total.dimension} coordinates in stream {total.planned.name}, "
                    f"which trains {said}"
                )


def _require_journal(heading: Mapping[str, Any], middle: Sequence[Line], releases: int, where: str) -> None:
    """The journal that the ledger names must be the one that these lines make."""
    stated = heading["journal"]
    if stated is None:
        if middle:
            raise LedgerError(f"line 1 of {where} names no journal, but there are releases")
        return
    if stated["releases"] != releases:
        raise LedgerError(f"{where} has {releases} releases, its journal had {stated['releases']}")
    made = sealed([(HEADER, heading["plan"]), *((line["kind"], line["data"]) for line in middle)])
    if digest(made) != stated["digest"]:
        raise LedgerError(f"the plan and releases of {where} are not those of the journal that it names")


def _heading(plan: Mapping[str, Any], journal: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "plan": dict(plan),
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
    # Before the fields, as another format has other ones.
    if data.get("format") != FORMAT:
        raise LedgerError(
            f"{place} has the format {data.get('format')!r}, this version reads {FORMAT}. Check it with the "
            "version of raptor that made it, or run the training and accounting stages again"
        )
    heading = checks.fields(data, _PLAN_FIELDS, place)
    versions = checks.fields(heading["versions"], _VERSIONS, f"versions in {place}")
    for name, value in versions.items():
        checks.word(value, name, f"versions in {place}")
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
