"""Users as the unit, from the file to the certificate."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import torch

from raptor.accounting.certificate import build_certificate
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.plan import PrivacyPlan, read_plan
from raptor.accounting.types import Unit
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.streams import RandomSource
from raptor.dp.training import Trainer
from raptor.errors import BudgetError, DataError
from raptor.moe.classifier import MoEClassifier, load_encoder
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import record_votes
from raptor.pipelines.evaluation.config import EvaluationConfig
from raptor.pipelines.evaluation.scoring import score_model
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.ingestion.encoding import labelled
from raptor.pipelines.ingestion.nodes import (
    assign_record_owners,
    declare_public_constants,
    encode_splits,
    read_records,
)
from raptor.pipelines.training.nodes import plan_privacy, train_raptor
from raptor.pipelines.training.records import encoded_records, held_out_records
from raptor.text.users import bound_users
from tests.pipelines.directories import WORDS, save_base_model
from tests.text.reading import put

PEOPLE, MOST, LAYER, EXPERTS = 240, 4, 1, 4
KEY = b"s" * 32
LAYER_PLAN = {"layers": [LAYER], "experts": EXPERTS}
PRIVACY = PrivacyConfig(epsilon=4.0, delta=1e-4, unit="user", records_per_user=MOST)
# Every user in every sample, so that two runs sample alike though one user is missing.
TRAINING = TrainingConfig(
    device="cpu", batch_size=PEOPLE, physical_batch_size=256, cycles=1, randomness="seeded", seed=4
)
Split = tuple[pa.Table, pa.Table]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base_model(tmp_path_factory.mktemp("base") / "model", experts=EXPERTS)


def rows() -> list[str]:
    """Made-up people with one to twelve records each, in no order."""
    chance = random.Random(7)
    made = []
    for person in range(PEOPLE):
        for _ in range(chance.randint(1, 12)):
            text = " ".join(chance.choices(WORDS, k=chance.randint(1, 8)))
            made.append(f"{text},{chance.choice('xyz')},person {person},train")
    made += [f"a b {n % 7},{'xyz'[n % 3]},person {n % 30},validation" for n in range(90)]
    chance.shuffle(made)
    return made


def ingest(
    folder: Path, base_model: Path, without: str | None = None
) -> tuple[Split, pa.Table, dict[str, Any]]:
    """Encoded splits, owners and constants; `without` is a user who is not there."""
    kept = [row for row in rows() if without is None or f",{without}," not in row]
    path = put(folder, "a.csv", "text,label,who,split\n" + "\n".join(kept) + "\n")
    config = IngestionConfig(source=str(path), split="split", user="who", max_length=8)
    table, names, _ = read_records(base_model, config)
    splits = encode_splits(datasets.Dataset(table), base_model, config, "user", MOST, KEY)
    train = datasets.Dataset(splits[0])
    owners = assign_record_owners(train, base_model, LAYER_PLAN, config)
    constants = declare_public_constants(train, names, "auto", config, "user", MOST)
    people = bound_users(labelled(table, "train"), MOST, KEY)["user"].to_pylist()
    return splits, owners, {**constants, "people": people}


@pytest.fixture(scope="module")
def everyone(
    tmp_path_factory: pytest.TempPathFactory, base_model: Path
) -> tuple[Split, pa.Table, dict[str, Any]]:
    return ingest(tmp_path_factory.mktemp("all"), base_model)


def test_users_are_bounded_and_numbered(everyone: Any) -> None:
    (train, held_out), owners, constants = everyone
    counts = Counter(train["user"].to_pylist())
    assert set(counts) == set(range(PEOPLE))
    assert max(counts.values()) == MOST
    assert len(owners) == PEOPLE
    assert constants["population"] == PEOPLE
    assert constants["population_source"] == "declared: users of the training split"
    assert f"of each user at most {MOST} training records are used" in constants["taken_as_public"][-1]
    # Three records of each of 30 people; one of each is left.
    assert len(held_out) == 30
    assert sorted(held_out["user"].to_pylist()) == list(range(30))


def test_held_out_records_must_be_of_the_plans_unit(everyone: Any) -> None:
    (_, held_out), _, _ = everyone
    people, records = datasets.Dataset(held_out), datasets.Dataset(held_out.drop_columns(["user"]))
    assert len(held_out_records(people, Unit.USER)) == len(held_out_records(records, Unit.RECORD)) == 30
    twice = datasets.Dataset(pa.concat_tables([held_out, held_out]))
    for wrong, unit, found in (
        (records, Unit.USER, "records"),
        (people, Unit.RECORD, "users"),
        (twice, Unit.USER, "users with more than 1 record"),
    ):
        with pytest.raises(DataError, match=f"the held-out data come as {found}"):
            held_out_records(wrong, unit)


def test_scores_of_people_are_those_of_their_records(everyone: Any, base_model: Path) -> None:
    (_, held_out), _, _ = everyone
    model = MoEClassifier.from_encoder(base_model, 3)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    tables = [
        score_model(model, held_out_records(datasets.Dataset(table), unit), 5, 7, torch.device("cpu"), "")
        for table, unit in ((held_out, Unit.USER), (held_out.drop_columns(["user"]), Unit.RECORD))
    ]
    assert tables[0].confusion.sum() == 30
    assert (tables[0].confusion == tables[1].confusion).all()
    assert (tables[0].reliability.round(4) == tables[1].reliability.round(4)).all()


def test_a_users_owner_is_by_the_votes_of_all_its_tokens(everyone: Any, base_model: Path) -> None:
    (train, _), owners, _ = everyone
    encoder = load_encoder(base_model)
    for user in range(0, PEOPLE, 17):
        mine = [
            ids
            for ids, who in zip(train["input_ids"].to_pylist(), train["user"].to_pylist(), strict=True)
            if who == user
        ]
        votes = torch.zeros(1, EXPERTS, dtype=torch.float64)
        for ids in mine:
            one = torch.tensor([ids])
            votes += record_votes(encoder, one, torch.ones_like(one))[LAYER]
        assert owners[f"layer_{LAYER}"][user].as_py() == int(assign_owners(votes))


def sums(base_model: Path, made: Any, plan: PrivacyPlan) -> dict[str, dict[str, torch.Tensor]]:
    """The first release of each stream, with frozen noise."""
    (train, _), owners, _ = made
    model = MoEClassifier.from_encoder(base_model, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.nn.init.normal_(model.head.weight)
    records = encoded_records(datasets.Dataset(train), datasets.Dataset(owners), [LAYER])
    trainer = Trainer(model, records, plan, TRAINING, RandomSource.seeded(4), [])
    found = {}
    for stream in trainer._schedule("raptor"):
        caught: list[dict[str, torch.Tensor]] = []
        stream._optimizer.apply = caught.append
        stream.step()
        found[stream.name] = caught[0]
    return found


def test_one_person_moves_one_block_by_at_most_the_clipping_norm(
    everyone: Any, base_model: Path, tmp_path: Path
) -> None:
    """Noise frozen, from the file on: reading, bounding, encoding and routing are done anew without the person."""
    constants = {**everyone[2], "source": "own"}
    plan = read_plan(plan_privacy(base_model, LAYER_PLAN, constants, PRIVACY, TRAINING, EvaluationConfig()))
    whole = sums(base_model, everyone, plan)
    counts = Counter(row.split(",")[2] for row in rows() if row.endswith("train"))
    for person in (counts.most_common()[0][0], counts.most_common()[-1][0]):
        rest = sums(base_model, ingest(tmp_path, base_model, without=person), plan)
        for name in (SHARED, EXPERT):
            moved = {key: whole[name][key] - rest[name][key] for key in whole[name]}
            size = float(sum(value.double().square().sum() for value in moved.values())) ** 0.5
            share = size * plan.stream(name).denominator / plan.stream(name).clipping_norm
            assert 0 < share <= 1 + 1e-6
            if name == EXPERT:
                # Sums over the others are rounded in another order, a millionth of the person's own share.
                limit = 1e-5 * plan.stream(name).clipping_norm / plan.stream(name).denominator
                blocks = {
                    key.split(".experts.")[1].split(".")[0]
                    for key, v in moved.items()
                    if v.abs().max() > limit
                }
                assert blocks == {f"expert_{owner(everyone, person)}"}


def owner(made: Any, person: str) -> int:
    """The expert of a user of the file; users are numbered by the first of their records that is kept."""
    (train, _), owners, constants = made
    order = list(dict.fromkeys(constants["people"]))
    assert len(order) == PEOPLE
    assert [order.index(name) for name in constants["people"]] == train["user"].to_pylist()
    return owners[f"layer_{LAYER}"][order.index(person)].as_py()


def test_the_certificate_names_the_unit(everyone: Any, base_model: Path, tmp_path: Path) -> None:
    (train, _), owners, constants = everyone
    training = TRAINING.model_copy(update={"batch_size": 60})
    plan = plan_privacy(base_model, LAYER_PLAN, constants, PRIVACY, training, EvaluationConfig())
    assert read_plan(plan).stream(SHARED).rate == 60 / PEOPLE
    for name in ("journals", "checkpoints"):
        (tmp_path / name).mkdir()
    _, log = train_raptor(
        base_model,
        ["x", "y", "z"],
        datasets.Dataset(train),
        datasets.Dataset(owners),
        plan,
        tmp_path / "journals",
        tmp_path / "checkpoints",
        training,
        IngestionConfig(user="who"),
    )
    certificate = build_certificate(compose_ledger(plan, log, "m"))
    assert certificate["unit"] == "user"
    said = " ".join(certificate["statement"])
    assert "when one user is added or removed" in said
    assert "all of the user's records together" in said
    assert "A person who appears in several records is protected less" not in said
    assert certificate["epsilon"] <= PRIVACY.epsilon
    marks = {item["check"]: item["text"] for item in certificate["assumptions"]}
    assert marks["unit"].startswith("The column of users names the person")


def test_a_handful_of_users_is_refused(base_model: Path) -> None:
    constants = {
        "population": 49,
        "population_source": "declared",
        "taken_as_public": [],
        "source": "own",
        "num_classes": 3,
    }
    training = TRAINING.model_copy(update={"batch_size": 16})
    with pytest.raises(BudgetError, match="there are only 49 users"):
        plan_privacy(base_model, LAYER_PLAN, constants, PRIVACY, training, EvaluationConfig())
    plan_privacy(
        base_model, LAYER_PLAN, {**constants, "population": 50}, PRIVACY, training, EvaluationConfig()
    )


def test_eleven_users_are_refused_with_the_reason(base_model: Path, shared_dir: Path) -> None:
    source = shared_dir / "data/medical_question_pairs/medical_question_pairs.parquet"
    config = IngestionConfig(
        source=str(source), text="sentence1+sentence2", split="split", user="user", max_length=16
    )
    table, names, report = read_records(base_model, config)
    assert report["users"] == 11
    train, _ = encode_splits(datasets.Dataset(table), base_model, config, "user", MOST, KEY)
    constants = declare_public_constants(datasets.Dataset(train), names, "auto", config, "user", MOST)
    training = TRAINING.model_copy(update={"batch_size": 4})
    with pytest.raises(BudgetError, match=r"there are only \d+ users.*hardly a secret.*Nothing was spent"):
        plan_privacy(base_model, LAYER_PLAN, constants, PRIVACY, training, EvaluationConfig())
