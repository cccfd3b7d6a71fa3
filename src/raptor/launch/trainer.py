"""The trainer of a run whose training is in other processes: it answers their questions, and alone writes anything."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from raptor.accounting.plan import PrivacyPlan
from raptor.accounting.types import Release
from raptor.dp.config import TrainingConfig
from raptor.dp.mechanism import ReleaseSink
from raptor.dp.methods import Method
from raptor.dp.optimizer import WEIGHT
from raptor.dp.records import EncodedRecords
from raptor.dp.state import StreamState, TrainingState
from raptor.dp.streams import RandomSource
from raptor.dp.trainable import TrainableSet, make_trainable
from raptor.dp.training import Trainer
from raptor.errors import LaunchError, ParameterError, ProcessLostError
from raptor.launch.channel import READY, Desk, Question
from raptor.launch.children import Children
from raptor.launch.commands import elastic_command, external_text
from raptor.launch.config import INLINE, LaunchConfig
from raptor.launch.job import Job, Recipe, Task
from raptor.launch.parcels import read_parcel, write_parcel
from raptor.moe.adapters import merge_lora
from raptor.progress import say

logger = logging.getLogger(__name__)

OUTPUT = "processes.log"
AGAIN = "Run the same command again: the training goes on from its last checkpoint."


class LaunchedTrainer:
    """Trains in other processes, as `raptor.dp.training.Trainer` does in this one.

    Guarantee:
        Released is what the mechanism releases in those processes. Each release is written into the sink here, on this
        machine's disk, before its question is answered, and no process goes on before the answer; so whatever
        becomes of the processes, the journal has at least what was released. They get keys in a file that its owner
        alone can read, and that is gone when it was read. Assumes that the folder and the connections between the
        processes are as private as the records.

    Use it as a context manager: at the end the processes are gone, and so is the folder with records and keys.
    """

    def __init__(
        self,
        launch: LaunchConfig,
        folder: Path,
        recipe: Recipe,
        model: nn.Module,
        records: EncodedRecords,
        plan: PrivacyPlan,
        config: TrainingConfig,
        randomness: RandomSource,
        sink: ReleaseSink,
    ) -> None:
        """`folder` is that of the private checkpoints, locked by the caller; `model` is what `recipe` makes.

        Raises:
            ParameterError: the optimizer is not one that works on shards.
        """
        if launch.layout == "sharded" and config.optimizer != "adam":
            raise ParameterError(
                f"training.optimizer is {config.optimizer}, which does not work on shards: with launch.layout=sharded "
                "take adam, or set launch.layout=replicated."
            )
        self.trainable: TrainableSet = make_trainable(model, config, plan.layers)
        self.left_out = 0
        self.keystreams: tuple[str, ...] = ()
        self._launch = launch
        self._model = model
        self._config = config
        self._randomness = randomness
        self._sink = sink
        self._output = folder / OUTPUT
        threads = max(1, (config.threads or torch.get_num_threads()) // launch.processes)
        self._threads = config.threads or threads
        task = Task(
            plan, config, recipe, launch.size, launch.layout, self._threads, socket.gethostname(), os.getpid()
        )
        self._job = Job.create(folder, task, records)
        self._desk = Desk(self._job.folder)
        self._children: Children | None = None
        self._open: Question | None = None
        self._restarts = 0
        self._count = 0
        self._is_told = False

    def __enter__(self) -> LaunchedTrainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._open is not None:
                last = self._open
                self._answer({"do": "stop"})
                self._desk.wait_until_read(last)
                if self._children is not None:
                    self._children.wait()
        finally:
            if self._children is not None:
                self._children.end()
            self._job.remove()
            if kind is None:
                self._output.unlink(missing_ok=True)

    def begin(self, method: Method = "raptor", state: TrainingState | None = None) -> None:
        """Make all processes ready for the first step, or for the one after `state`.

        Raises:
            ProcessLostError: one of them was lost.
            LaunchError: they cannot be started.
        """
        if self._open is None:
            self._start()
        if state is not None:
            self._randomness = state.randomness
        self._count += 1
        keys = f"begin-{self._count}"
        makers = self._launch.size if self._launch.layout == "sharded" else 1
        self._job.hand_over_keys(keys, self._randomness, makers)
        place = None if state is None else self._write_state(f"{keys}.state", state)
        self._answer(
            {
                "do": "begin",
                "method": method,
                "state": place,
                "keys": keys,
                "generator": self._randomness.name,
                "is_secure": self._randomness.is_secure,
            }
        )
        self._receive("begun")
        if place is not None:
            (self._job.folder / place).unlink()

    def remaining(self) -> Iterator[int]:
        """Let them make the steps that are left, yielding the number of each.

        Raises:
            ProcessLostError: one of them was lost.
            ReplayError: the journal has another release in the place of one.
        """
        while True:
            self._answer({"do": "go"})
            question = self._receive("release", "step", "result")
            while question.kind == "release":
                # On the disk when this returns. When it refuses, the question stays open, and so does every process.
                self._sink.append(Release.from_json(question.facts, "a release"))
                self._answer({"do": "go"})
                question = self._receive("release", "step", "result")
            if question.kind == "result":
                self._end(question.facts)
                return
            yield int(question.facts["number"])

    def state(self) -> TrainingState:
        """Where the training stands, between two steps. Private."""
        self._count += 1
        self._answer({"do": "state", "parcel": f"state-{self._count}.safetensors"})
        place = self._job.folder / self._receive("state").facts["parcel"]
        facts, tensors = read_parcel(place)
        place.unlink()
        streams = {name: StreamState(**held) for name, held in facts["streams"].items()}
        return TrainingState(facts["finished"], self._randomness, streams, tensors)

    def release_after(self, more: int) -> Release | None:
        """What the ledger would say about the release after `more` further ones; None after the last one."""
        self._answer({"do": "foresee", "more": more})
        found = self._receive("foreseen").facts["release"]
        return None if found is None else Release.from_json(found, "a release")

    def finish(self) -> None:
        """Take the trained parameters over, and fold adapters into the weights: then the model can be saved.

        Raises:
            LaunchError: the processes have trained other parameters than those of this model.
        """
        self._take_over(self.state().tensors)
        if self._config.trainable == "lora":
            merge_lora(self._model)

    def _take_over(self, tensors: Mapping[str, Tensor]) -> None:
        found = {
            key.split(":")[1]: value for key, value in tensors.items() if key.rpartition(":")[2] == WEIGHT
        }
        names = set(self.trainable.shared + self.trainable.expert)
        if not set(found) <= names or any(
            value.shape != self._model.get_parameter(name).shape for name, value in found.items()
        ):
            raise LaunchError(
                "The processes have trained other parameters than those of the model of this run."
            )
        with torch.no_grad():
            for name, value in found.items():
                self._model.get_parameter(name).copy_(value)

    def _end(self, facts: Mapping[str, Any]) -> None:
        if not (facts["routers_unchanged"] and facts["records_unchanged"]):
            raise LaunchError(
                "In a process of the training the routers or the records were changed, so that what was released is "
                "not what the plan covers. No model is kept; the releases stay charged."
            )
        self.left_out = int(facts["left_out"])
        self.keystreams = tuple(facts["keystreams"])

    def _write_state(self, name: str, state: TrainingState) -> str:
        streams = {
            key: {**vars(stream), "others": list(stream.others)} for key, stream in state.streams.items()
        }
        facts = {"finished": state.finished, "streams": streams}
        write_parcel(self._job.folder / name, facts, state.tensors)
        return name

    # Questions, and the processes that ask them.

    def _start(self) -> None:
        if self._launch.backend == "elastic":
            command = elastic_command(self._launch, self._job.folder)
            self._children = Children(command, self._threads, self._output)
        elif not self._is_told:
            self._is_told = True
            text, kept = external_text(self._launch, self._job.folder), self._job.folder / "command"
            kept.touch(mode=0o600)
            kept.write_text(text + "\n", encoding="utf-8")
            logger.warning(
                "Start the processes of the training with this, and leave this run as it is; it goes on when they "
                "have begun. It is in %s, too:",
                kept,
            )
            # Not by the log, which breaks lines to the width of the terminal: it is there to be copied.
            say(text)
        self._receive(READY)

    def _receive(self, *kinds: str) -> Question:
        patience = self._launch.patience_minutes
        try:
            question = self._desk.receive(self._check, None if patience is None else 60 * patience)
        except ProcessLostError as lost:
            self._lose(lost)
            raise
        if question.kind not in kinds:
            raise LaunchError(
                f"A process of the training says {question.kind} where {' or '.join(kinds)} is due."
            )
        self._open = question
        return question

    def _answer(self, what: Mapping[str, Any]) -> None:
        if self._open is None:
            raise LaunchError("No process of the training waits for an answer.")
        question, self._open = self._open, None
        self._desk.answer(question, what)

    def _check(self) -> None:
        """Whether there will be questions; called while there is none.

        Raises:
            ProcessLostError: the processes have ended, and may be started again.
            LaunchError: they have ended with a reason that would be the same again, or too often.
        """
        reported = self._job.reported()
        if reported is not None:
            raise LaunchError(reported)
        if self._children is not None and self._children.has_ended:
            raise ProcessLostError("A process of the training was lost.")

    def _lose(self, lost: ProcessLostError) -> None:
        """Forget the group that was lost, if the training may go on with another.

        Raises:
            LaunchError: it may not.
        """
        self._open = None
        if self._children is not None:
            self._children.end()
            self._children = None
            self._desk.forget()
        if self._restarts >= self._launch.restarts:
            raise LaunchError(
                f"{lost} It was started again {self._restarts} times (launch.restarts). What it wrote is in the "
                f"private file {self._output}. {AGAIN}"
            ) from None
        self._restarts += 1
        logger.warning("%s All of them are started again from the last private checkpoint.", lost)


def open_trainer(
    launch: LaunchConfig,
    folder: Path,
    recipe: Recipe,
    model: nn.Module,
    records: EncodedRecords,
    plan: PrivacyPlan,
    config: TrainingConfig,
    randomness: RandomSource,
    sink: ReleaseSink,
) -> AbstractContextManager[Trainer | LaunchedTrainer]:
    """The trainer that the parameters ask for: in this process, or in others. See `LaunchedTrainer` for arguments."""
    if launch.backend == INLINE:
        # Of an earlier run in several processes, which was killed.
        Job.remove_left(folder)
        (folder / OUTPUT).unlink(missing_ok=True)
        return nullcontext(Trainer(model, records, plan, config, randomness, sink))
    return LaunchedTrainer(launch, folder, recipe, model, records, plan, config, randomness, sink)
