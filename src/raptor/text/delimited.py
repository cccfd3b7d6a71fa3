"""CSV and TSV, read so that a broken line stops the reading instead of shifting or swallowing others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from raptor.text.columns import CHUNK, Batch, Columns, Layout
from raptor.text.files import TextForm, text_form, text_lines
from raptor.text.problems import Findings, Place, RecordError
from raptor.text.rows import Dialect, Lines, Row, count_agreeing, parse_rows, wrong_width
from raptor.text.swallowed import SwallowedLines

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
SEPARATOR_LINE = re.compile(r'^"?sep=(.)"?\r?\n?$')
QUOTED = re.compile(r'"((?:[^"]|"")*)"')
BLANK = "lines with nothing in them, left out"
LOOKS_QUOTED = "texts that begin and end with a quotation mark, which is kept"


def read_delimited(
    path: Path, columns: Columns, encoding: str, default: str, findings: Findings
) -> Iterator[Batch]:
    """Records of a CSV or TSV file, in batches.

    Args:
        default: the delimiter that the file's name promises; another one is used when only it separates the
            columns that are asked for.

    Raises:
        RecordError: with file and line, when the columns are not there, when a line has more or fewer fields
            than the header, when a quotation mark is not closed, or when one seems to swallow whole lines.
    """
    form = text_form(path, encoding, findings)
    dialect, layout = _choose_dialect(path, form, columns, default)
    mark = dialect.delimiter
    if mark != default:
        findings.remark(f"The columns of {path} are separated by {DELIMITERS.get(mark, repr(mark))}.")
    if dialect.quoted and dialect.delimiter == "\t":
        findings.remark(f"{path} quotes its fields as CSV files do, and is read so.")
    with text_lines(path, form) as lines:
        source = Lines(lines, protect=form.newline == "\n")
        rows = parse_rows(source, dialect, path)
        next(rows)
        source.recent.clear()
        yield from _batches(rows, source, dialect, layout, path, findings)


def check_header(path: Path, columns: Columns, encoding: str, default: str) -> None:
    """Refuse column names that the header does not have, from the header alone.

    Raises:
        RecordError: no way to split the header yields the columns; see `_choose_dialect`.
    """
    form = text_form(path, encoding, Findings())
    order, skipped = _delimiters(path, form, default)
    failures: list[tuple[int, RecordError]] = []
    for dialect in (Dialect(mark, quoted, skipped=skipped) for mark in order for quoted in (True, False)):
        header: list[str] = []
        try:
            header, _ = _header(path, form, dialect)
            columns.resolve(header, str(path))
            return
        except RecordError as error:
            failures.append((len(header), error))
    raise max(failures, key=lambda failure: failure[0])[1]


def _delimiters(path: Path, form: TextForm, default: str) -> tuple[list[str], int]:
    """Delimiters to try, in this order, and the number of lines before the header."""
    with text_lines(path, form) as lines:
        named = SEPARATOR_LINE.match(next(lines, ""))
    if named:
        return [named.group(1)], 1
    return [default, *(mark for mark in DELIMITERS if mark != default)], 0


def _choose_dialect(path: Path, form: TextForm, columns: Columns, default: str) -> tuple[Dialect, Layout]:
    """The first delimiter that yields the columns; the file name's own is tried first.

    Raises:
        RecordError: none does; the message is about the delimiter that splits the header most.
    """
    order, skipped = _delimiters(path, form, default)
    failures: list[tuple[int, RecordError]] = []
    for delimiter in order:
        quoted = delimiter != "\t" or _quotes_its_fields(path, form, columns.label)
        dialect = Dialect(delimiter, quoted, skipped=skipped)
        header: list[str] = []
        try:
            header, spaced = _header(path, form, dialect)
            layout = columns.resolve(header, str(path))
            return Dialect(delimiter, quoted, spaced, dialect.skipped), layout
        except RecordError as error:
            failures.append((len(header), error))
    raise max(failures, key=lambda failure: failure[0])[1]


def _header(path: Path, form: TextForm, dialect: Dialect) -> tuple[list[str], bool]:
    with text_lines(path, form) as lines:
        row = next(parse_rows(Lines(lines, protect=form.newline == "\n"), dialect, path), None)
    if row is None:
        raise RecordError("the file is empty.", place=path, advice="Give a file with a header and records.")
    names = [name.lstrip("\ufeff") for name in row[0]]
    # `"text", "label"`: a space after the delimiter hides the quotation mark from the parser.
    spaced = dialect.quoted and any(re.fullmatch(r'\s+".*"\s*', name) for name in names)
    return [name.strip().strip('"') for name in names] if spaced else names, spaced


def _quotes_its_fields(path: Path, form: TextForm, label: str | None) -> bool:
    """Whether a tab-separated file was written with CSV quoting.

    Usually such files are not quoted, and a quotation mark is text. A writer that does quote puts every
    field with a quotation mark in quotation marks and doubles those inside. So a header in quotation marks
    settles the matter, and so does a doubled mark where no field breaks the rule. Where one does, it may go on
    behind a tab or a line break: then the records show by their number of fields, and by their labels, which
    of the two readings was meant.
    """
    evidence = False
    with text_lines(path, form) as lines:
        for number, line in enumerate(lines):
            if '"' not in line:
                continue
            cells = line.rstrip("\r\n").split("\t")
            if number == 0 and all(QUOTED.fullmatch(cell.lstrip("\ufeff")) for cell in cells):
                return True
            for cell in cells:
                if '"' in cell:
                    match = QUOTED.fullmatch(cell)
                    if match is None:
                        return _reads_better_quoted(path, form, label)
                    evidence = evidence or '""' in match.group(1)
    return evidence


def _reads_better_quoted(path: Path, form: TextForm, label: str | None) -> bool:
    """Whether only the quoted reading holds together.

    Raises:
        RecordError: both do, and labels tell nothing.
    """
    quoted, plain = (count_agreeing(path, form, Dialect("\t", quoted)) for quoted in (True, False))
    if quoted is None or quoted == plain:
        return False
    if plain is None:
        return True
    # Both readings hold together. Without quoting, every line with a mark has a label that lines without have.
    with text_lines(path, form) as lines:
        header = next(lines).strip("\ufeff\r\n").split("\t")
        if label not in header:
            return False
        sure: set[str] = set()
        doubtful: dict[str, int] = {}
        for number, line in enumerate(lines, start=2):
            cells = line.rstrip("\r\n").split("\t")
            if '"' not in line:
                sure.add(cells[header.index(label)].strip())
            elif len(cells) == len(header):
                doubtful.setdefault(cells[header.index(label)].strip(), number)
    strange = [number for text, number in doubtful.items() if text not in sure]
    if strange:
        raise RecordError(
            "the quotation mark may be text, or may quote a field with a line break.",
            place=Place(str(path), min(strange)),
            advice="Write the file as JSON lines or Parquet, or as CSV with all fields quoted.",
        )
    return False


def _batches(
    rows: Iterator[Row],
    source: Lines,
    dialect: Dialect,
    layout: Layout,
    path: Path,
    findings: Findings,
) -> Iterator[Batch]:
    width, used, file = len(layout.header), layout.used(), str(path)
    text_at, label_at = used["text"], used.get("label", used["text"])
    label_name = layout.header[label_at]
    swallowed = SwallowedLines(file, dialect.delimiter, width, used.get("label"))
    kept: list[list[str]] = []
    numbers: list[int] = []
    blank: list[int] = []

    def batch() -> Batch:
        made = Batch(file, "line", numbers)
        for role, at in used.items():
            setattr(made, role, [row[at] for row in kept])
        if made.label is not None:
            swallowed.labels.update(made.label)
        for index, text in enumerate(made.text):
            # From a quoted file such marks are text for sure, unless a space has hidden them from the parser.
            if '"' in text and (not dialect.quoted or text[0] == " ") and QUOTED.fullmatch(text.strip()):
                findings.add(LOOKS_QUOTED, made.place(index))
        return made

    for fields, first, last in rows:
        if len(fields) != width:
            if not fields or (len(fields) == 1 and not fields[0].strip(" \t\x1a")):
                blank.append(first)
                source.recent.clear()
                continue
            raise wrong_width(len(fields), width, dialect, Place(file, first), last)
        if not fields[text_at] and not any(map(str.strip, fields)):
            blank.append(first)
            source.recent.clear()
            continue
        if fields[label_at] == label_name and fields[text_at] == layout.header[text_at]:
            raise RecordError(
                "the header stands here again.",
                place=Place(file, first),
                advice="Files were joined: remove the line, or give the folder with the single files.",
            )
        if last > first:
            swallowed.look(source.recent, first)
        source.recent.clear()
        if blank:
            findings.add_all(BLANK, (Place(file, number) for number in blank))
            blank.clear()
        kept.append(fields)
        numbers.append(first)
        if len(kept) == CHUNK:
            yield batch()
            kept, numbers = [], []
    if kept:
        yield batch()
    swallowed.judge(findings)
