"""From batches as they stand in a source to typed columns, value by value."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raptor.text.columns import Batch, Columns
from raptor.text.images import NO_IMAGE, read_image
from raptor.text.labels import DOUBTFUL_WORDS, MISSING_WORDS, clean_name, label_key
from raptor.text.problems import Findings, Place, RecordError
from raptor.text.splits import SPLITS, TRAIN, normal_split

EMPTY = "records without text"
HALF_EMPTY = "records with text in one of the two columns only"
HALF_PAIRS = "texts with half of a surrogate pair, which became U+FFFD"
MARKS = "texts that began with a byte order mark, which was dropped"
REPLACED = "texts with U+FFFD, the sign of a letter lost earlier"
CONTROLS = (
    "texts with control characters U+0080 to U+009F; read as cp1252 they may be quotation marks and dashes"
)
UNANSWERED = "records without a completion, from which nothing is learnt"
ZEROS = "texts with zero characters"
ODD = re.compile("[\x00\x80-\x9f\ufeff\ufffd]")
BYTE_ORDER_MARK = "\ufeff"
# As spreadsheets write long numbers, 1.23E+17, and as programs write numbers that once were missing, 123.0.
SCIENTIFIC = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)?[eE]\+[0-9]+")
POINT_ZERO = re.compile(r"([0-9]+)\.0+")
# From here on, floating-point numbers leave whole numbers out.
EXACT = 2**53


@dataclass
class Collected:
    """Columns of all records, in pieces; `codes` index `values`, the distinct labels as they were written."""

    columns: Columns
    findings: Findings
    texts: list[pa.Array] = field(default_factory=list)
    pairs: list[pa.Array] = field(default_factory=list)
    users: list[pa.Array] = field(default_factory=list)
    completions: list[pa.Array] = field(default_factory=list)
    images: list[pa.Array] = field(default_factory=list)
    codes: list[NDArray[np.int32]] = field(default_factory=list)
    splits: list[NDArray[np.int8]] = field(default_factory=list)
    hashes: list[NDArray[np.int64]] = field(default_factory=list)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    origins: list[tuple[str, str, int]] = field(default_factory=list)
    values: dict[Hashable, int] = field(default_factory=dict)
    first: list[Place] = field(default_factory=list)
    class_names: set[tuple[str, ...] | None] = field(default_factory=set)
    _splits_seen: dict[Any, int] = field(default_factory=dict)

    def add(self, batch: Batch, split: str | None) -> None:
        """Take a batch over.

        Args:
            split: of all its records, by the name of their file; a split column goes before it.

        Raises:
            RecordError: a value is not of its column's kind, a split or user is missing, or an image is damaged.
        """
        texts = _texts(batch, batch.text, _name(self.columns, 0), self.findings)
        pairs = None
        if batch.pair is not None:
            pairs = _texts(batch, batch.pair, _name(self.columns, 1), self.findings)
        blank = [not text or text.isspace() for text in texts]
        other = blank if pairs is None else [not text or text.isspace() for text in pairs]
        for row, (first, second) in enumerate(zip(blank, other, strict=True)):
            if first or second:
                self.findings.add(EMPTY if first and second else HALF_EMPTY, batch.place(row))
        self.texts.append(pa.array(texts, pa.string()))
        keys: Iterable[Any] = texts
        if pairs is not None:
            self.pairs.append(pa.array(pairs, pa.string()))
            keys = zip(texts, pairs, strict=True)
        if batch.completion is not None:
            answers = self._answers(batch)
            keys = zip(texts, pairs or texts, answers, strict=True)
        if batch.image is not None:
            images = self._images(batch, batch.image)
            self.images.append(pa.array(images, pa.large_binary()))
            keys = zip(keys, images, strict=True)
        self.hashes.append(np.fromiter(map(hash, keys), dtype=np.int64, count=len(texts)))
        self.numbers.append(np.asarray(batch.numbers, dtype=np.int64))
        self.origins.append((batch.file, batch.unit, len(batch)))
        self.codes.append(self._label_codes(batch))
        self.splits.append(self._split_codes(batch, split))
        if batch.user is not None:
            self.users.append(self._user_names(batch))

    def _answers(self, batch: Batch) -> list[str]:
        """Completions; blank ones are empty, so that all of them mean that there is none."""
        answers = _texts(batch, batch.completion or [], self.columns.completion or "", self.findings)
        answers = [answer if answer.strip() else "" for answer in answers]
        for row, answer in enumerate(answers):
            if not answer:
                self.findings.add(UNANSWERED, batch.place(row))
        self.completions.append(pa.array(answers, pa.string()))
        return answers

    def _images(self, batch: Batch, values: list[Any]) -> list[bytes | None]:
        """Encoded images; None where there is none."""
        column = self.columns.image or ""
        images = [read_image(value, batch.place(row), column) for row, value in enumerate(values)]
        for row, image in enumerate(images):
            if image is None:
                self.findings.add(NO_IMAGE, batch.place(row))
        return images

    def _label_codes(self, batch: Batch) -> NDArray[np.int32]:
        self.class_names.add(batch.class_names)
        if batch.label is None:
            return np.zeros(len(batch), dtype=np.int32)
        codes = _known(self.values, batch.label)
        if codes is None:
            codes = [self._label_code(value, batch, row) for row, value in enumerate(batch.label)]
        return np.asarray(codes, dtype=np.int32)

    def _label_code(self, value: Any, batch: Batch, row: int) -> int:
        key = label_key(value, lambda: batch.place(row), self.columns.label or "")
        if key not in self.values:
            self.values[key] = len(self.values)
            self.first.append(batch.place(row))
        return self.values[key]

    def _split_codes(self, batch: Batch, split: str | None) -> NDArray[np.int8]:
        if batch.split is None:
            return np.full(len(batch), SPLITS.index(split or TRAIN), dtype=np.int8)
        seen = self._splits_seen
        codes = _known(seen, batch.split)
        if codes is None:
            for row, value in enumerate(batch.split):
                if not isinstance(value, str) or value not in seen:
                    seen[value] = self._split_code(value, batch, row)
            codes = [seen[value] for value in batch.split]
        return np.asarray(codes, dtype=np.int8)

    def _split_code(self, value: Any, batch: Batch, row: int) -> int:
        meaning = normal_split(value) if isinstance(value, str) else None
        if meaning is None:
            missing = value is None or (isinstance(value, str) and not value.strip())
            raise RecordError(
                "the split is missing." if missing else "this is no split.",
                place=batch.place(row),
                column=self.columns.split,
                advice=f"Splits are {', '.join(SPLITS)}.",
                value=None if missing else value,
            )
        return SPLITS.index(meaning)

    def _user_names(self, batch: Batch) -> pa.Array:
        names: list[str] = []
        for row, value in enumerate(batch.user or ()):
            whole = int(value) if isinstance(value, float) and value.is_integer() else value
            name = clean_name(str(whole)) if isinstance(whole, str | int) else ""
            # Records of many people under one such word would pass for one person's.
            if not name or name.casefold() in MISSING_WORDS | DOUBTFUL_WORDS:
                raise RecordError(
                    "the user is missing, or is neither a name nor a whole number.",
                    place=batch.place(row),
                    column=self.columns.user,
                    advice="Every record needs the user it belongs to; a word for a missing value is none.",
                    value=value,
                )
            # Long numbers that a program has rounded: several people have become one, and none would be protected.
            if _is_rounded(name) or (isinstance(value, float) and abs(value) >= EXACT):
                raise RecordError(
                    "the user is a rounded number, under which several people may stand.",
                    place=batch.place(row),
                    column=self.columns.user,
                    advice="Write users as text, with all their digits, from where the numbers still are exact.",
                    value=value,
                )
            names.append(name)
        return pa.array(_strings_only(names, "".join(names), batch, self.findings), pa.string())


def _is_rounded(name: str) -> bool:
    """Whether a name is a number that a program has written with fewer digits than it may have had."""
    whole = POINT_ZERO.fullmatch(name)
    return SCIENTIFIC.fullmatch(name) is not None or (whole is not None and int(whole.group(1)[:20]) >= EXACT)


def _known(codes: Mapping[Any, int], values: list[Any]) -> list[int] | None:
    """The codes of the values; None when one is new, or of a kind that cannot be a key.

    Not a `try` around the slow way: an error raised there would carry this `KeyError`, and with it a value,
    into the traceback of a log file.
    """
    try:
        return [codes[value] for value in values]
    except (KeyError, TypeError):
        return None


def _name(columns: Columns, position: int) -> str:
    names = columns.text.split("+") if isinstance(columns.text, str) else columns.text
    return names[position] if position < len(names) else names[0]


def _texts(batch: Batch, values: list[Any], column: str, findings: Findings) -> list[str]:
    """Strings only; what is missing becomes an empty text."""
    texts = values if set(map(type, values)) <= {str} else _as_texts(batch, values, column)
    joined = "".join(texts)
    if (not joined.isascii() or "\x00" in joined) and ODD.search(joined):
        texts = [
            _without_mark(text, batch.place(row), findings) if ODD.search(text) else text
            for row, text in enumerate(texts)
        ]
    return _strings_only(texts, joined, batch, findings)


def _as_texts(batch: Batch, values: list[Any], column: str) -> list[str]:
    texts: list[str] = []
    for row, value in enumerate(values):
        if value is None:
            texts.append("")
        elif isinstance(value, str):
            texts.append(value)
        else:
            kinds = {bool: "true or false", list: "a list", dict: "an object"}
            raise RecordError(
                f"the text is {kinds.get(type(value), 'a number')}, not a string.",
                place=batch.place(row),
                column=column,
                advice="Put it in quotation marks, or choose the column with the text.",
                value=value,
            )
    return texts


def _strings_only(texts: list[str], joined: str, batch: Batch, findings: Findings) -> list[str]:
    """Texts that UTF-8 can hold."""
    try:
        joined.encode("utf-8")
    except UnicodeEncodeError:
        return [_whole_pairs(text, batch.place(row), findings) for row, text in enumerate(texts)]
    return texts


def _whole_pairs(text: str, place: Place, findings: Findings) -> str:
    # Two halves that JSON escapes kept apart join here; a half alone becomes U+FFFD.
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if whole != text:
        findings.add(HALF_PAIRS, place)
    return whole


def _without_mark(text: str, place: Place, findings: Findings) -> str:
    if text.startswith(BYTE_ORDER_MARK):
        findings.add(MARKS, place)
        text = text.lstrip(BYTE_ORDER_MARK)
    if "\ufffd" in text:
        findings.add(REPLACED, place)
    if "\x00" in text:
        findings.add(ZEROS, place)
    if any("\x80" <= letter <= "\x9f" and letter != "\x85" for letter in text):
        findings.add(CONTROLS, place)
    return text
