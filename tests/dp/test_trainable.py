"""Trainable sets: what is resolved, what is refused, and the training stage with adapters from end to end."""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from pydantic import ValidationError

from raptor.accounting.journal import open_lines
from raptor.accounting.plan import read_plan
from raptor.dp.config import LoRAConfig, PrivacyConfig, StreamConfig, TrainingConfig
from raptor.dp.trainable import EMBEDDINGS, make_trainable
from raptor.dp.training import Trainer, random_source
from raptor.errors import BudgetError, ParameterError
from raptor.moe.adapters import lora_parameters
from raptor.moe.classifier import MoEClassifier
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import Role, parameter_roles
from raptor.moe.routing import record_votes
from raptor.pipelines.evaluation.config import EvaluationConfig
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.training.nodes import plan_privacy, train_raptor
from raptor.pipelines.training.planning import require_planned
from raptor.pipelines.training.records import encoded_records
from tests.families import family_language_model
from tests.moe.test_lora import ALPHA, LAYER, RANK, logits
from tests.tiny import tiny_batch, tiny_classifier, tiny_encoder

EXPERTS = 4


def test_frozen_patterns_hold_for_adapters_too() -> None:
    config = TrainingConfig(trainable="lora", lora={"rank": RANK}, frozen=("*.block.0.*", "*.shared.weight"))
    found = make_trainable(tiny_classifier(), config, [LAYER])
    assert all(name.startswith("head.") or ".block.1." in name for name in found.shared)
    assert any(name.endswith("lora_a.weight") for name in found.shared)
    with pytest.raises(ParameterError, match="leaves no shared parameter"):
        make_trainable(
            tiny_classifier(), TrainingConfig(trainable="lora", lora={"rank": RANK}, frozen=("*",)), [LAYER]
        )


