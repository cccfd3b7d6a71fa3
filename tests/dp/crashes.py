"""A private training on made-up records, and a harness that kills it with SIGKILL wherever it may be.

python -m tests.dp.crashes KILLS SEED    prints one JSON object with what became of every killed process

Children are forked from a process that has imported everything and has not used autograd, which does not survive
a fork. Kill points are put around the calls that write to the disk here, and not in the product's code.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from raptor.accounting.chain import read_torn
from raptor.accounting.ledger import compose_ledger, read_ledger
from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Adjacency, Unit
from raptor.dp import checkpoints
from raptor.dp.checkpoints import CheckpointStore
from raptor.dp.config import StreamConfig, TrainingConfig
from raptor.dp.identity import run_identity
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.resume import PrivateRun
from raptor.dp.streams import RandomSource
from raptor.dp.training import Trainer
from tests.tiny import tiny_batch, tiny_classifier, tiny_encoder

LAYER, RECORDS, BATCH, EXPERTS = 1, 24, 12, 4
STEPS = 12


def make_plan(epsilon: float = 8.0) -> PrivacyPlan:
    streams = (
        StreamPlan(SHARED, BATCH / RECORDS, 0.9, 8, 0.5, float(BATCH)),
        StreamPlan(EXPERT, BATCH / RECORDS, 0.9, 4, 0.5, BATCH / EXPERTS, EXPERTS),
    )
    return PrivacyPlan(
        unit=Unit.RECORD,
        adjacency=Adjacency.ADD_REMOVE,
        epsilon_target=epsilon,
        delta=1e-3,
        epsilon_planned=epsilon,
        epsilon_split_sum=epsilon,
        population=RECORDS,
        population_source="declared",
        layers=(LAYER,),
        generator="seeded:aes-256-ctr",
        taken_as_public=(),
        streams=streams,
    )


def settings(**changes: Any) -> TrainingConfig:
    given = {
        "randomness": "seeded", "seed": 3, "batch_size": BATCH, "cycles": 4, "device": "cpu", "threads": 1,
        "physical_batch_size": 5, "checkpoint_every": 4, "head_learning_rate": 0.05,
        "shared": StreamConfig(steps_per_cycle=2, clipping_norm=0.5),
        "expert": StreamConfig(steps_per_cycle=1, clipping_norm=0.5),
    }  # fmt: skip
    return TrainingConfig(**given | changes)


def make_records(labels: int = 0) -> EncodedRecords:
    """Records; the label of the first one is moved by `labels`."""
    ids, mask, classes = tiny_batch(records=RECORDS, tokens=6)
    classes[0] = (classes[0] + labels) % 3
    return EncodedRecords(ids.int(), mask.sum(1), classes, torch.arange(RECORDS) % EXPERTS)


def digest(place: Path) -> str:
    """SHA-256 of a file. Of two models that differ pytest would write a comparison, which takes it for ever."""
    return hashlib.sha256(place.read_bytes()).hexdigest()


class World:
    """The folders of a training, as the project has them."""

    def __init__(self, folder: Path, base: Path | None = None) -> None:
        self.journals, self.checkpoints = folder / "journals", folder / "checkpoints"
        self.model = folder / "model.safetensors"
        # Not the digest of the files: whoever edits them while the tests run would make other code of it.
        self.code = "that of the tests"
        self.journals.mkdir(parents=True)
        self.base = base or folder / "base"
        if base is None:
            tiny_encoder().save_pretrained(self.base)

    def train(
        self,
        config: TrainingConfig | None = None,
        *,
        records: EncodedRecords | None = None,
        plan: PrivacyPlan | None = None,
        until: int = STEPS,
        randomness: RandomSource | None = None,
    ) -> tuple[list[dict[str, Any]], str, Trainer]:
        """What the training node does; stops like a killed process after `until` steps of this process.

        Returns:
            The journal's lines, what is said about the run, and the trainer.
        """
        config, plan = config or settings(), plan or make_plan()
        given = make_records() if records is None else records
        device = torch.device("cpu")
        model = tiny_classifier(dtype=torch.float32)
        with CheckpointStore(self.checkpoints) as store:
            run, words = PrivateRun.open(
                store, self.journals, plan, config, randomness or RandomSource.seeded(3),
                lambda salt: run_identity(plan, config, self.base, given, device, salt)
                | {"raptor's code": self.code},
            )  # fmt: skip
            with run.journal as journal:
                trainer = Trainer(model, given, plan, config, run.randomness, journal)
                made = 0
                steps = run.steps(trainer)
                while made < until and next(steps, None) is not None:
                    made += 1
                if made < until:
                    trainer.finish()
                    partial = self.model.with_suffix(".partial")
                    save_file(dict(model.named_parameters()), partial)
                    partial.replace(self.model)
                return journal.lines(), words, trainer

    def finish(self, **given: Any) -> tuple[list[dict[str, Any]], str, Trainer]:
        """Train to the end."""
        return self.train(until=10**6, **given)

    def journal(self) -> Path:
        """The journal; one of a process that was killed before its first checkpoint holds no release."""
        found = sorted(self.journals.glob("*.jsonl"), key=lambda path: path.stat().st_size)
        return found[-1]


class KillPoints:
    """Counts the calls that write to the disk, and kills the process in one of them."""

    def __init__(self, at: int, how: str) -> None:
        self._left = at
        self._how = how

    def install(self) -> None:
        os.write = self._write(os.write)  # type: ignore[assignment]
        os.fsync = self._whole(os.fsync)  # type: ignore[assignment]
        os.replace = self._whole(os.replace)  # type: ignore[assignment]
        checkpoints.save_file = self._file(checkpoints.save_file)  # type: ignore[attr-defined]

    def _due(self) -> bool:
        self._left -= 1
        return self._left < 0

    def _whole(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            due = self._due()
            if due and self._how != "after":
                die()
            result = call(*arguments, **options)
            if due:
                die()
            return result

        return wrapped

    def _write(self, call: Callable[..., int]) -> Callable[..., int]:
        def wrapped(descriptor: int, data: Any) -> int:
            due = self._due()
            if due and self._how == "before":
                die()
            part = data[: random.randrange(1, len(data))] if due and self._how == "within" else data
            result = call(descriptor, part)
            if due:
                die()
            return result

        return wrapped

    def _file(self, call: Callable[..., None]) -> Callable[..., None]:
        def wrapped(tensors: Any, path: Path, metadata: Any) -> None:
            due = self._due()
            if due and self._how == "before":
                die()
            call(tensors, path, metadata)
            if due and self._how == "within":
                os.truncate(path, random.randrange(Path(path).stat().st_size))
            if due:
                die()

        return wrapped


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Child:
    """A forked process that trains, and says over a pipe which results have left the mechanism."""

    def __init__(self, world: World, prepare: Callable[[], None] = lambda: None) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        os.close(self._read)
        try:
            report(write)
            prepare()
            world.finish()
        except BaseException as error:
            os.close(2)
            WRITE(write, f"ERROR {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)

    def wait(self, seconds: float | None = None) -> tuple[bool, list[str]]:
        """Kill it after some seconds, or let it end; whether it was killed, and what it said."""
        if seconds is not None:
            time.sleep(seconds)
            os.kill(self.pid, signal.SIGKILL)
        with os.fdopen(self._read) as pipe:
            said = pipe.read().splitlines()
        _, status = os.waitpid(self.pid, 0)
        return os.WIFSIGNALED(status), said


WRITE = os.write


def report(pipe: int) -> None:
    release = GaussianMechanism.release

    def reported(self: GaussianMechanism, total: Any) -> Any:
        step = self.released
        result = release(self, total)
        WRITE(pipe, f"{self.stream.name} {step} {self.last}\n".encode())
        return result

    GaussianMechanism.release = reported  # type: ignore[method-assign]


def kill_many(kills: int, seed: int) -> dict[str, Any]:
    """Kill trainings until there were so many kills; each is resumed, perhaps killed again, and compared."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    trouble: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        tiny_encoder().save_pretrained(base)
        whole = World(Path(folder) / "whole", base)
        start = time.monotonic()
        Child(whole).wait()
        lasts = time.monotonic() - start
        model, releases = whole.model.read_bytes(), release_lines(whole)
        while found["kills"] < kills and not trouble:
            found["trainings"] += 1
            world = World(Path(folder) / str(found["trainings"]), base)
            kill_one(world, draw, lasts, found, trouble)
            if trouble:
                break
            if world.model.read_bytes() != model:
                trouble.append("the resumed model is another one")
            if release_lines(world) != releases:
                trouble.append("the releases are others")
            lines, torn = read_torn(world.journal())
            read_ledger(compose_ledger(make_plan().to_json(), lines))
            if torn or CheckpointStore(world.checkpoints).load() is None:
                trouble.append("journal or checkpoint are not whole at the end")
    return {**found, "trouble": trouble, "releases": len(releases)}


