"""A dataset on disk that appears under its name only when it is whole."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kedro.io import AbstractDataset

from raptor.errors import DataError

SaveType = TypeVar("SaveType")
LoadType = TypeVar("LoadType")


def remove(path: Path) -> None:
    """Delete a file or a folder; nothing happens when it is absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def close_to_others(path: Path) -> None:
    """Let only the owner read and write a file or a folder with all it holds."""
    for inside in (path, *path.rglob("*")):
        inside.chmod(0o700 if inside.is_dir() else 0o600)


def replace(partial: Path, target: Path) -> None:
    """Put ``partial`` in the place of ``target``; a folder that stands there is moved aside first."""
    if not target.is_dir():
        partial.replace(target)
        return
    old = target.with_name(f"{target.name}.old")
    remove(old)
    target.rename(old)
    partial.rename(target)
    remove(old)


def shown(path: Path) -> str:
    """A path as it may be shown to others: from the project's folder, where commands run, if it is in there.

    Kedro makes the catalog's paths absolute, and kedro-viz writes what a data set says of itself into its page.
    """
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


class AtomicDataset(AbstractDataset[SaveType, LoadType]):
    """Base of the project's datasets: write to ``<name>.partial`` beside the target, then rename.

    A save that fails removes what it had written, so that no half-written and no forgotten copy of private
    data stays on disk.

    Raises:
        DataError: on save, when the disk is full or may not be written; on load, when nothing is there yet.
    """

    is_optional: ClassVar[bool] = False
    """Whether a run may start without it; `load` then has an answer for a file that is absent."""

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    @property
    def filepath(self) -> Path:
        """Where the data are, or will be."""
        return self._filepath

    @abstractmethod
    def _read(self, path: Path) -> LoadType:
        """Read what ``_write`` wrote."""

    @abstractmethod
    def _write(self, data: SaveType, path: Path) -> None:
        """Write ``data`` to ``path``, which does not exist yet."""

    def load(self) -> LoadType:
        if not self._filepath.exists():
            raise DataError(
                # A run says which stage that is: `raptor.hooks.preflight`.
                f"{self._filepath} is not there yet. `kedro run` makes it."
            )
        return self._read(self._filepath)

    def save(self, data: SaveType) -> None:
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        partial = self._filepath.with_name(f"{self._filepath.name}.partial")
        remove(partial)
        try:
            self._write(data, partial)
            if (self.metadata or {}).get("privacy") == "private":
                close_to_others(partial)
            replace(partial, self._filepath)
        except OSError as error:
            # Libraries raise it without a number when they dislike the data, and not the disk.
            if error.errno is None:
                raise
            raise DataError(
                f"{shown(self._filepath)} cannot be written ({os.strerror(error.errno)}). Nothing half-written is "
                "left: make room or check the permissions, and give the same command again."
            ) from error
        finally:
            remove(partial)

    def _exists(self) -> bool:
        return self._filepath.exists()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": shown(self._filepath)}


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text and wait until it is on the disk."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
