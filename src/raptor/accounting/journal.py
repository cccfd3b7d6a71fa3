"""The record of releases, on disk before a release is used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from raptor.accounting.chain import START, Line, canonical, read_chain, seal, verify_chain
from raptor.accounting.facts import END, RUN, RunEnd, RunStart, read_fact
from raptor.accounting.types import Release
from raptor.errors import LedgerError, ParameterError

HEADER = "header"
RELEASE = "release"


class ReleaseJournal:
    """Append-only file of chained JSON lines: a header, then releases, and what the run says of itself.

    Guarantee:
        When `append` has returned, the release is on disk and would survive a crash of process or machine;
        so whatever is computed from a noisy sum after `append` is covered by the journal. Assumes that the
        file system honours fsync.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `create`."""
        self.path = path
        self._descriptor: int | None = descriptor
        self._lines: list[Line] = []

    @classmethod
    def create(cls, path: Path | str, header: Mapping[str, Any]) -> ReleaseJournal:
        """Start a journal in a new file, with `header` as its first line.

        Raises:
            LedgerError: the file exists (spent budget must not be overwritten), cannot be made, or the
                header is not JSON.
        """
        place = Path(path)
        canonical(dict(header))
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise LedgerError(
                f"{place} exists: a journal is never overwritten, it records budget that is spent. "
                "Move it away if it belongs to another model"
            ) from None
        except OSError as error:
            raise LedgerError(f"the journal {place} cannot be made: {error.strerror}") from None
        journal = cls(place, descriptor)
        journal._write(HEADER, header)
        _sync_folder(place.parent)
        return journal

    def append(self, release: Release) -> Line:
        """Record a release; it is on disk when this returns.

        Raises:
            LedgerError: the journal is closed, or the disk refused. Nothing may be released then.
        """
        if not isinstance(release, Release):
            raise ParameterError(f"a journal takes releases, not {type(release).__name__}")
        return self._write(RELEASE, release.to_json())

    def note(self, fact: RunStart | RunEnd) -> Line:
        """Record what the run has checked; it is on disk when this returns."""
        return self._write(RUN if isinstance(fact, RunStart) else END, fact.to_json())

    def lines(self) -> list[Line]:
        """All lines written so far, header first."""
        return list(self._lines)

    def close(self) -> None:
        """Close the file; nothing can be appended afterwards."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ReleaseJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, kind: str, data: Mapping[str, Any]) -> Line:
        if self._descriptor is None:
            raise LedgerError(f"the journal {self.path} is closed")
        line = seal(len(self._lines), kind, data, self._lines[-1]["hash"] if self._lines else START)
        rest = memoryview(canonical(line) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # The line may be on disk in part, so the file must take no other line after it.
            self.close()
            raise LedgerError(f"the journal {self.path} cannot be written: {error.strerror}") from None
        self._lines.append(line)
        return line


def read_journal(path: Path | str) -> tuple[dict[str, Any], list[Release]]:
    """Header and releases of a journal.

    Raises:
        LedgerError: the chain is broken, the last line is torn, or a line is no release; names the line.
    """
    place = Path(path)
    return open_lines(read_chain(place), str(place))


def open_lines(lines: Sequence[object], where: str) -> tuple[dict[str, Any], list[Release]]:
    """Header and releases of a journal's lines, verified.

    Raises:
        LedgerError: see `read_journal`.
    """
    checked = verify_chain(lines, where)
    if checked[0]["kind"] != HEADER:
        raise LedgerError(f"line 1 of {where} is no header")
    releases = []
    for number, line in enumerate(checked[1:], start=2):
        place = f"line {number} of {where}"
        if line["kind"] in (RUN, END):
            read_fact(line["kind"], line["data"], place)
            continue
        if line["kind"] != RELEASE:
            raise LedgerError(f"{place} is no release")
        try:
            releases.append(Release.from_json(line["data"], place))
        except ParameterError as error:
            raise LedgerError(f"{place} is no valid release: {error}") from None
    return dict(checked[0]["data"]), releases


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
