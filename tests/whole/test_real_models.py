"""The environments of real models, end to end on a tiny checkpoint in the hub's layout and a local Parquet file."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripts.tiny_checkpoint import save

from tests.whole.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROWS = 400
# What makes the test short; nothing of it is needed for the path to work.
SHORT = "training.cycles=2,selection.corpus_records=60,selection.bootstrap=20,training.batch_size=4096"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("real") / "project")
    words = ("good", "bad")
    table = {
        "sentence": [f"a {words[row % 2]} film, number {row}" for row in range(ROWS)],
        "label": [row % 2 for row in range(ROWS)],
    }
    pq.write_table(pa.table(table), project.root / "reviews.parquet")
    return project


@pytest.mark.parametrize(
    ("env", "family", "architecture", "layers"),
    [
        ("glue-switch", "switch_transformers", "SwitchTransformersEncoderModel", 1),
        ("glue-olmoe", "olmoe", "OlmoeModel", 2),
    ],
)
def test_a_local_checkpoint_takes_the_place_of_the_hubs(
    project: Project, env: str, family: str, architecture: str, layers: int
) -> None:
    checkpoint = Path(f"tiny-{family}")
    save(family, project.root / checkpoint)
    changed = f"base_model.source={checkpoint},ingestion.source=reviews.parquet,{SHORT}"
    if layers > 1:
        changed += f",selection.protected_layers={layers}"
    project.kedro("run", "--env", env, "--params", changed)
    assert project.raptor("verify", "data/08_reporting/privacy_certificate.json").returncode == 0
    certificate = project.json("08_reporting/privacy_certificate.json")
    assert certificate["epsilon"] <= 4.0
    assert len(certificate["layers"]) == layers
    config = json.loads((project.root / "data/06_models/raptor_model/config.json").read_text())
    assert config["architectures"] == [architecture]
    assert sorted(config["id2label"].values()) == ["0", "1"]


def test_without_the_hub_there_is_one_clear_message(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(project.root / "no-hub"))
    for given, message in (
        ("ingestion.source=reviews.parquet", "base_model.source 'google/switch-base-8' is no directory here"),
        ("base_model.source=embedded", "nyu-mll/glue:sst2: there is no such file or folder here"),
    ):
        done = project.kedro("run", "--env", "glue-switch", "--params", given, check=False)
        assert done.returncode == 1
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1
        assert message in errors[0]
        assert "Traceback" not in done.stdout + done.stderr
