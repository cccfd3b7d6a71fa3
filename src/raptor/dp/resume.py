"""A private training from its first step to its last, in however many processes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from raptor.accounting.journal import ReleaseJournal
from raptor.accounting.plan import PrivacyPlan
from raptor.accounting.spent import spent_in_words
from raptor.accounting.types import Release
from raptor.dp.checkpoints import NEVER, Checkpoint, CheckpointStore
from raptor.dp.config import TrainingConfig
from raptor.dp.identity import differences
from raptor.dp.methods import Method
from raptor.dp.state import TrainingState
from raptor.dp.streams import RandomSource
from raptor.errors import CheckpointError, LaunchError, LedgerError, ProcessLostError, ReplayError

Identify = Callable[[bytes], Mapping[str, Any]]
SALT_BYTES = 32
NO_CHECKPOINTS = (
    "No checkpoints are written (training.checkpoint_every is 0): if it is killed it cannot be resumed, and what it "
    "has released by then stays charged."
)


class Steps(Protocol):
    """What makes the steps: `raptor.dp.training.Trainer`, or one whose training is in other processes."""

    def begin(self, method: Method = ..., state: TrainingState | None = ...) -> None: ...

    def remaining(self) -> Iterator[int]: ...

    def state(self) -> TrainingState: ...

    def release_after(self, more: int) -> Release | None: ...


class PrivateRun:
    """One training with its journal and its checkpoint; `open` begins it, or goes on with one that was killed.

    Guarantee:
        Released is what the mechanism releases, at most the planned releases of every stream, whenever and
        however often the run is killed. A step after the last checkpoint is made again from the same state
        with the same coins and the same noise, so it is the same release: the journal compares it with what
        it has, by the digest of the result where that was written, and does not charge it again. One that
        does not come out the same is not used. Then all releases of the journal stay charged, the training
        goes on from the checkpoint with a new key, and every step counts anew: the last steps of the schedule
        are left out. The same holds when processes of the training are lost while this one lives: it goes back to
        the checkpoint. Adjacency and unit are the plan's.
        Assumes: the folders of checkpoint and journals are private, and the machine keeps what fsync has
        written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        journal: ReleaseJournal,
        config: TrainingConfig,
        randomness: RandomSource,
        identity: Mapping[str, Any],
        salt: bytes,
        state: TrainingState | None = None,
    ) -> None:
        """Use `open`."""
        self.journal = journal
        self.randomness = randomness
        self._store = store
        self._every = config.checkpoint_every
        self._identity = identity
        self._salt = salt
        self._state = state

    @classmethod
    def open(
        cls,
        store: CheckpointStore,
        journals: Path,
        plan: PrivacyPlan,
        config: TrainingConfig,
        randomness: RandomSource,
        identify: Identify,
    ) -> tuple[PrivateRun, str]:
        """The run that the checkpoint is of, or a new one; and in words which of them, for the log.

        Args:
            journals: folder of the release journals.
            randomness: source of a new run.
            identify: `raptor.dp.identity.run_identity` of what is to be trained, by its salt.

        Raises:
            CheckpointError: the checkpoint is damaged, or of something else than what is to be trained; says
                what was spent and what to do.
        """
        given_up = ""
        if config.resume == "never":
            given_up = _give_up(store, journals)
        elif (found := store.load()) is not None:
            return cls._resume(store, journals, config, identify, found)
        salt = secrets.token_bytes(SALT_BYTES)
        identity = identify(salt)
        # A random name: neither the data nor the time of the run can be read from it.
        journal = ReleaseJournal.create(journals / f"{secrets.token_hex(8)}.jsonl", plan.to_json())
        run = cls(store, journal, config, randomness, identity, salt)
        lost = "" if config.checkpoint_every else f" {NO_CHECKPOINTS}"
        return run, f"{given_up}A new private training begins.{lost}"

    @classmethod
    def _resume(
        cls,
        store: CheckpointStore,
        journals: Path,
        config: TrainingConfig,
        identify: Identify,
        found: Checkpoint,
    ) -> tuple[PrivateRun, str]:
        place = journals / found.journal
        changed = differences(found.identity, identify(found.salt))
        if changed:
            raise CheckpointError(
                f"A private training has not ended ({store.file}), and the present one is not the same: "
                f"{'; '.join(changed)}. {_spent(place)} Set it back to go on with that training. {NEVER}"
            )
        try:
            journal = ReleaseJournal.resume(place, found.length, found.last)
        except LedgerError as error:
            raise CheckpointError(
                f"A private training has not ended ({store.file}), but its release journal cannot be used: {error}. "
                f"Put back the journal. {NEVER}"
            ) from None
        run = cls(
            store, journal, config, found.state.randomness, found.identity, found.salt, state=found.state
        )
        return run, f"The private training goes on after step {found.state.finished}. {_spent(place)}"

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier process began this run, with these records."""
        return self._state is not None

    @property
    def finished(self) -> int:
        """Steps of the schedule that the checkpoint has behind it."""
        return 0 if self._state is None else self._state.finished

    def steps(self, trainer: Steps) -> Iterator[int]:
        """Make the steps that are left, yielding the number of each; a checkpoint now and then, and at the end.

        Raises:
            CheckpointError: a checkpoint cannot be written.
            LedgerError: the journal cannot be written.
            LaunchError: processes were lost, and there is no checkpoint to go back to.
        """
        while True:
            try:
                yield from self._steps(trainer)
                return
            except ReplayError:
                self._renounce(trainer)
            except ProcessLostError as lost:
                self._go_back(lost)

    def _steps(self, trainer: Steps) -> Iterator[int]:
        trainer.begin("raptor", self._state)
        if self._state is None and self._every:
            # Before the first release: without the key it could be charged, but not be made again.
            self._save(trainer.state())
        for number in trainer.remaining():
            if self._every and (number + 1) % self._every == 0:
                self._save(trainer.state())
            yield number
        if self._every:
            self._save(trainer.state())

    def _save(self, state: TrainingState) -> None:
        # Releases that are being made again are not known to be the same ones before the last of them is.
        if self.journal.is_replaying:
            return
        length, last = self.journal.place
        self._store.save(Checkpoint(state, self.journal.path.name, length, last, self._identity, self._salt))

    def _go_back(self, lost: ProcessLostError) -> None:
        """To the last checkpoint: what was released after it is made again, and not charged again."""
        found = self._store.load()
        if found is None and not self.journal.has_releases:
            # Nothing was released yet, so there is nothing to go back from.
            return
        if found is None:
            raise LaunchError(f"{lost} {NO_CHECKPOINTS}") from None
        self.journal.rewind(found.length, found.last)
        self._state = found.state

    def _renounce(self, trainer: Steps) -> None:
        """Give up the releases after the checkpoint: they stay charged, and are made anew with another key."""
        releases = self.journal.keep_rest(trainer.release_after)
        found = self._store.load()
        if found is None:
            raise CheckpointError(
                f"The checkpoint {self._store.file} has vanished while its training went on. {NEVER}"
            )
        streams = {
            name: replace(
                stream,
                released=sum(release.stream == name for release in releases),
                coins=0,
                noise=0,
                others=(),
            )
            for name, stream in found.state.streams.items()
        }
        self._state = replace(found.state, randomness=found.state.randomness.fresh(), streams=streams)
        self._save(self._state)


def _give_up(store: CheckpointStore, journals: Path) -> str:
    """Delete the checkpoint, and say what was spent for nothing; empty where there is none."""
    try:
        found = store.load()
    except CheckpointError:
        store.discard()
        return f"A damaged checkpoint is given up; what it has spent stands in its journal in {journals}. "
    if found is None:
        return ""
    words = _spent(journals / found.journal)
    store.discard()
    return (
        f"A private training that had not ended is given up (training.resume=never). {words} The certificate of the "
        "new one does not count it: for the same records both add up. "
    )


def _spent(journal: Path) -> str:
    try:
        return spent_in_words(journal)
    except LedgerError as error:
        return f"What it has spent cannot be told: {error}."
