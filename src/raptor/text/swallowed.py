"""Lines that a stray quotation mark has swallowed into one field."""

from __future__ import annotations

from dataclasses import dataclass, field

from raptor.text.problems import Findings, Place, RecordError

SUSPICIOUS = "texts of several lines, of which one reads almost like a record of its own"
KEPT = 1000
FEW = 3


@dataclass
class SwallowedLines:
    """Judge quoted fields that run over several lines.

    A field may hold line breaks. But when an opening quotation mark was meant as text, and another one
    happens to close it lines later, whole records vanish into one field, and the parser sees nothing wrong.
    Then several of the lines, taken alone, have as many fields as the header, and a label that other records
    have, too, written just as there. Of a real text of several lines only one line holds the record's label.
    """

    file: str
    delimiter: str
    width: int
    label_at: int | None
    labels: set[str] = field(default_factory=set)
    suspects: list[tuple[int, list[str | None]]] = field(default_factory=list)

    def look(self, lines: list[str], first: int) -> None:
        """Remember a record of several lines if two of them have as many fields as a record, or more."""
        found = [self._label(line) for line in lines]
        if found.count(None) < len(found) - 1 and len(self.suspects) < KEPT:
            self.suspects.append((first, found))

    def _label(self, line: str) -> str | None:
        """The label that a line would have as a record; None when it cannot be one."""
        cells = line.rstrip("\r\n").split(self.delimiter)
        if len(cells) < self.width or (len(cells) > self.width and self.label_at not in (0, self.width - 1)):
            return None
        if self.label_at is None:
            return ""
        # A text with the delimiter in it gives more fields; a label at an end still stands there.
        return cells[0 if self.label_at == 0 else self.label_at - self.width].strip('"')

    def judge(self, findings: Findings) -> None:
        """Decide once all labels are known.

        Raises:
            RecordError: two lines of a suspect read like records.
        """
        known = {label for label in self.labels if label.strip()}
        if 0 < len(known) < FEW and all(label.isdecimal() for label in known):
            # A small file may have swallowed the only record of a class.
            known |= {str(number) for number in range(min(max(map(int, known)), FEW) + 2)}
        loosely = {label.strip() for label in known}

        def may_be(label: str) -> bool:
            # One word right behind the delimiter, as prose does not have it, may be a class met nowhere else.
            return label.strip() in loosely or (bool(label) and " " not in label)

        for first, found in self.suspects:
            labels = [label for label in found if label is not None]
            if sum(self.label_at is None or label in known for label in labels) > 1:
                last = first + len(found) - 1
                raise RecordError(
                    f"a quotation mark opens here and closes on line {last}, and lines between read like "
                    "records of their own.",
                    place=Place(self.file, first),
                    advice="If the mark is text, put the field in quotation marks and double the mark. If the "
                    "text really reads so, give the records as JSON lines or Parquet.",
                )
            if sum(may_be(label) for label in labels) > 1:
                findings.add(SUSPICIOUS, Place(self.file, first))
