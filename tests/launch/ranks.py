"""Four processes with one gloo group, for all tests of a module, and what they are asked to do."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from raptor.accounting.plan import PrivacyPlan
from raptor.accounting.types import Release
from raptor.dp.config import LoRAConfig
from raptor.dp.optimizer import ReleaseOptimizer
from raptor.dp.records import EncodedRecords
from raptor.dp.sampling import PoissonSampler
from raptor.dp.state import StreamState, TrainingState
from raptor.dp.streams import RandomSource
from raptor.dp.team import Alone, Team
from raptor.dp.training import Trainer
from raptor.launch.teams import Replicated, Sharded
from tests.dp.crashes import make_plan, make_records, settings
from tests.families import family_classifier
from tests.tiny import tiny_classifier

SIZE = 4
TIMEOUT = timedelta(minutes=10)
TEAMS: dict[str, Callable[..., Any]] = {"replicated": Replicated, "sharded": Sharded}
Updates = list[dict[str, np.ndarray]]


def _serve(rank: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=TIMEOUT
    )
    groups = {1: None, 2: dist.new_group([0, 1]), SIZE: dist.group.WORLD}
    while (asked := pipe.recv()) is not None:
        size, work, given = asked
        try:
            pipe.send((True, work(groups[size], *given)))
        except BaseException as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))
    dist.destroy_process_group()


class Crew:
    """The processes; forked from one that has imported everything, so that they start at once."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipes, self._processes = [], []
        for rank in range(SIZE):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(folder / "store"), there), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, size: int, work: Callable[..., Any], *given: Any) -> list[Any]:
        """What the first `size` processes return."""
        for pipe in self._pipes[:size]:
            pipe.send((size, work, given))
        answers = [pipe.recv() for pipe in self._pipes[:size]]
        for is_right, answer in answers:
            assert is_right, answer
        return [answer for _, answer in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)


def quiet_plan(noise: float) -> PrivacyPlan:
    """The plan of the tests with another noise multiplier."""
    plan = make_plan()
    return replace(plan, streams=tuple(replace(stream, noise_multiplier=noise) for stream in plan.streams))


def source_of(team: Any) -> RandomSource:
    """As the first process hands them out: one source of its own for each process that adds noise."""
    source = RandomSource.seeded(3)
    if team.rank < getattr(team, "makers", 1):
        return source.member(team.rank)
    return RandomSource.secure()


def make_trainer(
    team: Any,
    family: str,
    noise: float,
    records: EncodedRecords | None = None,
    sink: Any = None,
    lora: bool = False,
) -> Trainer:
    dtype = torch.float32
    model = tiny_classifier(dtype=dtype) if family == "switch" else family_classifier(family, dtype)
    config = settings(**({"trainable": "lora", "lora": LoRAConfig(rank=2)} if lora else {}))
    held = make_records() if records is None else records
    journal: list[Release] = []
    return Trainer(
        model, held, quiet_plan(noise), config, source_of(team), journal if sink is None else sink, team
    )


def team_of(group: Any, layout: str) -> Team:
    return Alone() if layout == "alone" else TEAMS[layout](group)


def whole(value: Tensor) -> np.ndarray:
    found = value.full_tensor() if isinstance(value, DTensor) else value
    return found.detach().numpy().copy()


class Recorded:
    """Within it, optimizers note what they are given and change nothing, and samples are those that are given."""

    def __init__(self, samples: Sequence[Sequence[int]] | None = None) -> None:
        self.updates: Updates = []
        self._samples = None if samples is None else iter(samples)
        self._kept = (ReleaseOptimizer.apply, PoissonSampler.draw)

    def __enter__(self) -> Updates:
        def noted(_optimizer: ReleaseOptimizer, update: dict[str, Tensor]) -> None:
            self.updates.append({name: whole(value) for name, value in update.items()})

        def given(_sampler: PoissonSampler) -> Tensor:
            assert self._samples is not None
            return torch.tensor(next(self._samples), dtype=torch.int64)

        ReleaseOptimizer.apply = noted  # type: ignore[method-assign]
        if self._samples is not None:
            PoissonSampler.draw = given  # type: ignore[method-assign]
        return self.updates

    def __exit__(self, *_: object) -> None:
        ReleaseOptimizer.apply, PoissonSampler.draw = self._kept  # type: ignore[method-assign]


# Each of these runs in every process of a group.


def updates(
    group: Any,
    layout: str,
    family: str,
    noise: float,
    samples: Sequence[Sequence[int]] | None = None,
    lora: bool = False,
    steps: int = 3,
) -> Updates:
    """What the optimizers get in the first steps: two shared ones, and one of experts."""
    trainer = make_trainer(team_of(group, layout), family, noise, lora=lora)
    with Recorded(samples) as found:
        for _ in zip(range(steps), trainer.steps(), strict=False):
            pass
    return found


def parts(group: Any, layout: str, drawn: list[int]) -> list[int]:
    team = team_of(group, layout)
    return team.part(lambda: torch.tensor(drawn, dtype=torch.int64)).tolist()


def keystreams(group: Any, layout: str) -> dict[str, tuple[bytes, int]]:
    """Key and bytes used of each keystream after three steps."""
    trainer = make_trainer(team_of(group, layout), "olmoe", 0.9)
    with Recorded():
        for _ in zip(range(3), trainer.steps(), strict=False):
            pass
    return {
        f"{name}/{kind}": (stream._key, stream.position)
        for name, held in trainer._private_streams().items()
        for kind, stream in (("coins", held._sampler.coins), ("noise", held._mechanism.noise))
    }


def blocks_of_noise(group: Any, layout: str, noise: float) -> list[dict[str, np.ndarray]]:
    """The noise of two shared steps and one of experts on empty samples, each process's own part of it."""
    team = team_of(group, layout)
    trainer = make_trainer(team, "olmoe", noise)
    found: list[dict[str, np.ndarray]] = []
    spread = team.spread

    def noted(released: dict[str, Tensor]) -> dict[str, Tensor]:
        found.append({name: value.detach().numpy().copy() for name, value in released.items()})
        return spread(released)

    team.spread = noted  # type: ignore[method-assign]
    with Recorded([[], [], []]):
        for _ in zip(range(3), trainer.steps(), strict=False):
            pass
    return found


def resumed(group: Any, layout: str, stop: int) -> tuple[list[Any], bool]:
    """Weights of a training that was kept after some steps and taken up by new trainers; and of one that was not."""
    results = []
    for is_broken in (False, True):
        team = team_of(group, layout)
        sink: list[Release] = []
        trainer = make_trainer(team, "olmoe", 0.9, sink=sink)
        steps = trainer.steps()
        for _ in range(stop):
            next(steps)
        if is_broken:
            state = trainer.state()
            tensors = team.full(state.tensors)  # type: ignore[attr-defined]
            held = [tensors]
            dist.broadcast_object_list(held, group=group, group_src=0)
            again = team_of(group, layout)
            trainer = make_trainer(again, "olmoe", 0.9, sink=sink)
            streams = {name: StreamState(**vars(stream)) for name, stream in state.streams.items()}
            laid = again.laid_out(held[0])  # type: ignore[attr-defined]
            trainer.begin("raptor", TrainingState(state.finished, source_of(again).member(0), streams, laid))
            steps = trainer.remaining()
        for _ in steps:
            pass
        state = trainer.state()
        results.append({name: whole(value) for name, value in state.tensors.items()})
    same = all(np.array_equal(results[0][name], results[1][name]) for name in results[0])
    return [sorted(results[0]) == sorted(results[1])], same
