"""The accounting stage: from plan, release log and model to ledger and certificate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from raptor.accounting.verification import verify_certificate
from raptor.errors import LedgerError
from raptor.pipelines.accounting import create_pipeline
from raptor.pipelines.accounting.config import AccountingConfig
from raptor.pipelines.accounting.nodes import certify, compose_ledger
from tests.accounting.samples import journal_lines, make_plan, make_releases


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    folder = tmp_path / "06_models" / "raptor_model"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_the_stage_reads_and_writes_what_the_catalog_names() -> None:
    pipeline = create_pipeline()
    assert pipeline.inputs() == {"privacy_plan", "release_log", "raptor_model", "audit_results"}
    assert pipeline.outputs() == {"privacy_certificate", "privacy_certificate_page"}
    assert {node.name for node in pipeline.nodes} == {"compose_ledger", "certify"}


def test_nodes_make_a_certificate_that_verifies(model: Path, tmp_path: Path, caplog) -> None:
    plan = make_plan()
    caplog.set_level("INFO")
    ledger = compose_ledger(plan, journal_lines(plan, make_releases(plan)), model)
    certificate, page = certify(ledger, None)
    assert "epsilon" in caplog.text
    for folder in ("07_model_output", "08_reporting"):
        (tmp_path / folder).mkdir()
    lines = "".join(json.dumps(line) + "\n" for line in ledger)
    (tmp_path / "07_model_output" / "privacy_ledger.jsonl").write_text(lines)
    place = tmp_path / "08_reporting" / "privacy_certificate.json"
    place.write_text(json.dumps(certificate))
    place.with_suffix(".md").write_text(page)
    report = verify_certificate(place)
    assert (report.model, report.page) == (model, place.with_suffix(".md"))


def test_seeded_noise_is_warned_about(model: Path, caplog) -> None:
    plan = make_plan(generator="seeded:aes-256-ctr")
    certify(compose_ledger(plan, journal_lines(plan, make_releases(plan)), model), None)
    assert "not private" in caplog.text


def test_a_release_log_of_another_plan_stops_the_stage(model: Path) -> None:
    plan = make_plan()
    with pytest.raises(LedgerError, match="another privacy plan"):
        compose_ledger(make_plan(population=5000), journal_lines(plan, make_releases(plan)), model)


def test_a_model_that_is_missing_stops_the_stage(tmp_path: Path) -> None:
    plan = make_plan()
    with pytest.raises(LedgerError, match="holds no model"):
        compose_ledger(plan, journal_lines(plan, make_releases(plan)), tmp_path / "absent")


def test_the_stage_has_no_parameters() -> None:
    with pytest.raises(ValidationError):
        AccountingConfig(mode="split")


def test_wiring_imports_nothing_heavy() -> None:
    script = (
        "import sys, raptor.pipelines.accounting\n"
        "heavy = 'torch transformers mlflow pandas dp_accounting scipy'.split()\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
