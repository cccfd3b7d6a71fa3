"""Lines of CSV and TSV files to fields, with the numbers of the lines.

The parser is the standard library's `csv` in strict mode; `docs/decisions/0003-reading-records.md` says why.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from raptor.text.files import TextForm, text_lines
from raptor.text.problems import Place, RecordError

# A carriage return inside a line belongs to the text, but the parser takes it for a line end. It travels as
# two noncharacters, which no text may hold.
CARRIAGE_RETURN = "\ufdd0\ufdd1"
LONE_CARRIAGE_RETURN = re.compile(r"\r(?!\n|\Z)")
# A longer field is taken for a quotation mark that never closes.
LONGEST_FIELD = 1 << 24

# Fields, first line, last line.
Row = tuple[list[str], int, int]


@dataclass(frozen=True)
class Dialect:
    """How lines become fields."""

    delimiter: str
    quoted: bool = True
    spaced: bool = False
    skipped: int = 0


@dataclass
class Lines:
    """Lines on their way to the parser; remembers those of the record that is being read."""

    source: Iterator[str]
    protect: bool
    recent: list[str] = field(default_factory=list)
    returns: bool = False

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            self.recent.append(line)
            if self.protect and "\r" in line and LONE_CARRIAGE_RETURN.search(line):
                self.returns = True
                yield LONE_CARRIAGE_RETURN.sub(CARRIAGE_RETURN, line)
            else:
                yield line

    def restore(self, fields: list[str]) -> list[str]:
        """The fields with their carriage returns."""
        if not self.returns:
            return fields
        self.returns = False
        return [text.replace(CARRIAGE_RETURN, "\r") for text in fields]


def parse_rows(source: Lines, dialect: Dialect, path: Path) -> Iterator[Row]:
    """Fields and line numbers of every record; the header, too. Blank lines are rows without fields."""
    lines = iter(source)
    for _ in range(dialect.skipped):
        next(lines, None)
    if not dialect.quoted:
        for number, line in enumerate(lines, start=dialect.skipped + 1):
            bare = line.rstrip("\n").removesuffix("\r") if source.protect else line.rstrip("\r")
            yield source.restore(bare.split(dialect.delimiter) if bare else []), number, number
        return
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(lines, delimiter=dialect.delimiter, strict=True, skipinitialspace=dialect.spaced)
    first = dialect.skipped + 1
    try:
        for fields in reader:
            last = dialect.skipped + reader.line_num
            yield source.restore(fields), first, last
            first = last + 1
    except csv.Error as error:
        raise _broken_quotes(error, path, first, dialect.skipped + reader.line_num) from None


def _broken_quotes(error: csv.Error, path: Path, first: int, last: int) -> RecordError:
    reason = str(error)
    if "field limit" in reason and last == first:
        return RecordError(
            f"a field has more than {LONGEST_FIELD:,} characters.",
            place=Place(str(path), first),
            advice="A record is one text and its label: check that lines end where records do.",
        )
    if "unexpected end" in reason or "field limit" in reason:
        problem = "a quotation mark opens a field here and is not closed."
    elif "expected after" in reason:
        until = f" that starts here and breaks on line {last}" if last > first else ""
        problem = f"a quoted field{until} goes on after its closing quotation mark."
    else:
        problem = "this record breaks the rules of CSV files."
    return RecordError(
        problem,
        place=Place(str(path), first),
        advice="Double each quotation mark that is text and put the field in quotation marks; in a "
        "tab-separated file (.tsv) quotation marks need nothing.",
    )


def count_agreeing(path: Path, form: TextForm, dialect: Dialect) -> int | None:
    """Number of records, the header among them, if all have as many fields as it has; None if not."""
    with text_lines(path, form) as lines:
        try:
            rows = parse_rows(Lines(lines, form.newline == "\n"), dialect, path)
            widths = Counter(len(fields) for fields, _, _ in rows if fields)
        except RecordError:
            return None
    return widths.total() if len(widths) == 1 else None


def wrong_width(found: int, width: int, dialect: Dialect, place: Place, last: int) -> RecordError:
    until = f" (it ends on line {last})" if last > place.number else ""
    advice = "A text that holds the separator or a line break must stand in quotation marks."
    if not dialect.quoted:
        advice = "A text in a tab-separated file can hold no tab and no line break."
    return RecordError(
        f"the record has {found} fields where the header has {width}{until}.", place=place, advice=advice
    )
