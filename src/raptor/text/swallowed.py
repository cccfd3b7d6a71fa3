"""Lines that a stray quotation mark has swallowed into one field."""

from __future__ import annotations

from dataclasses import dataclass, field

from raptor.text.problems import Findings, Place, RecordError

SUSPICIOUS = "texts of several lines, of which one reads like a record of its own"
KEPT = 1000


@dataclass
class SwallowedLines:
    """Judge quoted fields that run over several lines.

    A field may hold line breaks. But when an opening quotation mark was meant as text, and another one
    happens to close it lines later, whole records vanish into one field, and the parser sees nothing wrong.
    Then the first and the last of the lines, taken alone, have as many fields as the header each, with a
    label that other records have, too. Of a real text of several lines only one of the two can hold the
    record's own label, and the other one practically never looks so.
    """

    file: str
    delimiter: str
    width: int
    label_at: int | None
    labels: set[str] = field(default_factory=set)
    suspects: list[tuple[int, list[str | None]]] = field(default_factory=list)

    def look(self, lines: list[str], first: int) -> None:
        """Remember a record of several lines if some of them have as many fields as a record."""
        found: list[str | None] = []
        for line in lines:
            cells = line.rstrip("\r\n").split(self.delimiter)
            fits = len(cells) == self.width
            label = cells[self.label_at] if fits and self.label_at is not None else ""
            found.append(label.strip().strip('"') if fits else None)
        if any(label is not None for label in found) and len(self.suspects) < KEPT:
            self.suspects.append((first, found))

    def judge(self, findings: Findings) -> None:
        """Decide once all labels are known.

        Raises:
            RecordError: the first and the last line of a suspect read like records.
        """
        known = {label.strip() for label in self.labels}
        numbers = all(_is_number(label) for label in known)
        for first, found in self.suspects:
            likely = [
                label is not None
                and (
                    self.label_at is None
                    or (bool(label) and label in known)
                    or (numbers and _is_number(label))
                )
                for label in found
            ]
            if likely[0] and likely[-1]:
                last = first + len(found) - 1
                raise RecordError(
                    f"a quotation mark opens here and closes on line {last}, and both lines read like records "
                    "of their own.",
                    place=Place(self.file, first),
                    advice="If the mark is text, put the field in quotation marks and double the mark. If the "
                    "text really reads so, give the records as JSON lines or Parquet.",
                )
            if any(likely[1:-1]):
                findings.add(SUSPICIOUS, Place(self.file, first))


def _is_number(label: str) -> bool:
    return label.removeprefix("-").isdecimal()
