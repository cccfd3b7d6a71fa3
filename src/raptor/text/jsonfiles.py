"""JSON lines and JSON arrays of records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raptor.text.columns import CHUNK, Batch, Columns, closest, closest_advice, find_column
from raptor.text.files import TextForm, text_blocks, text_form, text_lines
from raptor.text.problems import Findings, Place, RecordError

BLANK = "lines with nothing in them, left out"
SPACE = " \t\r\n"
FIRST_KEYS = 100
# As names, since True and 1 are the same key of a dict.
TRUTH = {True: "true", False: "false"}


class _RepeatedKeyError(ValueError):
    """An object names a key twice; which value counts differs from reader to reader."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _RepeatedKeyError
    return made


# `strict=False` takes a tab inside a string as it stands: not valid JSON, but nothing else can be meant.
DECODER = json.JSONDecoder(object_pairs_hook=_object, strict=False)


def read_json(path: Path, columns: Columns, encoding: str, findings: Findings) -> Iterator[Batch]:
    """Records of a JSON file: an array of objects, or one object a line; the content says which.

    Raises:
        RecordError: with file and line (or record number, in an array), when something is not JSON, not an
            object, or lacks its text.
    """
    records, unit = _records(path, encoding, findings)
    reader = _Columns(columns, str(path), unit)
    batch = reader.empty()
    for number, value in records:
        reader.add(batch, number, value)
        if len(batch) == CHUNK:
            yield batch
            batch = reader.empty()
    if len(batch):
        yield batch
    reader.finish()


def check_first_keys(path: Path, columns: Columns, encoding: str) -> None:
    """Refuse names of text columns that the first record does not have; other columns may be absent from it.

    Raises:
        RecordError: as `read_json`, about the first record alone.
    """
    records, unit = _records(path, encoding, Findings())
    reader = _Columns(columns, str(path), unit)
    for number, value in records:
        reader.add(reader.empty(), number, value)
        return


def _records(path: Path, encoding: str, findings: Findings) -> tuple[Iterator[tuple[int, Any]], str]:
    """Numbers and values of the records, and what the numbers count."""
    form = text_form(path, encoding, findings)
    with text_lines(path, form) as lines:
        start = next((line.lstrip("\ufeff" + SPACE) for line in lines if line.strip("\ufeff" + SPACE)), "")
    if start.startswith("["):
        return _Array(path, form).records(), "record"
    return _line_records(path, form, findings), "line"


def _line_records(path: Path, form: TextForm, findings: Findings) -> Iterator[tuple[int, Any]]:
    blank: list[Place] = []
    with text_lines(path, form) as lines:
        for number, line in enumerate(lines, start=1):
            bare = line.strip("\ufeff" + SPACE) if number == 1 else line.strip(SPACE)
            if not bare:
                blank.append(Place(str(path), number))
                continue
            findings.add_all(BLANK, blank)
            blank.clear()
            place = Place(str(path), number)
            try:
                yield number, DECODER.decode(bare)
            except json.JSONDecodeError as error:
                raise _not_json(error, place, bare, _line_advice(error, bare)) from None
            except (ValueError, RecursionError) as error:
                raise _unusable(error, place) from None


