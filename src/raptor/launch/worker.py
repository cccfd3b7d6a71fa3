"""One process of a training: `python -m raptor.launch.worker FOLDER`, started by torchrun or what is like it.

It writes no ledger, no log and no model: the first process asks the run that waits (`raptor.launch.channel`), and all
do what it answers.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from raptor.accounting.types import Release
from raptor.dp.state import StreamState, TrainingState
from raptor.dp.streams import RandomSource
from raptor.dp.training import Trainer, resolve_device
from raptor.dp.watch import Watch
from raptor.errors import LaunchError, RaptorError
from raptor.launch.channel import READY, Asker
from raptor.launch.job import Job, Task
from raptor.launch.parcels import read_parcel, write_parcel
from raptor.launch.teams import Replicated, Sharded, local

# A run may take long to save a checkpoint; a process that is lost is noticed at once by torchrun.
_TIMEOUT = timedelta(hours=2)


class RenouncedError(Exception):
    """The release may not be made: the run begins again from a state, which its answer names."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer


class Worker:
    """Does what the run asks for, in step with the other processes."""

    def __init__(self, job: Job, task: Task, team: Replicated | Sharded, asker: Asker | None) -> None:
        """`asker` is the first process's; None in all others."""
        self._job = job
        self._task = task
        self._team = team
        self._asker = asker
        self._group = team.share(lambda: self._first.group)
        self._trainer: Trainer | None = None
        self._watch: Watch | None = None
        self._steps: Iterator[int] = iter(())

    @property
    def _first(self) -> Asker:
        if self._asker is None:
            raise AssertionError("only the first process asks")
        return self._asker

    def run(self) -> None:
        """Until the run says stop.

        Raises:
            LaunchError: the run is gone, or the processes do not hold the same model.
        """
        answer = self._ask(READY)
        while answer["do"] != "stop":
            try:
                answer = self._do(answer)
            except RenouncedError as renounced:
                answer = renounced.answer

    def append(self, release: Release) -> None:
        """The sink of the mechanism: it returns, in every process, when the release is on the run's disk.

        Raises:
            RenouncedError: the release is another one than the journal has in its place.
        """
        answer = self._team.share(lambda: self._allowed(release))
        if answer["do"] != "go":
            raise RenouncedError(answer)

    def _allowed(self, release: Release) -> dict[str, Any]:
        answer = self._first.ask("release", release.to_json())
        while answer["do"] == "foresee":
            ahead = self._present.release_after(answer["more"])
            answer = self._first.ask("foreseen", {"release": None if ahead is None else ahead.to_json()})
        return answer

    def _ask(self, kind: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._team.share(lambda: self._first.ask(kind, facts))

    def _do(self, answer: dict[str, Any]) -> dict[str, Any]:
        if answer["do"] == "begin":
            self._begin(answer)
            return self._ask("begun")
        if answer["do"] == "state":
            return self._ask("state", {"parcel": self._write_state(answer["parcel"])})
        number = next(self._steps, None)
        return (
            self._ask("result", self._result()) if number is None else self._ask("step", {"number": number})
        )

    @property
    def _present(self) -> Trainer:
        if self._trainer is None:
            raise LaunchError("A training is asked to go on that has not begun.")
        return self._trainer

    def _source(self, answer: dict[str, Any]) -> RandomSource:
        """This process's source: its own where it adds noise, else one that nobody else has and nothing is drawn of."""
        if self._team.rank >= self._team.makers:
            return RandomSource.secure()
        key = self._job.take_key(answer["keys"], self._team.rank)
        return RandomSource(key, answer["generator"], answer["is_secure"])

    def _begin(self, answer: dict[str, Any]) -> None:
        source = self._source(answer)
        if self._trainer is None:
            task = self._task
            model, records = task.recipe.build(), self._job.records()
            self._trainer = Trainer(model, records, task.plan, task.config, source, self, self._team)
            self._watch = Watch(model, records, local)
        state = None
        if answer["state"] is not None:
            state = self._read_state(self._job.folder / answer["state"], source)
        self._trainer.begin(answer["method"], state)
        self._steps = self._trainer.remaining()

    def _read_state(self, place: Path, source: RandomSource) -> TrainingState:
        facts, tensors = read_parcel(place)
        rank = self._team.rank
        streams = {}
        for name, held in facts["streams"].items():
            stream = StreamState(**held)
            others = stream.others[rank - 1] if rank and stream.others else 0
            streams[name] = stream if rank == 0 else replace(stream, coins=0, noise=others)
        return TrainingState(facts["finished"], source, streams, self._team.laid_out(tensors))

    def _write_state(self, name: str) -> str:
        """The state of all processes as one, without keys."""
        state = self._present.state()
        noise = self._team.gather({name: stream.noise for name, stream in state.streams.items()})
        streams = {
            name: asdict(replace(stream, others=[used[name] for used in noise[1:]]))
            for name, stream in state.streams.items()
        }
        tensors = self._team.full(state.tensors)
        if self._team.rank == 0:
            write_parcel(self._job.folder / name, {"finished": state.finished, "streams": streams}, tensors)
        return name

    def _result(self) -> dict[str, Any]:
        """What every process has checked after the last step.

        Raises:
            LaunchError: the processes hold different models.
        """
        trainer, watch = self._present, self._watch
        if watch is None:
            raise AssertionError("the watch begins with the trainer")
        rank = self._team.rank
        given = trainer.keystreams
        if rank:
            is_maker = rank < self._team.makers
            given = tuple(f"rank {rank}: {name}" for name in given if is_maker and name.endswith("/noise"))
        own: dict[str, Any] = {
            "keystreams": given,
            "routers": watch.router_weights() > 0,
            "records": watch.records_unchanged(),
            "digest": self._digest(trainer) if isinstance(self._team, Replicated) else "",
        }
        found = self._team.gather(own)
        if len({one["digest"] for one in found}) > 1:
            raise LaunchError(
                "The processes of the training hold different models at its end, though they took the same updates: "
                "their machines do not compute alike. Use machines of one kind. The releases stay charged."
            )
        return {
            "left_out": trainer.left_out,
            "keystreams": [name for one in found for name in one["keystreams"]],
            "routers_unchanged": all(one["routers"] for one in found),
            "records_unchanged": all(one["records"] for one in found),
        }

    def _digest(self, trainer: Trainer) -> str:
        total = hashlib.sha256()
        for name, value in trainer.state().tensors.items():
            total.update(name.encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()


def work(folder: Path, rank: int, size: int, local_rank: int) -> None:
    """Be one process of the training in a folder.

    Raises:
        LaunchError: the command started another number of processes than the plan of the run, or another version of
            its code, or the run is gone.
    """
    job = Job(folder)
    task = job.task()
    task.require_own(size)
    device = resolve_device(task.config.device)
    if device.type == "cuda":
        torch.cuda.set_device(local_rank)
    torch.set_num_threads(task.config.threads or task.threads)
    # What lies on the CPU goes by gloo in any case.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        team = Sharded() if task.layout == "sharded" else Replicated()
        Worker(job, task, team, Asker(job, task) if rank == 0 else None).run()
    finally:
        dist.destroy_process_group()


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    rank = int(os.environ["RANK"])
    try:
        work(folder, rank, int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", "0")))
    except RaptorError as error:
        if folder.is_dir():
            Job(folder).report(rank, str(error))
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
