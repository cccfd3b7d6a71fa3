"""The folder that the run and the processes of its training share: what is to be trained, and on what.

It holds private records and keys of keystreams. So it is readable by its owner alone, lies in the folder of private
checkpoints, and is removed when the training has ended or was given up. A run that was killed leaves it; the next one
removes it before it begins.
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import raptor
from raptor.accounting.plan import PrivacyPlan, read_plan
from raptor.code_version import source_digest
from raptor.dp.config import TrainingConfig
from raptor.dp.records import EncodedImages, EncodedRecords
from raptor.dp.streams import RandomSource
from raptor.errors import LaunchError
from raptor.launch.parcels import read_facts, read_parcel, write_bytes, write_facts, write_parcel

_PREFIX = "job-"
_TASK, _RECORDS = "task.json", "records.safetensors"
_PACKAGE = "raptor."


@dataclass(frozen=True)
class Recipe:
    """How every process makes the untrained model: a function of this package, and what it is given.

    Attributes:
        builder: `module:name` of the function.
        arguments: JSON values.
    """

    builder: str
    arguments: Sequence[Any]

    @classmethod
    def of(cls, builder: Callable[..., nn.Module], *arguments: Any) -> Recipe:
        """The recipe that calls `builder` with these arguments; paths become absolute."""
        given = [str(value.absolute()) if isinstance(value, Path) else value for value in arguments]
        return cls(f"{builder.__module__}:{builder.__qualname__}", given)

    def build(self) -> Any:
        """The model.

        Raises:
            LaunchError: the function is none of this package.
        """
        module, _, name = self.builder.partition(":")
        if not module.startswith(_PACKAGE):
            raise LaunchError(f"A model is made by {self.builder}, which is no function of {_PACKAGE[:-1]}.")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found(*self.arguments)


def own_code() -> str:
    """Digest of the code that this process runs."""
    return source_digest(Path(raptor.__file__).parent)


@dataclass(frozen=True)
class Task:
    """What a group of processes is to train.

    Attributes:
        size: number of processes.
        layout: `replicated` or `sharded`.
        threads: CPU threads of each process.
        host, parent: where the run waits, and its process, so that the others end when it has.
        code: digest of the run's code, which the ledger names as what has trained.
    """

    plan: PrivacyPlan
    config: TrainingConfig
    recipe: Recipe
    size: int
    layout: str
    threads: int
    host: str
    parent: int
    code: str = field(default_factory=own_code)

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_json(),
            "config": self.config.model_dump(mode="json"),
            "recipe": {"builder": self.recipe.builder, "arguments": list(self.recipe.arguments)},
            "size": self.size,
            "layout": self.layout,
            "threads": self.threads,
            "host": self.host,
            "parent": self.parent,
            "code": self.code,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        return cls(
            plan=read_plan(data["plan"]),
            config=TrainingConfig.model_validate(data["config"]),
            recipe=Recipe(**data["recipe"]),
            size=data["size"],
            layout=data["layout"],
            threads=data["threads"],
            host=data["host"],
            parent=data["parent"],
            code=data["code"],
        )

    def require_own(self, size: int) -> None:
        """Refuse to be one of so many processes of this training.

        Raises:
            LaunchError: it is of another number, or its run has other code, which is not what the ledger would name.
        """
        if size != self.size:
            raise LaunchError(
                f"This training is one of {self.size} processes, but {size} were started. Use the command that the run "
                "has printed, or set launch.processes and launch.machines."
            )
        if self.code != own_code():
            raise LaunchError(
                "A process of the training has other code of raptor than the run, whose ledger would name what has not "
                "trained. Install the same version on all machines (launch.python), and run the same command again."
            )


def _tensors(records: EncodedRecords) -> dict[str, Tensor]:
    """Every tensor of the records by its name; those of pictures as `images.NAME`.

    Raises:
        LaunchError: records hold something that could not be handed over.
    """
    found: dict[str, Tensor] = {}
    for name, value in ((each.name, getattr(records, each.name)) for each in fields(records)):
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, EncodedImages):
            found |= {f"{name}.{each.name}": getattr(value, each.name) for each in fields(value)}
        elif value is not None:
            raise LaunchError(
                f"Records with {name} cannot be handed to other processes: use launch.backend=inline."
            )
    return found


@dataclass(frozen=True)
class Job:
    """The shared folder of one training."""

    folder: Path

    @classmethod
    def create(cls, parent: Path, task: Task, records: EncodedRecords) -> Job:
        """A new folder with task and records; those that killed runs have left are removed.

        Args:
            parent: folder of private checkpoints, whose lock the caller holds: so no other job in it is in use.
        """
        cls.remove_left(parent)
        job = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute())
        write_parcel(job.folder / _RECORDS, {}, _tensors(records))
        write_facts(job.folder / _TASK, task.to_json())
        return job

    @staticmethod
    def remove_left(parent: Path) -> None:
        """Remove what killed runs have left: private records, and keys that nobody took."""
        for left in parent.glob(f"{_PREFIX}*"):
            shutil.rmtree(left)

    def task(self) -> Task:
        """What is to be trained.

        Raises:
            LaunchError: the folder is not there, as when its run has ended.
        """
        try:
            return Task.from_json(read_facts(self.folder / _TASK))
        except FileNotFoundError:
            raise LaunchError(
                f"{self.folder} holds no training: its run has ended, or this machine does not see its folder. Start "
                "the run again and use the command that it prints."
            ) from None

    def records(self) -> EncodedRecords:
        _, tensors = read_parcel(self.folder / _RECORDS)
        own = {name: value for name, value in tensors.items() if "." not in name}
        images = {name.partition(".")[2]: value for name, value in tensors.items() if "." in name}
        return EncodedRecords(**own, images=EncodedImages(**images) if images else None)

    def hand_over_keys(self, name: str, source: RandomSource, ranks: int) -> None:
        """Lay down the key of each of the first `ranks` processes, for it alone to take."""
        for rank in range(ranks):
            write_bytes(self._key(name, rank), source.member(rank).key)

    def take_key(self, name: str, rank: int) -> bytes:
        """The key of one process, which is gone from the disk afterwards."""
        place = self._key(name, rank)
        key = place.read_bytes()
        place.unlink()
        return key

    def is_abandoned(self, task: Task) -> bool:
        """Whether the run that waits for this job is gone, as far as can be told from here."""
        if not self.folder.is_dir():
            return True
        if task.host != socket.gethostname():
            return False
        try:
            os.kill(task.parent, 0)
        except ProcessLookupError:
            return True
        return False

    def report(self, rank: int, message: str) -> None:
        """Tell the run why a process ends; a message of `RaptorError`, which holds nothing private."""
        write_facts(self.folder / f"error-{rank}.json", {"message": message})

    def reported(self) -> str | None:
        """What the first process with a reason has told; None where none has."""
        for place in sorted(self.folder.glob("error-*.json")):
            return str(read_facts(place)["message"])
        return None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _key(self, name: str, rank: int) -> Path:
        return self.folder / f"{name}.key-{rank}"
