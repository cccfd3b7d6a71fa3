"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCES = Path("src", "raptor")


class FaultError(Exception):
    """A fault cannot be planted, or its tests cannot be run: the list no longer fits the code."""


@dataclass(frozen=True)
class Fault:
    """One change of the code that breaks a promise, and the tests that must notice it.

    Attributes:
        name: what is wrong, in a few words.
        file: below `src/raptor`.
        before: text of the file that occurs in it exactly once.
        after: what is put in its place.
        tests: node ids; at least one of them must fail.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def planted(self, root: Path) -> str:
        """Content of the file with the fault in it.

        Raises:
            FaultError: the text is not in the file exactly once, or would not change.
        """
        content = (root / SOURCES / self.file).read_text(encoding="utf-8")
        count = content.count(self.before)
        if count != 1 or self.before == self.after:
            raise FaultError(f"{self.name}: {self.file} has {count} times, not once: {self.before!r}")
        return content.replace(self.before, self.after)


def in_file(place: str, *names: str) -> tuple[str, ...]:
    """Node ids of tests of one file below `tests`."""
    return tuple(f"tests/{place}::{name}" for name in names)
