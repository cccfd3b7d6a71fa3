"""What is wrong with a record, where, and what to do; and what is only worth a warning."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raptor.errors import DataError

SHOWN_PLACES = 5
SHOWN_CHARACTERS = 60
SHOWN_VALUES = 30
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
HOW_TO_SEE = "`raptor inspect` shows what was found."


def shorten(value: Any) -> str:
    """A value in quotes, cut to a length that fits a terminal line."""
    text = value if isinstance(value, str) else str(value)
    cut = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    # A half surrogate pair cannot be printed; ascii() would hide every other letter, too.
    return repr(cut.encode("utf-8", "replace").decode("utf-8"))


def one_line(text: str) -> str:
    """A message that files and terminals can hold: names of files may have line breaks, and bytes that are no UTF-8."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return CONTROL.sub(lambda found: repr(found.group())[1:-1], whole)


@dataclass(frozen=True)
class Place:
    """A record's place: file, and its line or its number in the file. Both count from 1."""

    file: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


class RecordError(DataError):
    """A record that cannot be read, or cannot be used as it is.

    The message holds the place, the column and what to do, but no value: messages of pipelines reach log
    files. `terminal` adds the value, shortened, for a person who looks at their own data.
    """

    def __init__(
        self,
        problem: str,
        *,
        place: Place | Path | str | None = None,
        column: str | None = None,
        advice: str = "",
        value: Any = None,
    ) -> None:
        where = ", ".join([*([str(place)] if place else []), *([f"column {column!r}"] if column else [])])
        message = f"{where}: {problem}" if where else problem[:1].upper() + problem[1:]
        self._message = one_line(f"{message} {advice}".rstrip())
        self._value = value
        super().__init__(self._message if value is None else f"{self._message} {HOW_TO_SEE}")

    @property
    def terminal(self) -> str:
        """The message with the shortened value."""
        if self._value is None:
            return self._message
        values = self._value[:SHOWN_VALUES] if isinstance(self._value, tuple) else (self._value,)
        return f"{self._message} Found: {', '.join(map(shorten, values))}."


@dataclass
class Finding:
    """Records that share an oddity: how many, and where the first of them are."""

    count: int = 0
    places: list[Place] = field(default_factory=list)

    def add(self, place: Place) -> None:
        self.count += 1
        if len(self.places) < SHOWN_PLACES:
            self.places.append(place)

    def __str__(self) -> str:
        """As 'reviews.csv, lines 3, 7 and 4 more'."""
        file, unit = self.places[0].file, self.places[0].unit
        numbers = [place.number for place in self.places if place.file == file]
        shown = ", ".join(str(number) for number in numbers)
        more = self.count - len(numbers)
        return f"{file}, {unit}{'s' if len(numbers) > 1 else ''} {shown}" + (
            f" and {more} more" if more else ""
        )


@dataclass
class Findings:
    """Warnings collected while reading: oddities of records by kind, and remarks on files."""

    records: dict[str, Finding] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def add(self, kind: str, place: Place) -> None:
        self.records.setdefault(kind, Finding()).add(place)

    def add_all(self, kind: str, places: Iterable[Place]) -> None:
        for place in places:
            self.add(kind, place)

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def messages(self) -> list[str]:
        """One sentence a kind."""
        kinds = (f"{kind}: {finding.count} ({finding})." for kind, finding in self.records.items())
        return [one_line(message) for message in (*self.remarks, *kinds)]
