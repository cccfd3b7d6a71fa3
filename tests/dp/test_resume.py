"""A training that was killed goes on as if nothing had happened, pays for what it repeats, or says why not."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from raptor.accounting.chain import read_torn, seal
from raptor.accounting.journal import ReleaseJournal
from raptor.accounting.ledger import compose_ledger, read_ledger
from raptor.dp import checkpoints
from raptor.dp.checkpoints import FILE, CheckpointStore
from raptor.dp.config import LoRAConfig
from raptor.dp.identity import RECORDS, differences, run_identity
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.streams import RandomSource
from raptor.errors import CheckpointError, LedgerError, ReplayError
from tests.dp.crashes import STEPS, World, digest, make_plan, make_records, settings

PLAN = make_plan()


@pytest.fixture(scope="module", name="base")
def _base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return World(tmp_path_factory.mktemp("whole")).base


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory, base: Path) -> World:
    """A training that nobody has killed."""
    world = World(tmp_path_factory.mktemp("whole") / "run", base)
    world.finish()
    return world


@pytest.fixture(name="world")
def _world(tmp_path: Path, base: Path) -> World:
    return World(tmp_path / "run", base)


def counts(lines: list[dict]) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "release":
            name = line["data"]["stream"]
            found[name] = found.get(name, 0) + 1
    return found


# Streams and states.


@pytest.mark.parametrize("before", [0, 1, 7, 1000])
def test_a_stream_goes_on_at_any_position(before: int) -> None:
    stream = RandomSource.seeded(1).stream("x")
    stream.normals([before])
    stream.coins(before, 0.3)
    position = stream.position
    coins, normals = stream.coins(33, 0.5), stream.normals([4097])
    again = RandomSource.seeded(1).stream("x")
    again.seek(position)
    assert torch.equal(again.coins(33, 0.5), coins)
    assert torch.equal(again.normals([4097]), normals)
    assert again.position == stream.position


def test_a_fresh_source_shares_nothing_with_the_one_before() -> None:
    for source in (RandomSource.seeded(1), RandomSource.secure()):
        fresh = source.fresh()
        assert (fresh.name, fresh.is_secure) == (source.name, source.is_secure)
        assert not torch.isin(fresh.stream("x").normals([500]), source.stream("x").normals([500])).any()


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 8, 11, STEPS])
def test_a_training_that_stopped_anywhere_ends_with_the_same_bits(
    stop: int, world: World, whole: World
) -> None:
    world.train(until=stop)
    lines, words, _ = world.finish()
    assert "goes on after step" in words
    assert digest(world.model) == digest(whole.model)
    assert lines == read_torn(whole.journal())[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"trainable": "lora", "lora": LoRAConfig(rank=2)},
        {"schedule": "constant", "frozen": ("*.shared.weight",)},
        {"checkpoint_every": 1},
        {"checkpoint_every": 100},
    ],
)
def test_every_kind_of_training_is_resumed(changes: dict, tmp_path: Path, base: Path) -> None:
    config = settings(**changes)
    plan = make_plan()
    straight, broken = World(tmp_path / "straight", base), World(tmp_path / "broken", base)
    straight.finish(config=config, plan=plan)
    for _ in range(3):
        broken.train(config=config, plan=plan, until=3)
    broken.finish(config=config, plan=plan)
    assert digest(broken.model) == digest(straight.model)


def test_a_secure_key_is_kept_and_not_drawn_again(world: World) -> None:
    world.train(randomness=RandomSource.seeded(11), until=6)
    with CheckpointStore(world.checkpoints) as store:
        found = store.load()
    assert found is not None
    _, _, trainer = world.finish(randomness=RandomSource.seeded(12))
    assert trainer.state().randomness.key == found.state.randomness.key == RandomSource.seeded(11).key


def test_how_often_checkpoints_are_made_may_change(world: World, whole: World) -> None:
    world.train(until=7)
    world.train(config=settings(checkpoint_every=1), until=2)
    world.finish(config=settings(checkpoint_every=0))
    assert digest(world.model) == digest(whole.model)


def test_without_checkpoints_nothing_is_kept_and_nothing_resumed(world: World) -> None:
    for _ in range(2):
        _, words, _ = world.train(config=settings(checkpoint_every=0), until=5)
        assert "A new private training begins. No checkpoints are written" in words
    assert not (world.checkpoints / FILE).exists()
    assert len(list(world.journals.iterdir())) == 2


def test_the_checkpoint_is_closed_to_others_and_deleted_at_the_end(world: World) -> None:
    world.train(until=5)
    assert stat.S_IMODE(world.checkpoints.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in world.checkpoints.iterdir()} == {0o600}
    lines, _, _ = world.finish()
    with CheckpointStore(world.checkpoints) as store:
        store.discard_if_ended([{"hash": "another training's"}])
        assert store.file.exists()
        store.discard_if_ended(lines)
        assert not store.file.exists()


def test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.train(until=5)
    with CheckpointStore(world.checkpoints) as store:
        found, old = store.load(), digest(store.file)
        assert found is not None
        order: list[str] = []
        sync, write, replace = os.fsync, checkpoints.save_file, Path.replace

        def synced(descriptor: int) -> None:
            sync(descriptor)
            order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

        def written(*given: Any) -> None:
            write(*given)
            order.append("written")
            assert digest(store.file) == old

        def replaced(place: Path, target: Path) -> Path:
            order.append("replaced")
            return replace(place, target)

        monkeypatch.setattr(checkpoints.os, "fsync", synced)
        monkeypatch.setattr(checkpoints, "save_file", written)
        monkeypatch.setattr(Path, "replace", replaced)
        store.save(dataclasses.replace(found, length=found.length - 1))
        assert order == ["written", "file", "replaced", "folder"]


def test_a_disk_that_refuses_leaves_the_old_checkpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.train(until=5)
    with CheckpointStore(world.checkpoints) as store:
        found, old = store.load(), digest(store.file)
        assert found is not None

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(checkpoints, "save_file", refuse)
        with pytest.raises(CheckpointError, match="No space left"):
            store.save(found)
        assert digest(store.file) == old


def test_two_processes_at_once_are_refused(world: World) -> None:
    with (
        CheckpointStore(world.checkpoints),
        pytest.raises(CheckpointError, match="Another process is training"),
    ):
        world.train(until=1)
    world.train(until=1)


# What is not whole, or of something else.


@pytest.mark.parametrize("keep", [0, 7, 200, 5000, -1])
def test_a_checkpoint_that_is_cut_is_refused(keep: int, world: World) -> None:
    world.train(until=5)
    place = world.checkpoints / FILE
    place.write_bytes(place.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"is damaged .*training.resume=never"):
        world.train()
    assert len(list(world.journals.iterdir())) == 1


@pytest.mark.parametrize("where", [0.02, 0.2, 0.5, 0.9999])
def test_a_checkpoint_with_another_bit_is_refused(where: float, world: World) -> None:
    world.train(until=5)
    place = world.checkpoints / FILE
    content = bytearray(place.read_bytes())
    content[int(where * len(content))] ^= 4
    place.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="is damaged"):
        world.train()


def test_a_checkpoint_without_its_journal_is_refused(world: World) -> None:
    world.train(until=5)
    world.journal().rename(world.journals / "moved-away")
    with pytest.raises(CheckpointError, match=r"journal cannot be used: .* cannot be read"):
        world.train()


def test_a_journal_that_was_set_back_is_refused(world: World) -> None:
    world.train(until=5)
    lines = world.journal().read_bytes().splitlines(keepends=True)
    world.journal().write_bytes(b"".join(lines[:3]))
    with pytest.raises(CheckpointError, match="not the journal that belongs to the checkpoint"):
        world.train()


def test_a_journal_of_other_releases_is_refused(world: World) -> None:
    world.train(until=5)
    forged: list[dict] = []
    for line in read_torn(world.journal())[0]:
        data = {**line["data"], **({"dimension": 7} if line["kind"] == "release" else {})}
        forged.append(
            seal(len(forged), line["kind"], data, forged[-1]["hash"] if forged else line["previous"])
        )
    world.journal().write_text("".join(f"{json.dumps(line)}\n" for line in forged))
    with pytest.raises(CheckpointError, match="not the journal that belongs to the checkpoint"):
        world.train()


def test_a_checkpoint_of_another_run_is_refused(world: World, tmp_path: Path, base: Path) -> None:
    other = World(tmp_path / "other", base)
    other.train(until=5)
    world.train(until=5)
    (other.checkpoints / FILE).replace(world.checkpoints / FILE)
    with pytest.raises(CheckpointError, match="journal cannot be used"):
        world.train()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"config": settings(head_learning_rate=0.1)}, "training.head_learning_rate was 0.05, is 0.1"),
        ({"config": settings(physical_batch_size=6)}, "training.physical_batch_size was 5, is 6"),
        ({"records": make_records(labels=1)}, "the private records or their owners changed"),
        ({"plan": make_plan(epsilon=9.0)}, "privacy plan: epsilon_target was 8.0, is 9.0"),
    ],
)
def test_another_training_is_refused_and_the_budget_told(given: dict, says: str, world: World) -> None:
    world.train(until=6)
    before = digest(world.journal()), digest(world.checkpoints / FILE)
    with pytest.raises(CheckpointError) as caught:
        world.train(**given)
    message = str(caught.value)
    assert says in message
    assert "4 of 8 shared, 2 of 4 expert releases, which cost epsilon" in message
    assert "training.resume=never" in message
    with CheckpointStore(world.checkpoints) as store:
        found = store.load()
    assert found is not None
    private = (found.identity[RECORDS], found.salt.hex(), found.state.randomness.key.hex())
    assert not any(value in message for value in private)
    assert before == (digest(world.journal()), digest(world.checkpoints / FILE))


def test_other_code_is_refused(world: World) -> None:
    world.train(until=2)
    world.code = "0" * 64
    with pytest.raises(CheckpointError, match="raptor's code changed"):
        world.train()


def test_identities_know_the_code_and_hide_the_records(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(salt: bytes = b"salt") -> dict:
        return run_identity(PLAN, settings(), base, make_records(), torch.device("cpu"), salt)

    here = identity()
    assert differences(here, identity()) == []
    assert differences(here, identity(b"other")) == ["the private records or their owners changed"]
    monkeypatch.setattr("raptor.dp.identity.source_digest", lambda folder: "0" * 64)
    assert differences(here, identity()) == ["raptor's code changed"]


@pytest.mark.parametrize("damaged", [False, True])
def test_never_gives_up_the_old_run_and_says_what_it_cost(damaged: bool, world: World) -> None:
    world.train(until=6)
    if damaged:
        (world.checkpoints / FILE).write_bytes(b"x")
    lines, words, _ = world.finish(config=settings(resume="never", head_learning_rate=0.1))
    assert ("damaged checkpoint is given up" if damaged else "which cost epsilon") in words
    assert counts(lines) == {"shared": 8, "expert": 4}
    assert len(list(world.journals.iterdir())) == 2


# Releases that are made again.


def test_a_line_that_was_not_written_to_its_end_is_completed(world: World, whole: World) -> None:
    for cut in (1, 30, 200):
        world.train(until=3)
        os.truncate(world.journal(), world.journal().stat().st_size - cut)
        assert read_torn(world.journal())[1]
    world.finish()
    assert digest(world.journal()) == digest(whole.journal())
    assert digest(world.model) == digest(whole.model)


def test_a_torn_line_that_does_not_fit_is_charged(world: World) -> None:
    world.train(until=6)
    with world.journal().open("ab") as file:
        file.write(b"\0\0\0\0")
    lines, _, trainer = world.finish()
    # Steps 5 and 6 were lost, and so was the one that the zeros stand for.
    assert counts(lines) == {"shared": 8, "expert": 4}
    assert trainer.left_out == 3
    assert read_torn(world.journal()) == (lines, b"")
    assert read_ledger(compose_ledger(PLAN.to_json(), lines)).status in ("complete", "incomplete")


def test_a_replay_that_differs_is_charged_and_uses_no_noise_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that does not give the same bits twice."""
    results: dict[tuple[str, int, bytes], set[str | None]] = {}
    release = GaussianMechanism.release

    def noted(self: GaussianMechanism, total):
        place = (self.stream.name, self.noise.position, self.noise._key)
        result = release(self, total)
        results.setdefault(place, set()).add(self.last)
        return result

    def rounded(self: GaussianMechanism, total):
        for tensor in total.tensors.values():
            tensor.mul_(1 - 1e-6)
        return noted(self, total)

    monkeypatch.setattr(GaussianMechanism, "release", noted)
    world.train(until=7)
    monkeypatch.setattr(GaussianMechanism, "release", rounded)
    lines, _, trainer = world.finish()
    made = counts(lines)
    assert made["shared"] <= 8
    assert made["expert"] <= 4
    assert trainer.left_out == 3
    assert trainer.state().randomness.key != RandomSource.seeded(3).key
    ledger = read_ledger(compose_ledger(PLAN.to_json(), lines))
    assert all(total.executed <= total.planned.steps for total in ledger.totals)
    # What was made again in another way was thrown away before anything was made of it, but for its digest.
    twice = [place for place, found in results.items() if len(found) > 1]
    assert all(key == RandomSource.seeded(3).stream(f"{name}/noise")._key for name, _, key in twice)


