"""Parsed docstrings, kept between runs. They are public text; nothing private is ever cached here.

The folder is `$RAPTOR_CACHE`, else `raptor` in the user's cache folder. A file's name is a digest of the source
files' names, sizes and times and of the parsing code, so another version of a package makes another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Rows = list[tuple[str, str]]
_KEPT = 8


def folder() -> Path:
    """Where the files are."""
    given = os.environ.get("RAPTOR_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "raptor"


def key(files: Mapping[str, Sequence[Path]], code: Sequence[Path]) -> str:
    """Digest of everything that the parsed texts depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for path in code:
        digest.update(path.read_bytes())
    for name, paths in files.items():
        for path in paths:
            stat = path.stat()
            digest.update(f"{name}\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def load(name: str) -> Rows | None:
    """Texts with their libraries, or None when they are not kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = folder() / f"docstrings-{name}.parquet"
    try:
        table = pq.read_table(place)
    except (OSError, pa.ArrowInvalid):
        # Absent, or damaged by something else: the texts are parsed again and give the same.
        return None
    return list(zip(table["text"].to_pylist(), table["library"].to_pylist(), strict=True))


def save(name: str, rows: Rows) -> None:
    """Keep the texts; a folder that cannot be written only costs the next run the time to parse again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = folder() / f"docstrings-{name}.parquet"
    partial = place.with_suffix(f".{os.getpid()}.partial")
    table = pa.table({"text": [text for text, _ in rows], "library": [library for _, library in rows]})
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, partial)
        partial.replace(place)
        kept = sorted(folder().glob("docstrings-*.parquet"), key=lambda file: -file.stat().st_mtime_ns)
        for old in kept[_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
