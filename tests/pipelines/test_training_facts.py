"""What a training checks of itself gets into the certificate; what it did not find, does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from raptor.accounting.assumptions import CHECKED, YOURS
from raptor.accounting.certificate import build_certificate
from raptor.accounting.journal import ReleaseJournal
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.plan import read_plan
from raptor.code_version import source_digest
from raptor.dp.training import Trainer, random_source
from raptor.moe.classifier import MoEClassifier
from raptor.moe.roles import Role, parameter_roles
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.training.facts import RunWatch, run_start
from raptor.pipelines.training.planning import raptor_plan, require_isolated
from raptor.pipelines.training.records import encoded_records
from tests.pipelines.directories import save_base_model
from tests.pipelines.evaluation.world import CONSTANTS, LABELS, LAYER_PLAN, PRIVACY, TRAINING, records

CHECKS = ("router", "isolation", "samples", "constants", "noise", "records")


def trained(folder: Path, training=TRAINING, meddle=lambda model, held: None) -> dict[str, Any]:
    """The certificate of a training in one process, as the stage does it; `meddle` acts before its end."""
    base = save_base_model(folder / "base")
    config = EvaluationConfig()
    plan = raptor_plan(LAYER_PLAN, CONSTANTS, PRIVACY, training, config, evaluation_scope(config, "embedded"))
    owners = datasets.Dataset.from_dict({"layer_1": [number % 4 for number in range(60)]})
    held = encoded_records(records(60, 0), owners, [1])
    model = MoEClassifier.from_encoder(base, len(LABELS))
    isolation = require_isolated(model, plan.layers, training)
    watch = RunWatch(model, held)
    with ReleaseJournal.create(folder / "journal.jsonl", plan.to_json()) as journal:
        trainer = Trainer(model, held, plan, training, random_source(training), journal)
        journal.note(run_start(isolation, trainer.trainable, "first"))
        trainer.train()
        trainer.finish()
        meddle(model, held)
        journal.note(watch.end(model, trainer.keystreams, trainer.left_out))
        return build_certificate(compose_ledger(plan.to_json(), journal.lines(), "m"))


def marks(certificate: dict[str, Any]) -> dict[str, str]:
    return {item["check"]: item["mark"] for item in certificate["assumptions"]}


@pytest.mark.parametrize("trainable", ["full", "lora"])
def test_every_check_of_a_training_is_claimed(tmp_path: Path, trainable: str) -> None:
    certificate = trained(tmp_path, TRAINING.model_copy(update={"trainable": trainable}))
    found = marks(certificate)
    assert [found[name] for name in CHECKS] == [CHECKED] * len(CHECKS)
    assert certificate["status"] == "complete"
    (code,) = certificate["code"]
    assert code["digest"] == source_digest(Path(__file__).resolve().parents[2] / "src" / "raptor")
    evidence = {item["check"]: item["evidence"] for item in certificate["assumptions"]}
    assert "shared and expert parameters in float64 and float32" in evidence["isolation"]
    assert "4 keystreams" in evidence["samples"]
    for stream in certificate["streams"]:
        assert f"{stream['dimension']:,} ({stream['name']})" in evidence["noise"]


def move_router(model: MoEClassifier, held: Any) -> None:
    name = next(name for name, entry in parameter_roles(model).items() if entry.role is Role.ROUTER)
    with torch.no_grad():
        model.get_parameter(name).add_(1e-3)


def change_record(model: MoEClassifier, held: Any) -> None:
    held.labels[7] = (held.labels[7] + 1) % 3


@pytest.mark.parametrize(("meddle", "check"), [(move_router, "router"), (change_record, "records")])
def test_what_changed_is_not_claimed(tmp_path: Path, meddle, check: str) -> None:
    found = marks(trained(tmp_path, meddle=meddle))
    assert [name for name in CHECKS if found[name] == YOURS] == [check]


def test_the_stage_notes_what_it_checked(tmp_path: Path) -> None:
    """The node itself: its release log holds both lines, the first before every release, the last after them."""
    from raptor.pipelines.training.nodes import train_raptor

    base = save_base_model(tmp_path / "base")
    config = EvaluationConfig()
    plan = raptor_plan(LAYER_PLAN, CONSTANTS, PRIVACY, TRAINING, config, evaluation_scope(config, "embedded"))
    given: dict[str, Any] = {
        "base_model": base,
        "label_names": LABELS,
        "private_train": records(60, 0),
        "owner_partition": datasets.Dataset.from_dict({"layer_1": [number % 4 for number in range(60)]}),
        "privacy_plan": plan.to_json(),
        "release_journals": tmp_path / "journals",
        "training_checkpoints": tmp_path / "checkpoints",
        "training": TRAINING,
        "ingestion": IngestionConfig(),
    }
    for name in ("release_journals", "training_checkpoints"):
        given[name].mkdir()
    _, log = train_raptor(**given)
    assert [line["kind"] for line in log] == ["header", "run", *["release"] * 4, "end"]
    assert read_plan(log[0]["data"]) == plan