def test_crashes_without_end_never_pass_the_plan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    release = GaussianMechanism.release
    scale = iter(range(1, 1000))

    def other(self: GaussianMechanism, total):
        for tensor in total.tensors.values():
            tensor.mul_(1 - 1e-6 * next(scale))
        return release(self, total)

    monkeypatch.setattr(GaussianMechanism, "release", other)
    for _ in range(12):
        lines, _, trainer = world.train(until=3)
    lines, _, trainer = world.finish()
    assert all(made <= PLAN.stream(name).steps for name, made in counts(lines).items())
    assert trainer.left_out > 0
    read_ledger(compose_ledger(PLAN.to_json(), lines))


def test_no_checkpoint_is_made_of_releases_that_are_not_known_to_be_the_same(world: World) -> None:
    world.train(config=settings(checkpoint_every=100), until=7)
    before = digest(world.checkpoints / FILE)
    world.train(config=settings(checkpoint_every=1), until=6)
    assert digest(world.checkpoints / FILE) == before
    world.train(config=settings(checkpoint_every=1), until=7)
    assert digest(world.checkpoints / FILE) != before


def test_the_journal_compares_what_is_made_again(world: World) -> None:
    world.train(until=4)
    lines, _ = read_torn(world.journal())
    releases = [line["data"] for line in lines[1:]]
    from raptor.accounting.types import Release

    made = [Release.from_json(data) for data in releases]
    assert made[0].follows is None
    assert made[1].follows is not None
    with ReleaseJournal.resume(world.journal(), 1, lines[0]["hash"]) as journal:
        assert journal.append(made[0]) == lines[1]
        assert journal.is_replaying
        with pytest.raises(ReplayError, match="line 3 of"):
            journal.append(made[2])
    assert read_torn(world.journal())[0] == lines


