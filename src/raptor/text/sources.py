"""Where records come from: a file, a folder of files, a hub data set, or the embedded docstrings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from raptor.text.columns import Batch, Columns, closest
from raptor.text.delimited import check_header, read_delimited
from raptor.text.files import arrow_kind, first_bytes, packed, readable, unchanged
from raptor.text.hub import hub_parts
from raptor.text.jsonfiles import check_first_keys, read_json
from raptor.text.problems import Findings, RecordError
from raptor.text.splits import split_of_name
from raptor.text.tables import (
    check_arrow,
    check_parquet,
    in_memory,
    is_saved_dataset,
    read_arrow,
    read_parquet,
    saved_dataset_parts,
)

EMBEDDED = "embedded"
PACKED = (".gz", ".bz2", ".xz")
KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".psv": "psv",
    ".txt": "txt",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
DELIMITED = {"csv": ",", "tsv": "\t", "psv": "|", "txt": "\t"}
# Papers and marks that lie beside data and hold no records.
IGNORED = re.compile(
    r"(?i)\..*|.*\.(md|rst|sha256|md5)|(readme|licen[cs]e|datasheet|sha256sums)(\.(txt|json))?"
    r"|_(success|metadata|common_metadata|started.*|committed.*)"
)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")

Reader = Callable[[Columns, str, Findings], Iterator[Batch]]
Check = Callable[[Columns, str], None]


@dataclass(frozen=True)
class Part:
    """One file or table of a source; `split` is what its name says, if it says so.

    `check` refuses columns that are not there, from the header or schema alone; None where that costs as much as
    reading.
    """

    name: str
    split: str | None
    read: Reader = field(repr=False)
    check: Check | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Source:
    """A source whose kind is known: `kind` is a kind of file, `hub` or `embedded`."""

    kind: str
    parts: tuple[Part, ...]


def open_source(source: str, limit: int | None = None) -> Source:
    """Find out what a source is.

    A file goes by its name's ending, or by its content where that is Parquet or Arrow. A folder holds files
    of one kind, or is one that ``datasets.save_to_disk`` wrote. What is neither may be a hub data set,
    ``owner/name`` or ``owner/name:configuration``.

    Args:
        source: path, hub name, or ``embedded``.
        limit: records taken of the embedded docstrings.

    Raises:
        RecordError: there is nothing of that name (with the closest), or it cannot be used.
    """
    if source == EMBEDDED:
        read = partial(_read_embedded, limit)
        return Source(EMBEDDED, (Part("the embedded docstrings", None, read, _check_embedded),))
    if re.match(r"(?i)(https?|ftp|s3|gs)://", source):
        raise RecordError(
            "the source is a web address.", place=source, advice="Download the file and give its path."
        )
    path = Path(source).expanduser()
    with readable(path):
        if path.is_dir():
            return _folder(path)
        if path.exists() or path.is_symlink():
            kind = _kind(path)
            return Source(kind, (_file_part(path, kind, None),))
    if _looks_like_path(source) or not HUB_NAME.fullmatch(source):
        raise _missing(path)
    tables = hub_parts(source, near=_near(path))
    splits = _known_splits([name for name, _ in tables], source)
    parts = [
        Part(f"{source} ({name})", splits[name], partial(_read_table, table, f"{source} ({name})"))
        for name, table in tables
    ]
    return Source("hub", tuple(parts))


def check_source(source: str, columns: Columns, encoding: str) -> None:
    """Refuse a source that is not there, and column names that it does not have, before its records are read.

    Of tables only headers and schemas are looked at, of JSON the keys of the first record. A hub data set is not
    checked, as it would have to be downloaded.

    Raises:
        ParameterError: there is no such encoding.
        RecordError: as reading would raise it.
    """
    path = Path(source).expanduser()
    with readable(path):
        on_disk = path.exists() or path.is_symlink()
    if not (on_disk or source == EMBEDDED or _looks_like_path(source)) and HUB_NAME.fullmatch(source):
        return
    for part in open_source(source).parts:
        if part.check is not None:
            part.check(columns, encoding)


def _known_splits(names: list[str | None], source: str | Path) -> dict[str | None, str | None]:
    """The meaning of split names; a data set that has one split alone may call it anything.

    Raises:
        RecordError: one of several names means no split.
    """
    meanings = {name: split_of_name(name) if name else None for name in names}
    unknown = [name for name, split in meanings.items() if split is None]
    if len(meanings) == 1:
        return dict.fromkeys(meanings)
    if unknown:
        raise RecordError(
            "a split of the data set is neither train, validation, test nor unlabelled.",
            place=source,
            advice="Save the splits you want under these names, or as files.",
            value=unknown[0],
        )
    return meanings


def _looks_like_path(source: str) -> bool:
    suffixes = [suffix.lower() for suffix in Path(source).suffixes]
    has_kind = any(suffix in KINDS or suffix in (".xlsx", ".xls", ".zip", ".txt") for suffix in suffixes)
    return has_kind or source.startswith((".", "/", "~")) or "\\" in source or source.count("/") > 1


def _near(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    name = closest(path.name, names)
    return str(path.parent / name) if name is not None else None


def _missing(path: Path) -> RecordError:
    near = _near(path)
    advice = (
        f"The closest is {near}." if near is not None else "Check the path; it starts at the current folder."
    )
    if not path.parent.is_dir():
        advice = f"There is no folder {path.parent} either."
    return RecordError("there is no such file or folder.", place=path, advice=advice)


def _kind(path: Path) -> str:
    """The kind of a file.

    Raises:
        RecordError: it is of no kind that can be read.
    """
    content = arrow_kind(first_bytes(path))
    if content is not None:
        if packed(path):
            raise RecordError(
                f"the {content.capitalize()} file is packed.",
                place=path,
                advice="Unpack it; such files pack their columns themselves.",
            )
        return content
    kind = _named_kind(path)
    if kind is None or kind in ("parquet", "arrow"):
        known = ", ".join(sorted(KINDS))
        problem = (
            f"it is not a {kind} file."
            if kind
            else f"files ending in {path.suffix!r} are not read."
            if path.suffix
            else "the file's name has no ending that says what it is."
        )
        raise RecordError(
            problem, place=path, advice=f"Known endings are {known}; each may be packed with gzip."
        )
    return kind


def _named_kind(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return KINDS.get(suffixes[-1]) if suffixes else None


def _file_part(path: Path, kind: str, split: str | None) -> Part:
    read: Any = {
        "json": partial(_read_text, read_json, path),
        "parquet": partial(_read_typed, read_parquet, path),
        "arrow": partial(_read_typed, read_arrow, path),
    }.get(kind) or partial(_read_text, partial(_delimited, DELIMITED.get(kind, ",")), path)
    check: Any = {
        "json": partial(_check_json, path),
        "parquet": partial(_check_typed, check_parquet, path),
        "arrow": partial(_check_typed, check_arrow, path),
    }.get(kind) or partial(_check_delimited, DELIMITED.get(kind, ","), path)
    return Part(str(path), split, read, check)


def _check_json(path: Path, columns: Columns, encoding: str) -> None:
    with readable(path):
        check_first_keys(path, columns, encoding)


def _check_delimited(default: str, path: Path, columns: Columns, encoding: str) -> None:
    with readable(path):
        check_header(path, columns, encoding, default)


def _check_typed(
    check: Callable[[Path, Columns], None], path: Path, columns: Columns, _encoding: str
) -> None:
    check(path, columns)


def _check_embedded(columns: Columns, _encoding: str) -> None:
    from raptor.text.docstrings import PRIVATE_COLUMNS

    columns.resolve(PRIVATE_COLUMNS, EMBEDDED)


def _folder(folder: Path) -> Source:
    if is_saved_dataset(folder):
        saved = saved_dataset_parts(folder)
        splits = _known_splits([name for name, _ in saved], folder)
        parts = [
            Part(
                str(file),
                splits[name],
                partial(_read_typed, read_arrow, file),
                partial(_check_typed, check_arrow, file),
            )
            for name, files in saved
            for file in files
        ]
        return Source("arrow", tuple(parts))
    entries = sorted(entry for entry in folder.iterdir() if not IGNORED.fullmatch(entry.name))
    inner = [entry for entry in entries if entry.is_dir()]
    if inner:
        raise RecordError(
            f"the folder holds a folder, {inner[0].name}.",
            place=folder,
            advice="Put all files of records into one folder, or give that folder.",
        )
    if not entries:
        raise RecordError("the folder holds no files of records.", place=folder, advice="Give another one.")
    kinds = {entry: _kind(entry) for entry in entries}
    if len(set(kinds.values())) > 1:
        first = {kind: entry.name for entry, kind in reversed(kinds.items())}
        listed = ", ".join(f"{name} is {kind}" for kind, name in sorted(first.items()))
        raise RecordError(
            f"the folder mixes kinds of files: {listed}.",
            place=folder,
            advice="Give one file, or a folder with files of one kind.",
        )
    by_file = {entry: split_of_name(_stem(entry)) for entry in entries}
    named = [entry for entry, split in by_file.items() if split is not None]
    if named and len(named) < len(entries):
        odd = next(entry for entry in entries if by_file[entry] is None)
        raise RecordError(
            f"{named[0].name} is named after a split, but {odd.name} is not.",
            place=folder,
            advice="Name every file after its split (train, validation, test), or none.",
        )
    parts = [_file_part(entry, kinds[entry], by_file[entry]) for entry in entries]
    return Source(next(iter(kinds.values())), tuple(parts))


def _stem(path: Path) -> str:
    return path.name.split(".", 1)[0]


def _delimited(
    default: str, path: Path, columns: Columns, encoding: str, findings: Findings
) -> Iterator[Batch]:
    return read_delimited(path, columns, encoding, default, findings)


def _read_text(
    reader: Callable[..., Iterator[Batch]], path: Path, columns: Columns, encoding: str, findings: Findings
) -> Iterator[Batch]:
    with unchanged(path):
        yield from reader(path, columns, encoding, findings)


def _read_typed(
    reader: Callable[..., Iterator[Batch]], path: Path, columns: Columns, encoding: str, _findings: Findings
) -> Iterator[Batch]:
    yield from reader(path, columns, encoding)


def _read_table(
    table: Any, name: str, columns: Columns, encoding: str, _findings: Findings
) -> Iterator[Batch]:
    yield from in_memory(table, columns, name, encoding)


def _read_embedded(
    limit: int | None, columns: Columns, encoding: str, _findings: Findings
) -> Iterator[Batch]:
    from raptor.text.docstrings import private_docstrings

    yield from in_memory(private_docstrings(limit), columns, "embedded", encoding)
