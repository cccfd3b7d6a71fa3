"""Users as the unit: a user's gradient is one vector, clipped once, in one expert's block, whatever others do."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from raptor.accounting.types import Adjacency, Unit
from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.records import IGNORED, EncodedRecords
from raptor.errors import DataError
from raptor.moe.families import sparse_layers
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import expert_parameters, shared_parameters
from raptor.moe.routing import record_votes
from raptor.pipelines.training.records import user_groups
from tests.dp import oracle
from tests.dp.test_mechanism import LAYER, NORM, difference, make_plan, norm, released, settings
from tests.families import family_classifier
from tests.tiny import expert_of, tiny_batch, tiny_classifier

# Whose record each is: users of three, one, two, four and two records, not in order.
USERS = (0, 1, 2, 0, 3, 3, 2, 4, 0, 3, 4, 3)
NUMBER = 5
PLAN = dataclasses.replace(make_plan(), unit=Unit.USER, population=NUMBER)
RULE = ClippingRule(NORM, Adjacency.ADD_REMOVE, Unit.USER)
CPU = torch.device("cpu")


def people(model, kept=range(NUMBER), tokens: int = 6, labels: int = 3) -> EncodedRecords:
    """The records of some users, who are numbered anew; owners by all votes of a user together."""
    ids, mask, classes = tiny_batch(records=len(USERS), tokens=tokens, labels=labels)
    votes = record_votes(model.encoder, ids, mask)[LAYER]
    rows = torch.tensor([row for row, user in enumerate(USERS) if user in kept], dtype=torch.long)
    codes = {user: number for number, user in enumerate(kept)}
    who = torch.tensor([codes[USERS[row]] for row in rows], dtype=torch.long)
    total = torch.zeros(len(codes), votes.shape[1], dtype=votes.dtype).index_add_(0, who, votes[rows])
    return EncodedRecords(
        ids[rows].int(), mask[rows].sum(1), classes[rows], assign_owners(total), user_groups(who.numpy())
    )


def engines(model) -> dict[str, JointGradients | OwnerExpertGradients]:
    return {
        SHARED: JointGradients(model, shared_parameters(model)),
        EXPERT: OwnerExpertGradients(model, LAYER),
        MONOLITHIC: JointGradients(model, shared_parameters(model) + expert_parameters(model)),
    }


def true_gradients(model, engine, records: EncodedRecords) -> list[dict[str, torch.Tensor]]:
    """Of each user the mean over the user's own records of their gradients, by ordinary autograd, one at a time."""
    layers = (LAYER,) if isinstance(engine, OwnerExpertGradients) else ()
    found = []
    for user in range(len(records)):
        rows = [int(row) for row in records.groups[user] if row >= 0]
        single = EncodedRecords(
            records.input_ids[rows],
            records.lengths[rows],
            records.labels[rows],
            records.owners[user].repeat(len(rows)),
        )
        batch = single.take(torch.arange(len(rows)), CPU)
        gradients = oracle.record_gradients(model, engine.parameters, batch, owner_layers=layers)
        found.append({name: sum(g[name] for g in gradients) / len(rows) for name in gradients[0]})
    return found