def kill_one(
    world: World, draw: random.Random, lasts: float, found: Counter[str], trouble: list[str]
) -> None:
    """One training: killed once, at times more often, and then let run to its end."""
    results: dict[tuple[str, str], str] = {}
    while not world.model.exists():
        often = draw.random() < (0.6 if results else 1.0)
        if not often:
            killed, said = Child(world).wait()
        elif draw.random() < 0.6:
            point = KillPoints(draw.randrange(60), draw.choice(["before", "within", "after"]))
            random.seed(draw.random())
            killed, said = Child(world, point.install).wait()
            found["in writes"] += killed
        else:
            killed, said = Child(world).wait(draw.random() * lasts)
        found["kills"] += killed
        trouble += [line for line in said if line.startswith("ERROR")]
        if trouble:
            return
        check_results(world, said, results, trouble)
        found["torn lines"] += bool(list(world.journals.glob("*")) and has_torn(world))


def check_results(world: World, said: list[str], results: dict[Any, str], trouble: list[str]) -> None:
    """Every result that left is in the journal, and no release came out in two ways."""
    journaled = {(line["stream"], str(line["step"])) for line in release_lines(world)}
    for line in said:
        if line.count(" ") < 2:
            continue
        stream, step, digest = line.split()
        if (stream, step) not in journaled:
            trouble.append(f"{stream} {step} left without a line in the journal")
        if results.setdefault((stream, step), digest) != digest:
            trouble.append(f"{stream} {step} came out in two ways")


def has_torn(world: World) -> bool:
    return any(path.read_bytes()[-1:] not in (b"\n", b"") for path in world.journals.glob("*.jsonl"))


def release_lines(world: World) -> list[dict[str, Any]]:
    """The releases of the journal that has any."""
    found = []
    for path in world.journals.glob("*.jsonl"):
        if path.read_bytes():
            found += [line["data"] for line in read_torn(path)[0] if line["kind"] == "release"]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kill_many(int(sys.argv[1]), int(sys.argv[2]))))
