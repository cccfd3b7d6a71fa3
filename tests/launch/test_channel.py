"""The private folder and the questions in it: closed to others, answered once, and never to a group that was lost."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from raptor.accounting.journal import ReleaseJournal
from raptor.dp.records import EncodedRecords
from raptor.dp.streams import RandomSource
from raptor.errors import LaunchError, ProcessLostError
from raptor.launch import channel
from raptor.launch.channel import READY, Asker, Desk
from raptor.launch.config import HERE
from raptor.launch.job import Job, Recipe, Task
from raptor.launch.trainer import OUTPUT, open_trainer
from raptor.launch.worker import work
from raptor.moe.classifier import MoEClassifier
from tests.dp.crashes import World, make_plan, make_records, settings


def make_task(**changes: object) -> Task:
    recipe = Recipe("raptor.moe.classifier:MoEClassifier.from_encoder", ["nowhere", 3])
    task = Task(make_plan(), settings(), recipe, 2, "replicated", 1, socket.gethostname(), os.getpid())
    return dataclasses.replace(task, **changes)  # type: ignore[arg-type]


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Job:
    return Job.create(tmp_path, make_task(), make_records())


def ask_aside(asker: Asker, kind: str, answers: list[dict]) -> threading.Thread:
    def ask() -> None:
        # Who is not answered ends with an error when the folder is gone.
        with suppress(LaunchError):
            answers.append(asker.ask(kind, {"of": kind}))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


def test_task_and_records_arrive_as_they_were(job: Job, tmp_path: Path) -> None:
    assert job.task() == make_task()
    found, given = job.records(), make_records()
    assert all(torch.equal(a, b) for a, b in zip(found.tensors(), given.tensors(), strict=True))
    users = dataclasses.replace(given, owners=torch.zeros(12, dtype=torch.int64), groups=pairs())
    assert torch.equal(Job.create(tmp_path, make_task(), users).records().groups, users.groups)


def pairs() -> torch.Tensor:
    return torch.arange(24).reshape(12, 2)


def test_the_folder_is_closed_to_others_and_its_keys_are_gone_when_taken(job: Job) -> None:
    job.hand_over_keys("begin-1", RandomSource.seeded(3), 2)
    assert stat.S_IMODE(job.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(place.stat().st_mode) for place in job.folder.iterdir()} == {0o600}
    first, second = (job.take_key("begin-1", rank) for rank in (0, 1))
    assert first == RandomSource.seeded(3).key
    assert second not in (first, RandomSource.seeded(3).fresh().key)
    assert not list(job.folder.glob("*key*"))
    held = [place.read_bytes() for place in job.folder.iterdir()]
    assert not any(
        key in content or key.hex().encode() in content for key in (first, second) for content in held
    )


def test_what_a_killed_run_has_left_is_removed(job: Job, tmp_path: Path) -> None:
    job.hand_over_keys("begin-1", RandomSource.seeded(3), 1)
    again = Job.create(tmp_path, make_task(), make_records())
    assert list(tmp_path.iterdir()) == [again.folder]
    with pytest.raises(LaunchError, match="its run has ended"):
        job.task()


def test_a_run_in_one_process_removes_what_a_killed_one_has_left(job: Job, tmp_path: Path) -> None:
    job.hand_over_keys("begin-1", RandomSource.seeded(3), 1)
    (tmp_path / OUTPUT).touch()
    world = World(tmp_path / "world")
    recipe = Recipe.of(MoEClassifier.from_encoder, world.base, 3)
    given = (recipe, recipe.build(), make_records(), make_plan(), settings(), RandomSource.seeded(3))
    with ReleaseJournal.create(tmp_path / "journal", make_plan().to_json()) as journal:
        open_trainer(HERE, tmp_path, *given, journal)
    assert not job.folder.exists()
    assert not (tmp_path / OUTPUT).exists()


@pytest.mark.parametrize(
    ("size", "changes", "words"), [(3, {}, "one of 2 processes"), (2, {"code": "0" * 64}, "other code")]
)
def test_processes_of_another_training_release_nothing(
    tmp_path: Path, size: int, changes: dict[str, str], words: str
) -> None:
    job = Job.create(tmp_path, make_task(**changes), make_records())
    before = sorted(job.folder.iterdir())
    with pytest.raises(LaunchError, match=words):
        work(job.folder, 0, size, 0)
    assert sorted(job.folder.iterdir()) == before


def test_models_are_made_by_this_package_alone() -> None:
    assert Recipe.of(Recipe.of, Path("x")).arguments == [str(Path("x").absolute())]
    with pytest.raises(LaunchError, match="no function of raptor"):
        Recipe("os:getcwd", []).build()


def test_questions_are_answered_in_turn(job: Job) -> None:
    asker, desk = Asker(job, make_task()), Desk(job.folder)
    for kind in (READY, "release", "step"):
        answers: list[dict] = []
        thread = ask_aside(asker, kind, answers)
        question = desk.receive(lambda: None, 60)
        assert (question.kind, question.facts) == (kind, {"of": kind})
        assert not answers
        desk.answer(question, {"do": "go"})
        thread.join(60)
        assert answers == [{"do": "go"}]
    assert not list(job.folder.glob("*.question")) + list(job.folder.glob("*.answer"))


def test_a_lost_group_is_never_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_LOOK_S", 0.05)
    desk = Desk(job.folder)
    old, new = Asker(job, make_task()), Asker(job, make_task())
    ended: list[str] = []

    def old_one() -> None:
        try:
            old.ask(READY)
            old.ask("release")
        except LaunchError as error:
            ended.append(str(error))

    thread = threading.Thread(target=old_one, daemon=True)
    thread.start()
    desk.answer(desk.receive(lambda: None, 60), {"do": "go"})
    answers: list[dict] = []
    ask_aside(new, READY, answers)
    while not (job.folder / f"{new.group}.{0:08d}.question").exists():
        time.sleep(0.01)
    with pytest.raises(ProcessLostError, match="taken the place"):
        desk.receive(lambda: None, 60)
    assert desk.receive(lambda: None, 60).kind == READY
    with pytest.raises(LaunchError, match="not heard of"):
        desk.receive(lambda: None, 0.2)
    job.remove()
    thread.join(60)
    assert "nothing may be released" in ended[0]


def test_a_process_ends_when_its_run_has(job: Job) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not job.is_abandoned(make_task())
    assert job.is_abandoned(make_task(parent=gone.pid))
    # Of a process of another machine nothing is known.
    assert not job.is_abandoned(make_task(parent=gone.pid, host="elsewhere"))
    job.remove()
    assert job.is_abandoned(make_task())


def test_records_of_any_kind_are_handed_over(tmp_path: Path) -> None:
    """Every field of the records goes into the file, also one that is added later."""
    names = {field.name for field in dataclasses.fields(EncodedRecords)}
    job = Job.create(tmp_path, make_task(), make_records())
    found = job.records()
    assert {name for name in names if hasattr(found, name)} == names
