"""The record of releases, on disk before a release is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from raptor.accounting.chain import START, Line, canonical, read_chain, read_torn, seal, verify_chain
from raptor.accounting.facts import END, RUN, RunEnd, RunStart, read_fact
from raptor.accounting.types import Release
from raptor.errors import LedgerError, ParameterError, ReplayError

HEADER = "header"
RELEASE = "release"
# How lines of a release, and of `RunStart` and `RunEnd`, begin: their keys are sorted.
_RELEASE_STARTS = b'{"data":{"denominator"'
_NOTE_STARTS = (b'{"data":{"code"', b'{"data":{"keystreams"')


class ReleaseJournal:
    """Append-only file of chained JSON lines: a header, then releases, and what the run says of itself.

    Guarantee:
        When `append` has returned, the release is on disk and would survive a crash of process or machine;
        so whatever is computed from a noisy sum after `append` is covered by the journal. Assumes that the
        file system honours fsync.
        A run that resumes makes releases again that the journal has. Each must be the very one that stands
        there, with the digest of the stream's release before it; then it is not written, nor charged, again.
        No release is ever taken out: a line that was not written to its end is completed in its place.
    """

    def __init__(self, path: Path, descriptor: int, lines: Sequence[Line] = (), torn: bytes = b"") -> None:
        """Use `create` or `resume`."""
        self.path = path
        self._descriptor: int | None = descriptor
        self._lines: list[Line] = list(lines)
        # Lines that this process stands behind; releases after them are to be made again.
        self._made = len(self._lines)
        self._torn = torn
        self._start: RunStart | None = None

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

    @classmethod
    def resume(cls, path: Path | str, length: int, last: str) -> ReleaseJournal:
        """Open the journal of a run that was killed, where a checkpoint left it.

        Args:
            length: lines, with the header, that the checkpoint covers; the releases after them are to be made
                again.
            last: hash of the last of these.

        Raises:
            LedgerError: the journal is broken, or is not the one that the checkpoint covers.
        """
        place = Path(path)
        lines, torn = read_torn(place)
        if not 0 < length <= len(lines) or lines[length - 1]["hash"] != last:
            raise LedgerError(
                f"{place} is not the journal that belongs to the checkpoint: line {length} is missing or another one"
            )
        open_lines(lines, str(place))
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise LedgerError(f"the journal {place} cannot be written: {error.strerror}") from None
        if _is_note(torn):
            # It stands for no release, and this process writes its own.
            os.ftruncate(descriptor, place.stat().st_size - len(torn))
            torn = b""
        journal = cls(place, descriptor, lines, torn)
        journal._made = length
        return journal

    @property
    def is_replaying(self) -> bool:
        """Whether there are releases that this process has still to make again."""
        return bool(self._torn) or any(line["kind"] == RELEASE for line in self._lines[self._made :])

    @property
    def place(self) -> tuple[int, str]:
        """Number of lines that this process stands behind, and the hash of the last of them."""
        return self._made, str(self._lines[self._made - 1]["hash"])

    def append(self, release: Release) -> Line:
        """Record a release; it is on disk when this returns.

        Raises:
            LedgerError: the journal is closed, or the disk refused. Nothing may be released then.
            ReplayError: the journal has another release here. The same noise may not be used again then.
        """
        if not isinstance(release, Release):
            raise ParameterError(f"a journal takes releases, not {type(release).__name__}")
        if self._descriptor is None:
            raise LedgerError(f"the journal {self.path} is closed")
        found = next((line for line in self._lines[self._made :] if line["kind"] == RELEASE), None)
        if found is None:
            if not self._torn:
                self._write_start()
            return self._write(RELEASE, release.to_json())
        if canonical(found["data"]) != canonical(release.to_json()):
            raise _other_release(found["index"] + 1, self.path)
        self._made = found["index"] + 1
        return found

    @property
    def has_releases(self) -> bool:
        """Whether anything was charged."""
        return bool(self._torn) or any(line["kind"] == RELEASE for line in self._lines)

    def rewind(self, length: int, last: str) -> None:
        """Go back to a checkpoint in the middle of a run: the releases after it are to be made again.

        Args:
            length, last: see `resume`.

        Raises:
            LedgerError: this journal is not the one that the checkpoint covers.
        """
        if not 0 < length <= len(self._lines) or self._lines[length - 1]["hash"] != last:
            raise LedgerError(
                f"{self.path} is not the journal that belongs to the checkpoint: line {length} is another one"
            )
        self._made = length

    def keep_rest(self, torn: Callable[[int], Release | None]) -> list[Release]:
        """Leave releases that could not be made again as they are: charged, and their results lost.

        A line that was not written to its end is charged as a whole one.

        Args:
            torn: the release that stood to be made after so many of those left; None where there was none.

        Returns:
            All releases of the journal.
        """
        if self._torn:
            left = sum(line["kind"] == RELEASE for line in self._lines[self._made :])
            self._replace_torn(torn(left))
        self._made = len(self._lines)
        return open_lines(self._lines, str(self.path))[1]

    def note(self, fact: RunStart | RunEnd) -> None:
        """Record what the run has checked; it is on disk when this returns.

        What a process that resumes says of its start is written before its first new release, after those that
        it makes again. A run ends once.
        """
        if isinstance(fact, RunStart):
            self._start = fact
            if self._made == len(self._lines) and not self._torn:
                self._write_start()
        elif self._lines[-1]["kind"] != END:
            self._write_start()
            self._write(END, fact.to_json())

    def _write_start(self) -> None:
        if self._start is not None:
            self._write(RUN, self._start.to_json())
            self._start = None

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
        content = canonical(line) + b"\n"
        if not content.startswith(self._torn):
            raise _other_release(len(self._lines) + 1, self.path)
        rest = memoryview(content)[len(self._torn) :]
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # The line may be on disk in part, so the file must take no other line after it.
            self.close()
            raise LedgerError(f"the journal {self.path} cannot be written: {error.strerror}") from None
        self._torn = b""
        self._lines.append(line)
        self._made = len(self._lines)
        return line

    def _replace_torn(self, release: Release | None) -> None:
        """Put a whole line in the place of a piece of one: in a new file, so that a crash leaves old or new."""
        if release is not None:
            last = self._lines[-1]["hash"]
            self._lines.append(seal(len(self._lines), RELEASE, release.to_json(), last))
        content = b"".join(canonical(line) + b"\n" for line in self._lines)
        self.close()
        partial = self.path.with_name(f"{self.path.name}.partial")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)
        _sync_folder(self.path.parent)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._torn = b""


def _is_note(torn: bytes) -> bool:
    """Whether a piece of a line can be of a note, and not of a release."""
    fits = any(start[: len(torn)] == torn[: len(start)] for start in _NOTE_STARTS)
    return fits and not _RELEASE_STARTS.startswith(torn)


def _other_release(number: int, path: Path) -> ReplayError:
    return ReplayError(
        f"line {number} of {path} is another release than the one that was made again in its place"
    )


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
