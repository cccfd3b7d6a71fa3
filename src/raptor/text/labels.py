"""What the values of a label column mean: classes by name or by number, and no label."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from raptor.text.problems import Findings, Place, RecordError, shorten

WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
INVISIBLE = "\ufeff\u200b\u200e\u200f\u2060"
# Written by programs for a value they do not have; never the name of a class.
MISSING_WORDS = frozenset({"nan", "<na>", "nat", "\\n"})
# May be names of classes, and may be gaps.
DOUBTFUL_WORDS = frozenset({"na", "n/a", "null", "none", "#n/a"})
ADVICE = "A label is a name or a whole number from 0; -1 and an empty cell mean that there is none."


@dataclass(frozen=True)
class Meaning:
    """Class names of the distinct label values.

    Args:
        names: for each value its class, or None for no label.
        order: all classes in their order: numbers by size, names by alphabet, or as a file lists them.
    """

    names: tuple[str | None, ...]
    order: tuple[str, ...]


def label_key(value: Any, place: Callable[[], Place], column: str) -> Hashable:
    """A label as it came from a reader, as a string, an integer, or None; readers give truth values as words.

    Raises:
        RecordError: it is a list, an object or a real number.
    """
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124 -- the test for NaN
            return None
        if value.is_integer():
            return int(value)
        raise RecordError(
            "the label is a real number.", place=place(), column=column, advice=ADVICE, value=value
        )
    raise RecordError(
        f"the label is a {type(value).__name__}.", place=place(), column=column, advice=ADVICE, value=value
    )


def clean_name(value: str) -> str:
    """A label without spaces and invisible marks at its ends, in Unicode's composed form."""
    text = unicodedata.normalize("NFC", value.strip().strip(INVISIBLE).strip())
    return text.encode("utf-8", "replace").decode("utf-8")


def interpret(
    values: Sequence[Hashable],
    first: Sequence[Place],
    column: str,
    listed: Sequence[str] | None,
    findings: Findings,
) -> Meaning:
    """Decide what the distinct values of a label column mean, all taken together.

    Labels are numbers when all of them are (`1.0` is 1, but `01` is a name). Spaces around names do not
    count; case does.

    Args:
        values: distinct values, as from `label_key`.
        first: where each stands for the first time.
        listed: names that the files themselves give in order.

    Raises:
        RecordError: a value is a real number, a negative number, a missing value written as a word, or in
            quotation marks.
    """
    texts = [clean_name(str(value)) if value is not None else "" for value in values]
    given = [(text, place) for text, place in zip(texts, first, strict=True) if text]
    for text, place in given:
        _refuse_unusable(text, place, column)
    whole = [WHOLE.fullmatch(text) for text in texts]
    numbers = all(match is not None for match, text in zip(whole, texts, strict=True) if text)
    if not numbers and given and all(REAL.fullmatch(text) for text, _ in given):
        text, place = next(item for item in given if not WHOLE.fullmatch(item[0]))
        # Codes such as 007 are names; 0.73 is a measurement.
        if any("." in text or "e" in text.casefold() for text, _ in given):
            raise RecordError(
                "the label is a real number.", place=place, column=column, advice=ADVICE, value=text
            )
    names: list[str | None] = []
    for text, match, place in zip(texts, whole, first, strict=True):
        name = match.group(1) if match is not None and numbers else text
        if name in ("", "-1"):
            names.append(None)
            continue
        if numbers and name.startswith("-"):
            raise RecordError("the label is negative.", place=place, column=column, advice=ADVICE, value=text)
        names.append(name)
    known = {name for name in names if name is not None}
    _remark(known, values, names, numbers, findings)
    if listed is not None and known <= set(listed):
        order = [name for name in listed if name in known]
    else:
        order = sorted(known, key=int) if numbers else sorted(known)
    return Meaning(tuple(names), tuple(order))


def _refuse_unusable(text: str, place: Place, column: str) -> None:
    if text.casefold() in MISSING_WORDS:
        raise RecordError(
            "the label is a missing value, written as a word.",
            place=place,
            column=column,
            advice=f"Empty the cell, or rename the class. {ADVICE}",
            value=text,
        )
    if text.startswith('"') or '""' in text or text.count('"') % 2:
        raise RecordError(
            "the label holds a quotation mark that belongs to no quoted field.",
            place=place,
            column=column,
            advice="Remove the mark, or a space before it.",
            value=text,
        )


def _remark(
    known: set[str],
    values: Sequence[Hashable],
    names: Sequence[str | None],
    numbers: bool,
    findings: Findings,
) -> None:
    folded: dict[str, list[str]] = {}
    for name in sorted(known):
        folded.setdefault(name.casefold(), []).append(name)
        if name.casefold() in DOUBTFUL_WORDS:
            findings.remark(
                f"The label {shorten(name)} is taken as the name of a class, not as a missing value."
            )
    for alike in folded.values():
        if len(alike) > 1:
            findings.remark(f"Labels that differ by case alone are different classes: {', '.join(alike)}.")
    spellings: dict[str, set[str]] = {}
    for value, meant in zip(values, names, strict=True):
        if meant is not None and isinstance(value, str):
            spellings.setdefault(meant, set()).add(value)
    for spelt, written in sorted(spellings.items()):
        if len(written) > 1:
            findings.remark(
                f"The class {shorten(spelt)} is written in {len(written)} ways, by spaces or marks."
            )
    if not numbers and any(WHOLE.fullmatch(name) for name in known):
        findings.remark("Some labels are numbers and others are names; all are taken as names.")
