"""Write a file, read it, look at what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raptor.text.columns import Columns
from raptor.text.records import Records, Rules, read_records


def read(path: Path, **options: Any) -> Records:
    """The records of a file; `options` are column roles and rules."""
    roles = {"text": "text", "label": "label"}
    roles |= {
        role: options.pop(role) for role in ("text", "label", "split", "user", "image") if role in options
    }
    return read_records(str(path), Columns(**roles), Rules(**options))


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(records: Records) -> list[str]:
    return records.table["text"].to_pylist()


def warned(records: Records, *words: str) -> bool:
    """Whether one warning holds all the words."""
    return any(all(word in warning for word in words) for warning in records.report.warnings)