@pytest.mark.parametrize("forge", ["dropped", "repeated", "moved"])
def test_a_forged_journal_of_a_resumed_run_is_refused(forge: str, world: World) -> None:
    world.train(until=6)
    lines, _, _ = world.finish()
    body = [(line["kind"], line["data"]) for line in lines]
    if forge == "dropped":
        del body[5]
    elif forge == "repeated":
        body.insert(5, body[5])
    else:
        body[4], body[7] = body[7], body[4]
    forged: list[dict] = []
    for index, (kind, data) in enumerate(body):
        forged.append(seal(index, kind, data, forged[-1]["hash"] if forged else "0" * 64))
    with pytest.raises(LedgerError, match=r"missing, repeated or moved|the plan allows"):
        compose_ledger(PLAN.to_json(), forged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "in_writes"), [(12, 1), pytest.param(110, 20, marks=pytest.mark.exhaustive)]
)
def test_killed_many_times_at_random_moments(kills: int, in_writes: int) -> None:
    """SIGKILL before, within and after writes, and at any time: covered by the ledger, and the same bits at the end."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.dp.crashes", str(kills), str(int.from_bytes(os.urandom(4), "big"))],
        cwd=root,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["trouble"] == [], done.stdout
    assert found["kills"] >= kills
    assert found["in writes"] >= in_writes
