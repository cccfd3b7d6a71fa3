"""A run whose training is in two processes leaves one model, one ledger and one MLflow run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.whole.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

# No baselines, which train in the process of the run in any case.
TINY = ",".join(
    [
        "ingestion.records=600",
        "selection.corpus_records=200",
        "selection.protected_layers=2",
        "training.cycles=2",
        "training.shared.steps_per_cycle=1",
        "training.batch_size=32",
        "training.threads=1",
        "launch.backend=elastic",
        "launch.processes=2",
    ]
)


def test_a_run_in_two_processes_is_one_run(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.kedro(
        "run", "--pipelines", "base_model,selection,ingestion,training,accounting", "--params", TINY
    )
    certificate = project.json("08_reporting/privacy_certificate.json")
    assert certificate["processes"] == 2
    assert len(certificate["layers"]) == 2
    project.raptor("verify", "data/08_reporting/privacy_certificate.json")
    page = (project.root / "data/08_reporting/privacy_certificate.md").read_text()
    assert "| processes that trained together | 2 |" in page
    assert len(list((project.root / "data/06_models/journals").glob("*.jsonl"))) == 1
    with sqlite3.connect(project.root / "mlflow.db") as database:
        assert database.execute("select count(*) from runs").fetchone() == (1,)
    log = [
        json.loads(line)
        for line in (project.root / "data/06_models/release_log.jsonl").read_text().splitlines()
    ]
    assert len([line for line in log if line["kind"] == "release"]) == 4
    # No key, no record and no output of the processes is left.
    left = project.root / "data/06_models/checkpoints"
    assert [place.name for place in left.iterdir()] == ["lock"]
