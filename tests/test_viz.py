"""A static kedro-viz build can be shared: it holds the pipelines and no fact about private records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raptor.datasets import ArrowDataset, JSONDataset
from raptor.hooks.flow_hook import catalog_config

pytestmark = pytest.mark.slow

SECRET = "a record that nobody may read"
ROWS = 73_219


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The project's configuration and code, with private data of a known text and size in each private place."""
    import pyarrow as pa
    from kedro.framework.startup import bootstrap_project

    root = tmp_path_factory.mktemp("viz")
    shutil.copy(repository / "pyproject.toml", root)
    shutil.copytree(repository / "conf", root / "conf")
    # The package itself is installed; Kedro wants the folder of the sources inside the project.
    (root / "src").mkdir()
    bootstrap_project(repository)
    for name, item in catalog_config(repository / "conf", "base").items():
        if not name.startswith("_") and item["metadata"]["privacy"] == "private":
            place = str(root / item["filepath"])
            if item["type"].endswith("ArrowDataset"):
                ArrowDataset(filepath=place).save(pa.table({"text": [SECRET] * ROWS}))
            elif item["type"].endswith("JSONDataset"):
                JSONDataset(filepath=place).save({"rows": ROWS, "text": SECRET})
    return root


@pytest.fixture(scope="module")
def build(project: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "kedro", "viz", "build", "--include-previews"],
        cwd=project,
        env={**os.environ, "KEDRO_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ircular" not in done.stdout + done.stderr
    return project / "build"


def test_no_record_and_no_count_in_the_build(build: Path) -> None:
    files = [path for path in build.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content, path
        # Scripts and fonts may hold any digits; the data of the page are in api.
        if "api" in path.relative_to(build).parts:
            assert str(ROWS).encode() not in content, path


def test_no_statistics_are_kept_beside_the_project(build: Path, project: Path) -> None:
    assert not (project / ".viz" / "stats.json").exists()


def test_build_shows_layers_labels_and_cards(build: Path) -> None:
    main: dict[str, Any] = json.loads((build / "api/main").read_text())
    assert main["layers"] == ["1 public", "2 private", "3 declared", "4 trained", "5 report"]
    tags = {tag["id"] for tag in main["tags"]}
    assert {"public", "private", "released", "dp_mechanism", "declaration"} <= tags
    cards = [path.read_text() for path in (build / "api/nodes").iterdir()]
    assert sum("Differentially private mechanism: " in card for card in cards) >= 2


def test_the_build_does_not_tell_where_the_project_lies(build: Path, project: Path) -> None:
    nodes = [json.loads(path.read_text()) for path in (build / "api/nodes").iterdir()]
    places = {node["filepath"] for node in nodes if str(node.get("filepath", "")).startswith("data/")}
    assert "data/08_reporting/report.html" in places
    for path in (build / "api").rglob("*"):
        if path.is_file():
            assert str(project) not in path.read_text(), path


def test_page_calls_no_telemetry(build: Path) -> None:
    assert "heap" not in (build / "index.html").read_text().lower()
