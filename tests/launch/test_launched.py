"""Trainings in processes that torch elastic starts: one is killed, and the run goes on and pays nothing twice."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from raptor.accounting.chain import read_torn
from raptor.accounting.ledger import compose_ledger, read_ledger
from raptor.dp.checkpoints import FILE, CheckpointStore
from raptor.dp.config import TrainingConfig
from raptor.dp.resume import PrivateRun
from raptor.dp.streams import RandomSource
from raptor.errors import LaunchError
from raptor.launch.config import HERE, LaunchConfig
from raptor.launch.job import Recipe
from raptor.launch.trainer import LaunchedTrainer, open_trainer
from raptor.moe.classifier import MoEClassifier
from tests.dp.crashes import STEPS, World, make_plan, make_records, settings

pytestmark = pytest.mark.slow

ELASTIC = LaunchConfig(backend="elastic", processes=2)
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module", name="base")
def _base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return World(tmp_path_factory.mktemp("base")).base


def train(
    world: World,
    launch: LaunchConfig,
    watch: Callable[[int, Any], None] = lambda number, trainer: None,
    config: TrainingConfig | None = None,
) -> Weights:
    """What the training node does; `watch` sees the number of each step, before the next one."""
    config, plan, records = config or settings(), make_plan(), make_records()
    recipe = Recipe.of(MoEClassifier.from_encoder, world.base, 3)
    model = recipe.build()
    with CheckpointStore(world.checkpoints) as store:
        run, _ = PrivateRun.open(
            store, world.journals, plan, config, RandomSource.seeded(3), lambda salt: launch.identity()
        )
        with (
            run.journal as journal,
            open_trainer(
                launch, world.checkpoints, recipe, model, records, plan, config, run.randomness, journal
            ) as trainer,
        ):
            for number in run.steps(trainer):
                watch(number, trainer)
            assert trainer.left_out == 0
            assert set(trainer.keystreams) >= {"shared/coins", "shared/noise", "expert/coins", "expert/noise"}
            trainer.finish()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def furthest(found: Weights, expected: Weights) -> float:
    assert sorted(found) == sorted(expected)
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)


def workers(trainer: LaunchedTrainer) -> list[int]:
    """The processes that train, by their parent's number."""
    assert trainer._children is not None
    parent = trainer._children._process.pid
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True
    )
    return [int(line) for line in listed.stdout.split()]


def test_a_killed_process_ends_in_the_same_model_and_the_same_ledger(tmp_path: Path, base: Path) -> None:
    alone, world = World(tmp_path / "alone", base), World(tmp_path / "several", base)
    expected = train(alone, HERE)
    killed: list[int] = []
    seen: list[int] = []

    def kill_one(number: int, trainer: LaunchedTrainer) -> None:
        seen.append(number)
        if number == 6 and not killed:
            killed.extend(workers(trainer)[-1:])
            os.kill(killed[0], signal.SIGKILL)

    found = train(world, ELASTIC, kill_one)
    assert killed
    # Steps 4 to 6 were made again, after the checkpoint at step 4.
    assert seen == [*range(7), *range(4, STEPS)] or seen == [*range(8), *range(4, STEPS)]
    # The noise is that of one process, so only the order of additions differs.
    assert furthest(found, expected) < 1e-5
    lines, torn = read_torn(world.journal())
    assert not torn
    assert len([line for line in lines if line["kind"] == "release"]) == STEPS
    read_ledger(compose_ledger(make_plan().to_json(), lines))
    # No key and no record is left beside the checkpoint, and no process.
    assert sorted(place.name for place in world.checkpoints.iterdir()) == ["lock", FILE]


@pytest.mark.exhaustive
def test_a_run_that_loses_processes_too_often_goes_on_with_the_same_command(
    tmp_path: Path, base: Path
) -> None:
    world = World(tmp_path / "several", base)
    launch = ELASTIC.model_copy(update={"restarts": 0, "layout": "sharded"})

    def kill_one(number: int, trainer: LaunchedTrainer) -> None:
        if number == 5:
            os.kill(workers(trainer)[0], signal.SIGKILL)

    with pytest.raises(LaunchError, match=r"was lost.*Run the same command again"):
        train(world, launch, kill_one)
    charged = [line for line in read_torn(world.journal())[0] if line["kind"] == "release"]
    assert 6 <= len(charged) <= 7
    assert not list(world.checkpoints.glob("job-*"))
    found = train(world, launch)
    lines, _ = read_torn(world.journal())
    assert [line for line in lines if line["kind"] == "release"][: len(charged)] == charged
    assert len([line for line in lines if line["kind"] == "release"]) == STEPS
    assert all(bool(torch.isfinite(value).all()) for value in found.values())


@pytest.mark.exhaustive
def test_an_external_training_waits_for_the_command_that_it_prints(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, world = World(tmp_path / "alone", base), World(tmp_path / "several", base)
    expected = train(alone, HERE)
    started: list[subprocess.Popen[bytes]] = []

    def start(text: str) -> None:
        """Starts what is printed, as a person would in another terminal."""
        started.append(subprocess.Popen(shlex.split(text), env={**os.environ, "OMP_NUM_THREADS": "1"}))

    monkeypatch.setattr("raptor.launch.trainer.say", start)
    found = train(world, LaunchConfig(backend="external", processes=2, patience_minutes=20))
    assert len(started) == 1
    assert started[0].wait(600) == 0
    assert furthest(found, expected) < 1e-5
    assert len([line for line in read_torn(world.journal())[0] if line["kind"] == "release"]) == STEPS
