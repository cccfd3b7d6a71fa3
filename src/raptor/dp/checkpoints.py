"""The private checkpoint of a training that has not ended: one file, whole or not there at all.

It is a safetensors file, which holds numbers and no code; all that is no tensor stands in its metadata as JSON. It
holds the key of the noise, so it is as private as the records, and it is deleted when the training has ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from raptor.accounting.chain import canonical, parse
from raptor.accounting.types import Mode, generator_mode
from raptor.dp.state import StreamState, TrainingState
from raptor.dp.streams import RandomSource
from raptor.errors import CheckpointError, LedgerError, RaptorError

FORMAT = "raptor-checkpoint/1"
FILE = "unfinished.safetensors"
LOCK = "lock"
NEVER = (
    "To give it up, run once with --params training.resume=never: a new run starts and pays a new budget, on top of "
    "what the unfinished one has spent on the same records."
)


@dataclass(frozen=True)
class Checkpoint:
    """A state, the journal that covers it, and what must be the same for the run to go on.

    Attributes:
        state: where the training stands.
        journal: name of the release journal's file.
        length, last: its lines up to this state, and the hash of the last of them.
        identity: data, parameters, code and machine of the run (see `raptor.dp.identity`).
        salt: key of the fingerprint of the private records in `identity`.
    """

    state: TrainingState
    journal: str
    length: int
    last: str
    identity: Mapping[str, Any]
    salt: bytes

    def facts(self) -> dict[str, Any]:
        """All but the tensors, as JSON."""
        state = self.state
        return {
            "format": FORMAT,
            "finished": state.finished,
            "randomness": {"key": state.randomness.key.hex(), "name": state.randomness.name},
            "streams": {name: asdict(stream) for name, stream in state.streams.items()},
            "journal": {"name": self.journal, "length": self.length, "last": self.last},
            "identity": dict(self.identity),
            "salt": self.salt.hex(),
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Checkpoint:
        """The checkpoint of what `facts` gave."""
        source = facts["randomness"]
        secure = generator_mode(source["name"]) is not Mode.SEEDED
        return cls(
            state=TrainingState(
                finished=facts["finished"],
                randomness=RandomSource(bytes.fromhex(source["key"]), source["name"], secure),
                streams={name: StreamState(**stream) for name, stream in facts["streams"].items()},
                tensors=tensors,
            ),
            journal=facts["journal"]["name"],
            length=facts["journal"]["length"],
            last=facts["journal"]["last"],
            identity=facts["identity"],
            salt=bytes.fromhex(facts["salt"]),
        )


class CheckpointStore:
    """A folder with at most one checkpoint, used by one process at a time.

    Guarantee:
        Nothing is released. Folder and file are readable by their owner alone. `save` leaves the old file or
        the new one, whole and on the disk, at whatever moment process or machine stop.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder and keep other processes out until `close`.

        Raises:
            CheckpointError: another process is training with this folder, or it cannot be used.
        """
        self._file = folder / FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CheckpointError(
                f"The folder of private checkpoints {folder} cannot be used: {error.strerror}."
            ) from None
        try:
            _lock(self._lock)
        except OSError:
            os.close(self._lock)
            raise CheckpointError(
                f"Another process is training with the checkpoints in {folder}. Wait until it has ended; two at once "
                "would spend the same budget twice."
            ) from None

    @property
    def file(self) -> Path:
        """Where the checkpoint is, when there is one."""
        return self._file

    def load(self) -> Checkpoint | None:
        """The checkpoint; None when there is none.

        Raises:
            CheckpointError: the file is not whole, or is no checkpoint of this version.
        """
        if not self._file.exists():
            return None
        try:
            return Checkpoint.of(*_read(self._file))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RaptorError) as error:
            raise CheckpointError(
                f"The checkpoint {self._file} of a private training that has not ended is damaged ({error}), so it "
                f"cannot be resumed. Put back a whole copy of the file. {NEVER}"
            ) from None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint by another one; it is on the disk when this returns.

        Raises:
            CheckpointError: the disk refused; the old checkpoint is still there.
        """
        facts = canonical(checkpoint.facts()).decode()
        tensors = {name: value.contiguous() for name, value in checkpoint.state.tensors.items()}
        partial = self._file.with_name(f"{FILE}.partial")
        try:
            partial.unlink(missing_ok=True)
            # Closed to others before anything is in it; safetensors writes into the file that is there.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            save_file(tensors, partial, {"facts": facts, "digest": _digest(facts, tensors)})
            partial.chmod(0o600)
            _sync(partial)
            partial.replace(self._file)
            _sync(self._file.parent)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise CheckpointError(
                f"The private checkpoint {self._file} cannot be written: {error}. Make room on the disk and run the "
                "same command again: the training goes on from its last checkpoint."
            ) from None

    def discard(self) -> None:
        """Delete the checkpoint, and with it the key of the noise."""
        self._file.unlink(missing_ok=True)
        self._file.with_name(f"{FILE}.partial").unlink(missing_ok=True)
        _sync(self._file.parent)

    def discard_if_ended(self, log: Sequence[Mapping[str, Any]]) -> None:
        """Delete the checkpoint when `log`, the lines of an ended training's journal, goes on from it."""
        try:
            found = self.load()
        except CheckpointError:
            # It says so when a training is to go on from it.
            return
        if found is not None and any(line["hash"] == found.last for line in log):
            self.discard()

    def close(self) -> None:
        """Let other processes in."""
        os.close(self._lock)

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    facts = metadata["facts"]
    if _digest(facts, tensors) != metadata["digest"]:
        raise LedgerError("its content does not have the digest that it states")
    parsed = parse(facts, "its metadata")
    if parsed["format"] != FORMAT:
        raise LedgerError(f"it has the format {parsed['format']!r}, this version reads {FORMAT}")
    return parsed, tensors


def _digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over facts and tensors: safetensors alone notices a file that is cut, but no other change."""
    total = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _lock(descriptor: int) -> None:
    """Take the lock, which ends with the process; raises OSError when another process has it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(place: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
