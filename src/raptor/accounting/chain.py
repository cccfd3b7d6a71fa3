"""Lines of JSON, each bound to the one before it by a hash, so that no line can be changed, moved or left out.

The chain shows that lines belong together and in which order. It is no signature: whoever writes a whole new
chain gets another digest, which is why the certificate names the digest of its ledger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.errors import LedgerError

START = "0" * 64
_FIELDS = frozenset({"index", "kind", "data", "previous", "hash"})

Line = dict[str, Any]


def canonical(value: object) -> bytes:
    """JSON with sorted keys, no spaces and ASCII only: the same bytes for equal values.

    Raises:
        LedgerError: the value holds NaN, infinity or something that is not JSON.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"a value cannot be recorded: {error}") from None
    return text.encode("ascii")


def parse(text: str | bytes, where: str) -> Any:
    """JSON without NaN, infinity and repeated keys.

    Raises:
        LedgerError: says `where` and what is wrong.
    """

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key stands twice")
        return found

    try:
        # Bytes would be taken in any encoding that they might be in.
        written = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(written, parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{where} is not valid JSON: {error}") from None


def seal(index: int, kind: str, data: Mapping[str, Any], previous: str) -> Line:
    """The line number `index` (from 0) with its hash over everything in it and the hash before."""
    body = {"index": index, "kind": kind, "data": dict(data), "previous": previous}
    return {**body, "hash": _digest(body)}


def sealed(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Line]:
    """A whole chain of (kind, data)."""
    lines: list[Line] = []
    for index, (kind, data) in enumerate(entries):
        lines.append(seal(index, kind, data, lines[-1]["hash"] if lines else START))
    return lines


def verify_chain(lines: Sequence[object], where: str) -> list[Line]:
    """`lines` after checking every field, number and hash.

    Raises:
        LedgerError: names the first line, from 1, that is broken, and how.
    """
    if not lines:
        raise LedgerError(f"{where} is empty")
    previous = START
    checked: list[Line] = []
    for index, line in enumerate(lines):
        place = f"line {index + 1} of {where}"
        if not isinstance(line, Mapping) or set(line) != _FIELDS:
            raise LedgerError(f"{place} does not have the fields {', '.join(sorted(_FIELDS))}")
        if not isinstance(line["data"], Mapping) or not isinstance(line["kind"], str):
            raise LedgerError(f"{place} has no kind or no data")
        body = {key: line[key] for key in ("index", "kind", "data", "previous")}
        if line["hash"] != _digest(body):
            raise LedgerError(f"{place} was changed: its content does not have the hash that it states")
        if type(line["index"]) is not int:
            raise LedgerError(f"{place} has the index {line['index']!r}, which is no whole number")
        if line["index"] != index:
            raise LedgerError(f"{place} says that it is line {line['index'] + 1}: lines are missing or moved")
        if line["previous"] != previous:
            raise LedgerError(f"{place} does not follow the line before it: lines are missing or moved")
        previous = line["hash"]
        checked.append(dict(line))
    return checked


def digest(lines: Sequence[Line]) -> str:
    """SHA-256 of the last line, which stands for the whole chain."""
    return str(lines[-1]["hash"])


def read_chain(path: Path) -> list[Line]:
    """The verified lines of a file.

    Raises:
        LedgerError: the file cannot be read, its last line is torn, or a line is broken.
    """
    lines, torn = read_torn(path)
    if torn:
        raise LedgerError(
            f"line {len(lines) + 1} of {path} is torn: writing stopped in the middle of it. What it was to record "
            "may have happened, so it must be charged"
        )
    return lines


def read_torn(path: Path) -> tuple[list[Line], bytes]:
    """The verified lines of a file, and what there is of a last line that was not written to its end.

    Raises:
        LedgerError: the file cannot be read or is empty, or a line is broken.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from None
    if not content:
        raise LedgerError(f"{path} is empty")
    whole, _, torn = content.rpartition(b"\n")
    lines = [
        parse(line, f"line {number} of {path}")
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1)
    ]
    return (verify_chain(lines, str(path)) if lines or not torn else []), torn


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()