class _Array:
    """Decodes an array element by element, so that a large file need not fit into memory."""

    def __init__(self, path: Path, form: TextForm) -> None:
        self.path = path
        self.blocks = text_blocks(path, form)
        self.text = next(self.blocks, "")
        self.at = 0
        self.lines = 1

    def records(self) -> Iterator[tuple[int, Any]]:
        """Number and value of each element."""
        self._next_mark()
        self.at += 1
        number = 0
        mark = self._next_mark()
        while mark != "]":
            number += 1
            yield number, self._value(number)
            mark = self._next_mark()
            if mark == ",":
                self.at += 1
                mark = self._next_mark()
                if mark == "]":
                    raise self._error("a comma stands before the closing bracket.", "Remove it.")
            elif not mark:
                raise self._error(
                    "the array is not closed.", "The file may be cut off: write or download it again."
                )
            elif mark != "]":
                raise self._error("a comma is missing between two records.", "Add it.")
        self.at += 1
        if self._next_mark():
            raise self._error(
                "something follows the end of the array.", "Give one array, or one object a line."
            )

    def _more(self) -> bool:
        """Drop what was decoded and append the next block; False, and no change, at the end of the file."""
        block = next(self.blocks, "")
        if block:
            self.lines += self.text.count("\n", 0, self.at)
            self.text, self.at = self.text[self.at :] + block, 0
        return bool(block)

    def _next_mark(self) -> str:
        """Move to the next character that is no space; empty at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in SPACE + "\ufeff":
                self.at += 1
            if self.at < len(self.text) or not self._more():
                return self.text[self.at : self.at + 1]

    def _value(self, number: int) -> Any:
        while True:
            try:
                value, end = DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # The element may only go on in the next block.
                if _may_be_cut(error, len(self.text)) and self._more():
                    continue
                place = Place(str(self.path), self.lines + self.text.count("\n", 0, error.pos))
                advice = "The file may be cut off, or this element is not JSON."
                raise _not_json(error, place, self.text[self.at : self.at + 200], advice) from None
            except (ValueError, RecursionError) as error:
                raise _unusable(error, Place(str(self.path), number, "record")) from None
            # A number at the end of a block may go on in the next.
            if end < len(self.text) or not self._more():
                self.at = end
                return value

    def _error(self, problem: str, advice: str) -> RecordError:
        line = self.lines + self.text.count("\n", 0, self.at)
        return RecordError(problem, place=Place(str(self.path), line), advice=advice)


def _may_be_cut(error: json.JSONDecodeError, end: int) -> bool:
    """Whether an error may come from text that stops too early: in a string, a number, a word, an escape."""
    return error.msg.startswith("Unterminated string") or error.pos > end - len('"\\ud83d\\ude00')


def _not_json(error: json.JSONDecodeError, place: Place, value: str, advice: str) -> RecordError:
    return RecordError(f"this is not valid JSON ({error.msg}).", place=place, advice=advice, value=value)


def _line_advice(error: json.JSONDecodeError, line: str) -> str:
    if error.msg == "Extra data" and line[error.pos :].lstrip().startswith("{"):
        return "Put each object on its own line."
    if error.msg == "Extra data" and line[error.pos :].strip() == ",":
        return "Remove the comma at the end, or put all objects into one array: [{...}, {...}]."
    if line == "{":
        return "An object that runs over several lines must stand in an array: [{...}, {...}]."
    return "Each line must be one whole object."


def _unusable(error: ValueError | RecursionError, place: Place) -> RecordError:
    if isinstance(error, _RepeatedKeyError):
        return RecordError("an object names a key twice.", place=place, advice="Keep one of the two.")
    return RecordError(
        "a value is nested too deep, or a number has thousands of digits.",
        place=place,
        advice="Records hold texts and a label.",
    )


@dataclass
class _Columns:
    """Picks the columns out of objects."""

    columns: Columns
    file: str
    unit: str
    names: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    keys: dict[str, None] = field(default_factory=dict)
    seen: int = 0

    def empty(self) -> Batch:
        made = Batch(self.file, self.unit)
        for role in self.names:
            if role != "text":
                setattr(made, role, [])
        return made

    def add(self, batch: Batch, number: int, value: Any) -> None:
        place = Place(self.file, number, self.unit)
        if not isinstance(value, dict):
            raise RecordError(
                "the record is not an object.",
                place=place,
                advice='Records look like {"text": ..., "label": ...}.',
                value=json.dumps(value),
            )
        if not self.names:
            layout = self.columns.resolve(list(value), str(place), needed=False)
            self.names = layout.names
            for role in self.names:
                if role != "text":
                    setattr(batch, role, [])
        if self.seen < FIRST_KEYS:
            self.seen += 1
            self.keys.update(dict.fromkeys(value))
        batch.numbers.append(number)
        for role, name in self.names.items():
            if name in value:
                self.met.add(role)
            elif role in ("text", "pair"):
                find_column(list(value), name, str(place))
            found = value.get(name)
            getattr(batch, role).append(
                TRUTH[found] if role == "label" and isinstance(found, bool) else found
            )

    def finish(self) -> None:
        """A column that no record has is a wrong name, not a missing value.

        Raises:
            RecordError: with the closest key.
        """
        for role, name in self.names.items():
            if role not in self.met:
                near = closest(name, list(self.keys))
                raise RecordError(
                    f"no record has a key {name!r}.",
                    place=self.file,
                    advice=closest_advice(near, name),
                    value=tuple(self.keys),
                )
