"""Frozen-noise tests: what one record changes, what an empty expert gets, how large the noise is."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Adjacency, Release, Sensitivity, Unit
from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.config import StreamConfig, TrainingConfig
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.streams import RandomSource
from raptor.dp.training import Trainer
from raptor.errors import BudgetError
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import Role, expert_parameters, parameter_roles, shared_parameters
from raptor.moe.routing import record_votes
from tests.tiny import expert_of, tiny_batch, tiny_classifier

LAYER = 1
RECORDS = 12
NORM = 0.05


class Sink(list):
    """A release log in memory."""

    def append(self, release: Release) -> None:
        super().append(release)


def make_plan(rate: float = 1.0, sigma: float = 0.7, steps: int = 2, batch: float = 8.0) -> PrivacyPlan:
    def stream(name: str, denominator: float, blocks: int = 1) -> StreamPlan:
        return StreamPlan(name, rate, sigma, steps, NORM, denominator, blocks)

    return PrivacyPlan(
        unit=Unit.RECORD,
        adjacency=Adjacency.ADD_REMOVE,
        epsilon_target=1.0,
        delta=1e-6,
        epsilon_planned=1.0,
        epsilon_split_sum=1.0,
        population=RECORDS,
        population_source="declared",
        layers=(LAYER,),
        generator="seeded",
        taken_as_public=(),
        streams=(stream(SHARED, batch), stream(EXPERT, batch / 4, 4), stream(MONOLITHIC, batch)),
    )


def make_records(model, indices=None) -> EncodedRecords:
    ids, mask, labels = tiny_batch(records=RECORDS, tokens=6)
    owners = assign_owners(record_votes(model.encoder, ids, mask)[LAYER])
    keep = torch.arange(RECORDS) if indices is None else torch.tensor(indices, dtype=torch.long)
    return EncodedRecords(ids[keep].int(), mask[keep].sum(1), labels[keep], owners[keep])


def settings(**changes) -> TrainingConfig:
    given = {"randomness": "seeded", "seed": 3, "batch_size": 8, "cycles": 1, "device": "cpu"} | changes
    return TrainingConfig(**given)


def released(records: EncodedRecords, plan: PrivacyPlan, stream: str, config: TrainingConfig, seed: int = 3):
    """The releases of one step of one stream, with noise frozen by the seed."""
    model = tiny_classifier()
    captured: list[dict[str, torch.Tensor]] = []
    sink = Sink()
    trainer = Trainer(model, records, plan, config, RandomSource.seeded(seed), sink)
    method = "monolithic" if stream == MONOLITHIC else "raptor"
    schedule = trainer._schedule(method)
    chosen = next(s for s in schedule if s._mechanism.stream.name == stream)
    chosen._optimizer.apply = captured.append
    chosen.step()
    return captured[0], sink


def difference(first: dict, second: dict) -> dict[str, torch.Tensor]:
    return {name: first[name] - second[name] for name in first}


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float(value.square().sum()) for value in tensors.values()))


@pytest.mark.parametrize("stream", [SHARED, EXPERT, MONOLITHIC])
@pytest.mark.parametrize("left_out", range(0, RECORDS, 3))
def test_one_record_moves_one_block_by_at_most_the_clipping_norm(stream, left_out) -> None:
    plan = make_plan()
    model = tiny_classifier()
    everyone = make_records(model)
    others = make_records(model, [i for i in range(RECORDS) if i != left_out])
    moved = difference(
        released(everyone, plan, stream, settings())[0], released(others, plan, stream, settings())[0]
    )
    limit = NORM / plan.stream(stream).denominator
    expected = {
        SHARED: set(shared_parameters(model)),
        EXPERT: set(expert_parameters(model, [LAYER])),
        MONOLITHIC: set(shared_parameters(model)) | set(expert_parameters(model)),
    }[stream]
    assert set(moved) == expected
    assert norm(moved) <= limit * (1 + 1e-9)
    if stream == EXPERT:
        owner = int(everyone.owners[left_out])
        roles = parameter_roles(model)
        touched = {expert_of(name) for name, value in moved.items() if value.abs().max() > 1e-15}
        assert touched == {owner}
        assert all(roles[name].role is Role.EXPERT and roles[name].layer == LAYER for name in moved)
    # The gradients here are far above the clipping norm, so the record uses all of its share.
    assert norm(moved) > 0.99 * limit


def test_an_expert_without_records_gets_exactly_its_noise() -> None:
    plan = make_plan()
    model = tiny_classifier()
    everyone = make_records(model)
    empty = int(everyone.owners.mode().values)
    rest = make_records(model, [i for i in range(RECORDS) if int(everyone.owners[i]) != empty])
    nobody = make_records(model, [])
    full, _ = released(rest, plan, EXPERT, settings())
    noise, _ = released(nobody, plan, EXPERT, settings())
    blocks = {name for name in full if expert_of(name) == empty}
    assert blocks
    assert all(torch.equal(full[name], noise[name]) for name in blocks)
    assert all(noise[name].abs().min() > 0 for name in noise)
    assert any(not torch.equal(full[name], noise[name]) for name in full if name not in blocks)


@pytest.mark.parametrize("stream", [SHARED, EXPERT, MONOLITHIC])
@pytest.mark.parametrize("size", [1, 5, RECORDS])
def test_physical_batches_change_nothing(stream, size) -> None:
    records = make_records(tiny_classifier())
    whole, _ = released(records, make_plan(), stream, settings(physical_batch_size=100))
    split, _ = released(records, make_plan(), stream, settings(physical_batch_size=size))
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stream", [SHARED, EXPERT])
@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_the_noise_has_deviation_sigma_times_c_over_the_denominator(stream, sigma) -> None:
    plan = make_plan(sigma=sigma)
    noise, sink = released(make_records(tiny_classifier(), []), plan, stream, settings())
    expected = sigma * NORM / plan.stream(stream).denominator
    values = torch.cat([value.flatten() for value in noise.values()])
    statistic = float((values / expected).square().sum())
    # Chi-square with this many degrees of freedom: five standard deviations either side.
    assert abs(statistic - len(values)) < 5 * math.sqrt(2 * len(values))
    assert sink[0].dimension == len(values)
    assert sink[0].noise_multiplier == sigma


def test_noise_of_two_blocks_and_of_two_steps_is_unrelated() -> None:
    plan = make_plan()
    model = tiny_classifier()
    captured: list[dict[str, torch.Tensor]] = []
    trainer = Trainer(model, make_records(model, []), plan, settings(), RandomSource.seeded(1), Sink())
    stream = next(s for s in trainer._schedule("raptor") if s._mechanism.stream.name == EXPERT)
    stream._optimizer.apply = captured.append
    stream.step()
    stream.step()
    vectors = [
        torch.cat([value.flatten() for name, value in step.items() if f"expert_{expert}." in name])
        for step in captured
        for expert in range(4)
    ]
    correlation = torch.corrcoef(torch.stack(vectors)) - torch.eye(len(vectors), dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(len(vectors[0]))


def test_two_private_runs_never_repeat_noise() -> None:
    plan = make_plan()
    config = settings(randomness="secure", seed=None)
    nobody = make_records(tiny_classifier(), [])

    def run() -> torch.Tensor:
        captured: list[dict[str, torch.Tensor]] = []
        trainer = Trainer(tiny_classifier(), nobody, plan, config, RandomSource.secure(), Sink())
        stream = trainer._schedule("raptor")[0]
        stream._optimizer.apply = captured.append
        stream.step()
        return torch.cat([value.flatten() for value in captured[0].values()])

    # On the lattice a few numbers of thousands are equal by chance.
    assert torch.isin(run(), run()).double().mean() < 0.02


def test_an_unsampled_step_is_a_normal_step() -> None:
    """A rate so small that every sample is empty: all steps are released, charged and applied."""
    model = tiny_classifier()
    before = {name: value.clone() for name, value in model.named_parameters()}
    sink = Sink()
    Trainer(
        model, make_records(model), make_plan(rate=1e-9), settings(cycles=2), RandomSource.seeded(0), sink
    ).train()
    assert [(release.stream, release.step) for release in sink] == [
        (SHARED, 0), (EXPERT, 0), (SHARED, 1), (EXPERT, 1),
    ]  # fmt: skip
    trained = {*shared_parameters(model), *expert_parameters(model, [LAYER])}
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) == (name not in trained), name


def test_the_ledger_is_written_before_noise_is_drawn() -> None:
    class Refusing:
        def append(self, release: Release) -> None:
            raise OSError("disk full")

    class Untouched:
        def normals(self, shape):
            raise AssertionError("noise was drawn before the release was written")

    mechanism = GaussianMechanism(make_plan().streams[0], Untouched(), "seeded:test", Refusing())
    total = ClippedSum({"w": torch.zeros(3)}, ClippingRule(NORM).sensitivity)
    with pytest.raises(OSError, match="disk full"):
        mechanism.release(total)


def test_no_release_beyond_the_plan_and_none_of_another_sensitivity() -> None:
    stream = make_plan(steps=1).streams[0]
    sink = Sink()
    mechanism = GaussianMechanism(stream, RandomSource.seeded(0).stream("x"), "seeded:test", sink)
    with pytest.raises(BudgetError, match="sensitivity"):
        mechanism.release(
            ClippedSum({"w": torch.zeros(3)}, Sensitivity(2 * NORM, Adjacency.ADD_REMOVE, Unit.RECORD))
        )
    assert not sink
    mechanism.release(ClippedSum({"w": torch.zeros(3)}, ClippingRule(NORM).sensitivity))
    with pytest.raises(BudgetError, match="planned"):
        mechanism.release(ClippedSum({"w": torch.zeros(3)}, ClippingRule(NORM).sensitivity))
    assert len(sink) == 1


def test_streams_sample_independently() -> None:
    """One sample for both streams would be one event, and cost more than the ledger says."""
    model = tiny_classifier()
    trainer = Trainer(
        model, make_records(model), make_plan(rate=0.5), settings(), RandomSource.seeded(5), Sink()
    )
    shared, expert = trainer._schedule("raptor")
    draws = torch.zeros(2, 400, RECORDS)
    for step in range(400):
        draws[0, step, shared._sampler.draw()] = 1
        draws[1, step, expert._sampler.draw()] = 1
    correlation = torch.corrcoef(draws.flatten(1))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(400 * RECORDS)


def test_coins_and_noise_of_all_streams_have_keystreams_of_their_own() -> None:
    """Coins from the bits of the noise would tie the sample to it; noise of two streams could be subtracted."""
    model = tiny_classifier()
    trainer = Trainer(model, make_records(model), make_plan(), settings(), RandomSource.seeded(5), Sink())
    shared, expert = trainer._schedule("raptor")
    assert sorted(trainer.keystreams) == ["expert/coins", "expert/noise", "shared/coins", "shared/noise"]
    streams = [stream for step in (shared, expert) for stream in (step._sampler.coins, step._mechanism.noise)]
    drawn = torch.cat([stream.normals((500,)) for stream in streams])
    assert len(drawn.unique()) == len(drawn)


def test_the_router_stays_as_it_is() -> None:
    model = tiny_classifier()
    routers = {n: v.clone() for n, v in model.named_parameters() if ".router." in n}
    Trainer(
        model, make_records(model), make_plan(), settings(cycles=2), RandomSource.seeded(0), Sink()
    ).train()
    assert routers
    assert all(torch.equal(model.get_parameter(name), value) for name, value in routers.items())


def test_seed_and_secure_mode_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="seed"):
        TrainingConfig(seed=1)
    with pytest.raises(ValueError, match="seed"):
        TrainingConfig(randomness="seeded")


def test_a_schedule_without_expert_steps_trains_no_expert() -> None:
    model = tiny_classifier()
    before = {name: model.get_parameter(name).clone() for name in expert_parameters(model)}
    config = settings(expert=StreamConfig(steps_per_cycle=0))
    plan = dataclasses.replace(make_plan(), streams=make_plan().streams[:1])
    Trainer(model, make_records(model), plan, config, RandomSource.seeded(0), Sink()).train()
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())
