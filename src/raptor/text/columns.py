"""Which columns of a source hold text, label or completion, split and user."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from raptor.errors import ParameterError
from raptor.text.problems import Place, RecordError

# Records handed on at once: enough to amortise the overhead, few enough to keep memory flat.
CHUNK = 10_000
# Roles whose column must hold text.
TEXTS = ("text", "pair", "completion")


@dataclass
class Batch:
    """Some records as they stand in the source, column by column; `None` marks a missing value.

    `numbers` are lines or record numbers in `file`, as `unit` says. `class_names` are the names of classes
    that the file itself keeps, in their order.
    """

    file: str
    unit: str
    numbers: list[int] = field(default_factory=list)
    text: list[Any] = field(default_factory=list)
    pair: list[Any] | None = None
    label: list[Any] | None = None
    split: list[Any] | None = None
    user: list[Any] | None = None
    completion: list[Any] | None = None
    image: list[Any] | None = None
    class_names: tuple[str, ...] | None = None

    def place(self, row: int) -> Place:
        return Place(self.file, self.numbers[row], self.unit)

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Columns:
    """Column names by role, as the user gives them.

    Args:
        text: one name, two names, or two names joined by ``+``.
        label: None where there is nothing to learn, as for prediction.
        split: column that says train, validation or test.
        user: column that says whose record it is.
        completion: the text that is to follow, where texts are continued; then there is no label.
        image: column of images, as bytes or names of files.

    Raises:
        ParameterError: a role has no name, or two roles share one column.
    """

    text: str | tuple[str, ...]
    label: str | None
    split: str | None = None
    user: str | None = None
    completion: str | None = None
    image: str | None = None

    def __post_init__(self) -> None:
        names = (self.text,) if isinstance(self.text, str) else self.text
        if len(names) not in (1, 2) or not all(name.strip() for name in names):
            raise ParameterError("ingestion.text must name one text column, or two as 'first+second'.")
        parts = names[0].split("+") if len(names) == 1 and "+" in names[0] else names
        self._refuse_shared([*parts])

    def _refuse_shared(self, texts: list[str]) -> None:
        roles: list[tuple[str, str | None]] = [("text", name) for name in texts]
        roles += self._others()
        seen: dict[str, str] = {}
        for role, name in roles:
            if name is None:
                continue
            if name in seen:
                raise ParameterError(
                    f"ingestion.{role} and ingestion.{seen[name]} both name the column {name!r}. "
                    "Each needs its own column."
                )
            seen[name] = role

    def _others(self) -> list[tuple[str, str | None]]:
        """Roles and columns beside those of the text itself."""
        return [
            ("label", self.label),
            ("split", self.split),
            ("user", self.user),
            ("completion", self.completion),
            ("image", self.image),
        ]

    def resolve(self, header: Sequence[str], file: str, needed: bool = True) -> Layout:
        """Find the columns in a header.

        Args:
            header: names as they stand in the file.
            needed: False where a record may lack a label, completion, split or user, as in JSON.

        Raises:
            RecordError: a column is missing, or its name stands there twice.
        """
        texts = self._text_names(header)
        roles: list[tuple[str, str | None]] = [("text", texts[0])]
        roles.append(("pair", texts[1] if len(texts) == 2 else None))
        roles += self._others()
        places: dict[str, int | None] = {}
        for role, name in roles:
            if name is None or (not needed and role not in ("text", "pair") and name not in header):
                places[role] = None
                continue
            places[role] = find_column(header, name, file)
        return Layout(header=tuple(header), names={r: n for r, n in roles if n is not None}, places=places)

    def _text_names(self, header: Sequence[str]) -> tuple[str, ...]:
        if not isinstance(self.text, str):
            return self.text
        # A column may really be called "a+b".
        if self.text in header or "+" not in self.text:
            return (self.text,)
        first, _, second = self.text.partition("+")
        return (first, second)


@dataclass(frozen=True)
class Layout:
    """Positions of the columns in one header."""

    header: tuple[str, ...]
    names: dict[str, str]
    places: dict[str, int | None]

    def used(self) -> dict[str, int]:
        """Role -> position, for the roles that the file has."""
        return {role: place for role, place in self.places.items() if place is not None}


def find_column(header: Sequence[str], name: str, file: str) -> int:
    """Position of a column.

    Raises:
        RecordError: it is missing (with the closest name), or stands there twice.
    """
    count = list(header).count(name)
    if count == 1:
        return header.index(name)
    if count > 1:
        raise RecordError(
            f"there are {count} columns of this name.", place=file, column=name, advice="Rename all but one."
        )
    raise RecordError(
        f"there is no column {name!r}.",
        place=file,
        advice=_one_field(name, header) or closest_advice(closest(name, header), name),
        value=tuple(header),
    )


def _one_field(name: str, header: Sequence[str]) -> str:
    """What to do about a header that nothing has split; empty for another one."""
    if len(header) == 1 and len(header[0]) > len(name) and name in header[0].split("\r")[0]:
        return (
            "The header is one field: columns are separated by commas, semicolons, tabs or vertical bars; another "
            "mark is named by a first line such as sep=^."
        )
    if any("\r" in field for field in header):
        return "The header holds a carriage return: end all lines of the file in the same way."
    return ""


def closest_advice(near: str | None, name: str) -> str:
    """What to do about a name that is not there."""
    if near is not None and unicodedata.normalize("NFKC", near) == unicodedata.normalize("NFKC", name):
        return f"The closest is {near!r}, {near!a} in full: it looks the same in other characters."
    if near is not None:
        return f"The closest is {near!r}: names must agree in case and spaces, too."
    return "No name is similar: columns are named by the first line of a file, or by keys."


def closest(name: str, names: Sequence[str]) -> str | None:
    """The most similar of some names; case, spaces, hyphens and underscores count for little."""

    def plain(text: str) -> str:
        folded = unicodedata.normalize("NFKC", text).casefold()
        return "".join(letter for letter in folded if letter.isalnum()) or folded

    by_plain: dict[str, str] = {}
    for other in names:
        by_plain.setdefault(plain(other), other)
    if plain(name) in by_plain:
        return by_plain[plain(name)]
    matches = get_close_matches(plain(name), list(by_plain), n=1, cutoff=0.6)
    return by_plain[matches[0]] if matches else None