@pytest.mark.parametrize("stream", [SHARED, EXPERT, MONOLITHIC])
@pytest.mark.parametrize("limit", [1e9, NORM])
def test_the_sum_is_of_the_clipped_means_of_users(stream: str, limit: float) -> None:
    model = tiny_classifier()
    records = people(model)
    engine = engines(model)[stream]
    rule = dataclasses.replace(RULE, norm=limit)
    found = engine.clipped_sum(records.take(torch.arange(NUMBER), CPU), rule)
    expected = oracle.clipped_sum(true_gradients(model, engine, records), rule)
    assert found.sensitivity.unit is Unit.USER
    for name, value in expected.items():
        torch.testing.assert_close(found.tensors[name], value, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("family", ["olmoe", pytest.param("deepseek_v2", marks=pytest.mark.exhaustive)])
def test_other_families_too(family: str) -> None:
    model = family_classifier(family)
    ids, mask, labels = tiny_batch(records=len(USERS), tokens=5)
    groups = user_groups(torch.tensor(USERS).numpy())
    owners = torch.arange(NUMBER) % 4
    records = EncodedRecords(ids.int(), mask.sum(1), labels, owners, groups)
    layer = sparse_layers(model)[0].index
    for engine in (JointGradients(model, shared_parameters(model)), OwnerExpertGradients(model, layer)):
        found = engine.clipped_sum(records.take(torch.arange(NUMBER), CPU), RULE)
        layers = (layer,) if isinstance(engine, OwnerExpertGradients) else ()
        true = []
        for user in range(NUMBER):
            rows = [row for row, who in enumerate(USERS) if who == user]
            single = EncodedRecords(
                ids[rows].int(), mask[rows].sum(1), labels[rows], owners[user].repeat(len(rows))
            )
            batch = single.take(torch.arange(len(rows)), CPU)
            parts = oracle.record_gradients(model, engine.parameters, batch, owner_layers=layers)
            true.append({name: sum(part[name] for part in parts) / len(rows) for name in parts[0]})
        for name, value in oracle.clipped_sum(true, RULE).items():
            torch.testing.assert_close(found.tensors[name], value, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("stream", [SHARED, EXPERT, MONOLITHIC])
@pytest.mark.parametrize("left_out", range(NUMBER))
def test_one_user_moves_one_block_by_at_most_the_clipping_norm(stream: str, left_out: int) -> None:
    """Noise frozen, and a user with all records gone; users of one and of four records have the same share."""
    model = tiny_classifier()
    everyone = people(model)
    others = people(model, [user for user in range(NUMBER) if user != left_out])
    moved = difference(
        released(everyone, PLAN, stream, settings())[0], released(others, PLAN, stream, settings())[0]
    )
    limit = NORM / PLAN.stream(stream).denominator
    assert 0.99 * limit < norm(moved) <= limit * (1 + 1e-9)
    if stream == EXPERT:
        touched = {expert_of(name) for name, value in moved.items() if value.abs().max() > 1e-15}
        assert touched == {int(everyone.owners[left_out])}


@pytest.mark.parametrize("stream", [SHARED, EXPERT])
def test_a_record_more_of_a_user_costs_no_more(stream: str) -> None:
    """Two neighbouring data sets may differ in all of a user's records; the bound holds for any set of them."""
    model = tiny_classifier()
    everyone = people(model)
    limit = 2 * NORM / PLAN.stream(stream).denominator
    for row in (0, 4, 9):
        labels = everyone.labels.clone()
        labels[row] = (labels[row] + 1) % 3
        changed = dataclasses.replace(everyone, labels=labels)
        moved = difference(
            released(everyone, PLAN, stream, settings())[0], released(changed, PLAN, stream, settings())[0]
        )
        assert 0 < norm(moved) <= limit


@pytest.mark.parametrize("stream", [SHARED, EXPERT, MONOLITHIC])
@pytest.mark.parametrize("size", [1, 8, 100])
def test_physical_batches_change_nothing(stream: str, size: int) -> None:
    records = people(tiny_classifier())
    whole, _ = released(records, PLAN, stream, settings(physical_batch_size=16))
    parts, _ = released(records, PLAN, stream, settings(physical_batch_size=size))
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stream", [SHARED, EXPERT])
def test_a_broken_record_takes_its_user_out_and_nobody_else(stream: str) -> None:
    model = tiny_classifier()
    everyone = people(model)
    everyone.input_ids[everyone.input_ids == 49] = 7
    with torch.no_grad():
        # A token that only one record will have.
        model.encoder.get_input_embeddings().weight[49] = float("inf")
    clean = engines(model)[stream].clipped_sum(everyone.take(torch.tensor([0, 1, 2, 4]), CPU), RULE)
    everyone.input_ids[4, 0] = 49
    assert USERS[4] == 3
    found = engines(model)[stream].clipped_sum(everyone.take(torch.arange(NUMBER), CPU), RULE)
    assert found.nonfinite == 1
    for name, value in clean.tensors.items():
        torch.testing.assert_close(found.tensors[name], value, rtol=1e-5, atol=1e-8)


def test_as_many_rows_as_tokens_are_no_tokens() -> None:
    """Three users of four rows and twelve tokens: the layouts could be taken for each other."""
    model = tiny_classifier()
    records = people(model, [0, 2, 3], tokens=12)
    batch = records.take(torch.arange(3), CPU)
    assert batch.input_ids.shape == (12, 12)
    for engine in engines(model).values():
        found = engine.clipped_sum(batch, RULE)
        for name, value in oracle.clipped_sum(true_gradients(model, engine, records), RULE).items():
            torch.testing.assert_close(found.tensors[name], value, rtol=1e-5, atol=1e-8)


def test_a_sample_without_users_is_a_normal_step() -> None:
    records = people(tiny_classifier())
    plan = dataclasses.replace(PLAN, streams=tuple(dataclasses.replace(s, rate=1e-12) for s in PLAN.streams))
    noise, sink = released(records, plan, SHARED, settings())
    assert len(sink) == 1
    assert all(value.abs().min() > 0 for value in noise.values())


def test_samples_are_of_users() -> None:
    """Each user by one coin of the rate, however many records."""
    from raptor.dp.sampling import PoissonSampler
    from raptor.dp.streams import RandomSource

    records = people(tiny_classifier())
    sampler = PoissonSampler(len(records), 0.3, RandomSource.seeded(1).stream("coins"))
    counts = torch.zeros(NUMBER)
    for _ in range(2000):
        counts[sampler.draw()] += 1
    assert ((counts / 2000 - 0.3).abs() < 0.05).all()


def test_rows_that_fill_up_do_not_count() -> None:
    records = people(tiny_classifier())
    batch = records.take(torch.tensor([1, 3]), CPU)
    assert batch.members == 4
    assert records.take(torch.tensor([1, 4]), CPU).members == 2
    assert (batch.labels != IGNORED).tolist() == [True, False, False, False] + [True] * 4
    assert len(batch.part(1, 2)) == 1
    assert torch.equal(batch.part(1, 2).input_ids, batch.input_ids[4:])


@pytest.mark.parametrize("size", [1, 3, 4, 8, 100])
def test_physical_batches_hold_everyone_once_and_fit(size: int) -> None:
    records = people(tiny_classifier())
    sample = torch.tensor([0, 1, 3, 4])
    seen, own = [], 0
    for batch in records.physical_batches(sample, size, CPU):
        assert len(batch.input_ids) <= max(size, batch.members)
        own += int((batch.labels != IGNORED).sum())
        seen += batch.owners.tolist()
    assert sorted(seen) == sorted(records.owners[sample].tolist())
    assert own == int((records.groups[sample] >= 0).sum())


def test_plan_and_data_must_be_of_one_unit() -> None:
    model = tiny_classifier()
    with pytest.raises(DataError, match="protects one user, but the training data come as records"):
        released(
            dataclasses.replace(people(model), groups=None, owners=torch.zeros(12).long()),
            PLAN,
            SHARED,
            settings(),
        )
    with pytest.raises(DataError, match="protects one record, but the training data come as users"):
        released(people(model), make_plan(), SHARED, settings())


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1, 2], [2, 3, -1]],
        [[0, 1, 2], [-1, -1, -1]],
        [[0, 1, -1], [2, -1, -1]],
        [[-1, 0, 1], [2, 3, -1]],
    ],
)
def test_groups_that_are_no_users_are_refused(groups: list[list[int]]) -> None:
    rows = torch.zeros(4, dtype=torch.long)
    with pytest.raises(DataError, match="do not belong together"):
        EncodedRecords(torch.ones(4, 3).int(), rows + 3, rows, rows[:2], torch.tensor(groups))


def test_a_record_that_changes_hands_is_another_training() -> None:
    records = people(tiny_classifier())
    other = user_groups(torch.tensor(USERS).roll(1).numpy())
    assert records.fingerprint(b"salt") != dataclasses.replace(records, groups=other).fingerprint(b"salt")
