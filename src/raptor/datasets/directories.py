"""Model directories, and the folder in which releases are recorded while a model is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kedro.io import AbstractDataset

from raptor.datasets.atomic import AtomicDataset, shown
from raptor.errors import DataError


class SavesToDirectory(Protocol):
    """What can be saved as a model directory."""

    def save_to(self, directory: Path) -> None:
        """Write all files into ``directory``, which exists and is empty."""


class PretrainedDirectory(AtomicDataset[SavesToDirectory, Path]):
    """A Hugging Face model directory: load returns its path, save calls ``data.save_to(directory)``.

    Nodes get a path and not a model, so that nothing heavy is imported before a node needs it.
    """

    def _read(self, path: Path) -> Path:
        if not (path / "config.json").is_file():
            raise DataError(f"{path} is not a model directory: it has no config.json. Run its stage again.")
        return path

    def _write(self, data: SavesToDirectory, path: Path) -> None:
        path.mkdir()
        data.save_to(path)

    def _exists(self) -> bool:
        return (self.filepath / "config.json").is_file()


class PrivateFolder(AbstractDataset[None, Path]):
    """A folder that a node writes to while it runs: load makes it, closed to others, and returns its path.

    Kedro saves a node's outputs only at its end, which is too late for what has to survive a crash; hence the
    folder is an input of the node.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    @property
    def filepath(self) -> Path:
        """The folder."""
        return self._filepath

    def load(self) -> Path:
        self._filepath.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._filepath.chmod(0o700)
        return self._filepath

    def save(self, data: None) -> None:
        raise DataError(f"{shown(self._filepath)} is written by the node that reads it, while it runs.")

    def _exists(self) -> bool:
        return True

    def _describe(self) -> dict[str, Any]:
        return {"filepath": shown(self._filepath)}


class ReleaseJournalStore(PrivateFolder):
    """The folder of the release journals.

    The training node writes each release to a journal in it, and to the disk, before the noisy sum is used, so
    that a run that is killed leaves a record of what it has spent.
    """


class CheckpointFolder(PrivateFolder):
    """The folder of the private checkpoint of a training that has not ended (see `raptor.dp.checkpoints`)."""


class ResultsFolder(PrivateFolder):
    """The folder of results that are kept one by one, so that a run that is cut off goes on where it was."""
