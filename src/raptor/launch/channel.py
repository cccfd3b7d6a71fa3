"""Questions and answers between the first process of a training and the run that waits for it.

Both see one private folder, so it works alike on one machine and on several with a shared file system. The first
process asks, one question at a time, and does nothing before it has its answer; a release is such a question.
Questions of a group of processes carry a name that the group has drawn: when a group was lost and another takes its
place, what the old one still asks is never answered, so it can release nothing more.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor.errors import LaunchError, ProcessLostError
from raptor.launch.job import Job, Task
from raptor.launch.parcels import read_facts, write_facts

READY = "ready"
_SHORTEST_S, _LONGEST_S = 0.001, 0.05
# How often a process that waits looks whether the run is still there.
_LOOK_S = 2.0
_READ_S = 60.0


@dataclass(frozen=True)
class Question:
    """One question: of which group, its number, what it is, and its facts."""

    group: str
    number: int
    kind: str
    facts: Mapping[str, Any]


class Asker:
    """The side of the first process."""

    def __init__(self, job: Job, task: Task) -> None:
        self.group = secrets.token_hex(8)
        self._job = job
        self._task = task
        self._number = 0

    def ask(self, kind: str, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask, and wait for the answer.

        Raises:
            LaunchError: the run is gone.
        """
        name = f"{self.group}.{self._number:08d}"
        self._number += 1
        write_facts(self._job.folder / f"{name}.question", {"kind": kind, "facts": dict(facts or {})})
        place = self._job.folder / f"{name}.answer"
        wait, looked = _SHORTEST_S, time.monotonic()
        while not place.exists():
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                if self._job.is_abandoned(self._task):
                    raise LaunchError(
                        "The run that waits for this training is gone, so that nothing may be released."
                    )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_S)
        answer = read_facts(place)
        place.unlink()
        return answer


class Desk:
    """The side of the run: it hears one group, the last that has begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._groups: set[str] = set()
        self._group: str | None = None
        self._number = 0

    def receive(self, check: Callable[[], None], patience_s: float | None = None) -> Question:
        """The next question.

        Args:
            check: called while there is none; raises when there will be none.
            patience_s: how long to wait; None for ever.

        Raises:
            ProcessLostError: another group has begun in place of the one that was heard; it is heard from now on.
            LaunchError: nothing was heard for too long.
        """
        begun, wait = time.monotonic(), _SHORTEST_S
        while True:
            is_next = self._join()
            if self._group is not None:
                name = f"{self._group}.{self._number:08d}.question"
                if is_next:
                    raise ProcessLostError(
                        "Another group of processes has taken the place of the one that trained."
                    )
                if (self._folder / name).exists():
                    found = read_facts(self._folder / name)
                    (self._folder / name).unlink()
                    return Question(self._group, self._number, found["kind"], found["facts"])
            check()
            if patience_s is not None and time.monotonic() - begun > patience_s:
                raise LaunchError(
                    f"The processes of the training were not heard of for {patience_s / 60:g} minutes "
                    "(launch.patience_minutes). Run the same command again: it goes on from the last checkpoint."
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_S)

    def answer(self, question: Question, what: Mapping[str, Any]) -> None:
        """Answer a question, once."""
        self._number = question.number + 1
        write_facts(self._folder / f"{question.group}.{question.number:08d}.answer", what)

    def wait_until_read(self, question: Question) -> None:
        """Give the process that asked some time to read its answer, before the folder is removed."""
        place = self._folder / f"{question.group}.{question.number:08d}.answer"
        deadline = time.monotonic() + _READ_S
        while place.exists() and time.monotonic() < deadline:
            time.sleep(_LONGEST_S)

    def forget(self) -> None:
        """Hear nothing more of the present group, which has ended; another may begin."""
        self._group = None

    def _join(self) -> bool:
        """Hear a group that has begun; whether it takes the place of another."""
        first = f"{0:08d}.question"
        begun = {place.name.partition(".")[0] for place in self._folder.glob(f"*.{first}")} - self._groups
        if not begun:
            return False
        # Of several the one that began last; the others are never answered.
        chosen = max(begun, key=lambda group: (self._folder / f"{group}.{first}").stat().st_mtime_ns)
        replaces = self._group is not None
        self._groups |= begun
        self._group, self._number = chosen, 0
        return replaces