def test_full_trains_what_it_did() -> None:
    model = tiny_classifier()
    found = make_trainable(model, TrainingConfig(), [LAYER])
    roles = parameter_roles(model)
    assert set(found.shared) == {name for name, entry in roles.items() if entry.role is Role.SHARED}
    assert all(roles[name].layer == LAYER for name in found.expert)
    assert {roles[name].layer for name in found.joint if roles[name].role is Role.EXPERT} == {0, 1}
    assert not lora_parameters(model)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora": {"rank": 4}}, "training.trainable is full"),
        ({"trainable": "lora", "lora": {"rank": 0}}, "greater than 0"),
        ({"trainable": "lora", "lora": {"alpha": float("inf")}}, "finite"),
        ({"trainable": "lora", "lora": {"targets": []}}, "at least 1 item"),
        ({"trainable": "lora", "lora": {"ranks": 4}}, "Extra inputs"),
        ({"trainable": "adapters"}, "'full' or 'lora'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(given, message) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        TrainingConfig(**given)


class Stage:
    """The training stage on a tiny base model in a folder."""

    records, classes = 24, 3

    def __init__(self, folder: Path) -> None:
        self.base, self.out, self.journals = (folder / name for name in ("base", "model", "journals"))
        self.checkpoints = folder / "checkpoints"
        self.journals.mkdir()
        tiny_encoder().save_pretrained(self.base)
        self.training = TrainingConfig(
            device="cpu", batch_size=12, physical_batch_size=5, cycles=3, trainable="lora",
            lora=LoRAConfig(rank=RANK, alpha=ALPHA), frozen=("*.shared.weight",),
            randomness="seeded", seed=5,
        )  # fmt: skip
        ids, mask, labels = tiny_batch(records=self.records)
        rows = [row[: int(length)].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
        self.train = Dataset.from_dict({"input_ids": rows, "label": labels.tolist()})
        encoder = MoEClassifier.from_encoder(self.base, self.classes).encoder
        owners = assign_owners(record_votes(encoder, ids, mask)[LAYER])
        self.owners = Dataset.from_dict({f"layer_{LAYER}": owners.tolist()})
        constants = {
            "population": self.records, "population_source": "declared", "source": "file",
            "num_classes": self.classes, "taken_as_public": [],
        }  # fmt: skip
        self.plan = plan_privacy(
            self.base,
            {"layers": [LAYER], "experts": EXPERTS},
            constants,
            PrivacyConfig(epsilon=50.0, delta=1e-3),
            self.training,
            EvaluationConfig(),
        )


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_training_stage_writes_a_model_with_the_logits_of_its_adapters(stage, caplog) -> None:
    caplog.set_level(logging.INFO)
    names = [f"class {label}" for label in range(stage.classes)]
    tuned, log = train_raptor(
        stage.base,
        names,
        stage.train,
        stage.owners,
        stage.plan,
        stage.journals,
        stage.checkpoints,
        stage.training,
        IngestionConfig(),
    )
    tuned.save_to(stage.out)
    assert caplog.text.count("Trained (lora of rank 3 and alpha 6 on attention and experts)") == 1
    released = MoEClassifier.from_pretrained(stage.out).eval()
    # The same seed again, without the folding.
    plan = read_plan(stage.plan)
    base = MoEClassifier.from_encoder(stage.base, stage.classes).eval()
    model = copy.deepcopy(base)
    records = encoded_records(stage.train, stage.owners, [LAYER])
    trainer = Trainer(model, records, plan, stage.training, random_source(stage.training), [])
    trainer.train()
    torch.testing.assert_close(logits(released), logits(model), rtol=1e-5, atol=1e-5)
    assert (logits(released) - logits(base)).abs().max() > 1e-2
    changed = {
        name
        for name, value in released.named_parameters()
        if not torch.equal(value, base.get_parameter(name))
    }
    assert {name for name in changed if ".experts." in name} == {
        name for name, _ in base.named_parameters() if f".block.{LAYER}." in name and ".experts." in name
    }
    assert all("SelfAttention" in n or ".experts." in n or n.startswith("head.") for n in changed)
    _, releases = open_lines(log, "the log")
    found = trainer.trainable
    assert {(release.stream, release.dimension) for release in releases} == {
        ("shared", found.count(found.shared)),
        ("expert", found.count(found.expert)),
    }


@pytest.mark.parametrize("method", ["monolithic", "nonprivate"])
def test_baselines_train_the_same_parameters(stage, method) -> None:
    plan = read_plan(stage.plan)
    only = dataclasses.replace(plan.stream("shared"), name="monolithic", steps=6)
    plan = dataclasses.replace(plan, streams=(only,))
    model = MoEClassifier.from_encoder(stage.base, stage.classes)
    records = encoded_records(stage.train, stage.owners, [LAYER])
    trainer = Trainer(model, records, plan, stage.training, random_source(stage.training), [])
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer.train(method)
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {*trainer.trainable.shared, *trainer.trainable.expert}
    trainer.finish()
    assert not lora_parameters(model)


def test_the_plan_names_the_trainable_set_and_holds_training_to_it(stage) -> None:
    plan = read_plan(stage.plan)
    assert plan.trainable == "lora of rank 3 and alpha 6 on attention and experts"
    require_planned(plan, stage.training)
    with pytest.raises(BudgetError, match="trainable, with lora is full"):
        require_planned(plan, stage.training.model_copy(update={"trainable": "full"}))
    older = {key: value for key, value in stage.plan.items() if key != "trainable"}
    assert read_plan(older).trainable == "full"


@pytest.mark.parametrize(
    "change",
    [
        {"cycles": 4},
        {"batch_size": 11},
        {"shared": StreamConfig(clipping_norm=0.5)},
        {"expert": StreamConfig(steps_per_cycle=2)},
        {"randomness": "secure", "seed": None},
    ],
    ids=str,
)
def test_training_has_to_be_as_planned(stage, change) -> None:
    plan = read_plan(stage.plan)
    with pytest.raises(BudgetError, match="in the privacy plan"):
        require_planned(plan, stage.training.model_copy(update=change))


@pytest.mark.parametrize("tied", [False, True])
def test_of_a_language_model_table_and_head_are_named_and_frozen(tied: bool) -> None:
    model = family_language_model("olmoe", tie_word_embeddings=tied)
    table, head = "model.embed_tokens.weight", "lm_head.weight"
    whole = make_trainable(model, TrainingConfig(), [1]).shared
    assert table in whole
    assert (head in whole) is not tied
    without_table = make_trainable(model, TrainingConfig(frozen=(EMBEDDINGS,)), [1]).shared
    assert set(whole) - set(without_table) == {table}
    adapted = make_trainable(model, TrainingConfig(trainable="lora", frozen=(EMBEDDINGS,)), [1])
    assert adapted.shared
    assert not {table, head} & {*adapted.shared, *adapted.expert}


def test_the_table_of_an_encoder_goes_by_the_same_word() -> None:
    by_word = make_trainable(tiny_classifier(), TrainingConfig(frozen=(EMBEDDINGS,)), [1])
    by_name = make_trainable(tiny_classifier(), TrainingConfig(frozen=("*.shared.weight",)), [1])
    assert by_word == by_name
