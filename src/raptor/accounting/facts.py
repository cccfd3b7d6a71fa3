"""What a run says of itself in its journal: which code ran, and what it checked. All of it is public.

A process that trains writes a `run` line before its first release, and an `end` line after its last one. What
stands in neither was not checked by the run, and the certificate does not say that it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raptor.accounting import checks
from raptor.errors import LedgerError, ParameterError

RUN = "run"
END = "end"
NO_COMMIT = "not under version control"

Records = Literal["first", "same", "unchecked"]
_RECORDS = ("first", "same", "unchecked")


@dataclass(frozen=True)
class Code:
    """The code that ran.

    Attributes:
        commit: of the repository that the package's files belong to, or `NO_COMMIT`.
        modified: whether files of the package differ from that commit; None without one.
        digest: SHA-256 over the names and contents of the package's Python files.
    """

    commit: str
    modified: bool | None
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {"commit": self.commit, "modified": self.modified, "digest": self.digest}

    @classmethod
    def from_json(cls, data: object, where: str) -> Code:
        found = checks.fields(data, frozenset(cls.__dataclass_fields__), where)
        modified = found["modified"]
        if modified is not None and not isinstance(modified, bool):
            raise ParameterError(f"modified of {where} must be true, false or null")
        return cls(
            checks.word(found["commit"], "commit", where),
            modified,
            checks.word(found["digest"], "digest", where),
        )


@dataclass(frozen=True)
class Gate:
    """A passed isolation gate: parameter groups, number types, and what was set aside."""

    groups: tuple[str, ...]
    precisions: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": list(self.groups),
            "precisions": list(self.precisions),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: object, where: str) -> Gate:
        found = checks.fields(data, frozenset(cls.__dataclass_fields__), where)
        return cls(*(_words(found[name], name, where) for name in ("groups", "precisions", "notes")))


@dataclass(frozen=True)
class RunStart:
    """What one process checked before its first release.

    Attributes:
        code: the code that ran.
        isolation: what the isolation gate has shown; None when it did not run.
        constants: the parameters were compared with those of the plan.
        coordinates: numbers that each stream trains, by its name: so many get noise in every release.
        records: `first` where this process is the run's first, `same` where it goes on with a run and found its
            records to be those of the start, `unchecked` otherwise.
        processes: how many processes trained together; the journal says it where it was more than one.
    """

    code: Code
    isolation: Gate | None
    constants: bool
    coordinates: Mapping[str, int]
    records: Records
    processes: int = 1

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code.to_json(),
            "isolation": None if self.isolation is None else self.isolation.to_json(),
            "constants": self.constants,
            "coordinates": dict(self.coordinates),
            "records": self.records,
            **({"processes": self.processes} if self.processes > 1 else {}),
        }

    @classmethod
    def from_json(cls, data: object, where: str) -> RunStart:
        optional = frozenset({"processes"})
        found = checks.fields(data, frozenset(cls.__dataclass_fields__) - optional, where, optional)
        if found["records"] not in _RECORDS:
            raise ParameterError(f"records of {where} must be one of {', '.join(_RECORDS)}")
        sizes = found["coordinates"]
        if not isinstance(sizes, Mapping):
            raise ParameterError(f"coordinates of {where} must be named numbers")
        gate = found["isolation"]
        return cls(
            code=Code.from_json(found["code"], f"code of {where}"),
            isolation=None if gate is None else Gate.from_json(gate, f"isolation of {where}"),
            constants=_flag(found["constants"], "constants", where),
            coordinates={
                checks.word(name, "a stream", where): checks.count(size, f"coordinates of {name}", where, 1)
                for name, size in sizes.items()
            },
            records=found["records"],  # type: ignore[arg-type]
            processes=checks.count(found.get("processes", 1), "processes", where, 1),
        )


@dataclass(frozen=True)
class RunEnd:
    """What the last process checked after the last release.

    Attributes:
        router_weights: numbers in the routers that were compared with the base model's and found equal.
        records_unchanged: the records in memory are those that the process started with.
        keystreams: purposes of the keystreams of coins and noise; each was given out once, under its own key.
        left_out: last steps of the schedule that were not made, because releases that were lost in a crash had used
            up what they were to cost.
    """

    router_weights: int
    records_unchanged: bool
    keystreams: tuple[str, ...]
    left_out: int

    def to_json(self) -> dict[str, Any]:
        return {
            "router_weights": self.router_weights,
            "records_unchanged": self.records_unchanged,
            "keystreams": list(self.keystreams),
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, data: object, where: str) -> RunEnd:
        found = checks.fields(data, frozenset(cls.__dataclass_fields__), where)
        return cls(
            checks.count(found["router_weights"], "router_weights", where),
            _flag(found["records_unchanged"], "records_unchanged", where),
            _words(found["keystreams"], "keystreams", where),
            checks.count(found["left_out"], "left_out", where),
        )


def read_fact(kind: str, data: object, where: str) -> RunStart | RunEnd:
    """The content of a `run` or `end` line.

    Raises:
        LedgerError: a field is missing, unknown or of the wrong kind.
    """
    try:
        return RunStart.from_json(data, where) if kind == RUN else RunEnd.from_json(data, where)
    except ParameterError as error:
        raise LedgerError(f"{where} is no valid {kind} line: {error}") from None


def _words(value: object, name: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ParameterError(f"{name} of {where} must be a list")
    return tuple(checks.word(item, f"an entry of {name}", where) for item in value)


def _flag(value: object, name: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(f"{name} of {where} must be true or false")
    return value
