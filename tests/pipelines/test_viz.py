"""The static kedro-viz build: layers, tags and cards are in it, private facts are not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from datasets import Dataset

from raptor.pipelines.mechanism import DECLARATION_TAG, DECLARES_PREFIX, MECHANISM_TAG, RELEASES_PREFIX
from tests.whole.project import Project

pytestmark = pytest.mark.slow

PLANTED_TEXT, PLANTED_ROWS = "zebra-marmalade-4711", 7919
CLASSES = ("public", "private", "released")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with planted private files, and its build with previews switched on."""
    project = Project(tmp_path_factory.mktemp("viz") / "project")
    table = Dataset.from_dict({"text": [PLANTED_TEXT] * PLANTED_ROWS, "label": [0] * PLANTED_ROWS})
    planted = 0
    for name, entry in catalog(project).items():
        place = project.root / entry["filepath"]
        if entry["metadata"]["privacy"] != "private":
            continue
        if entry["type"].endswith("ArrowDataset"):
            table.save_to_disk(str(place))
        elif entry["type"].endswith("JSONDataset"):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps({"name": name, "value": PLANTED_TEXT, "rows": PLANTED_ROWS}))
        else:
            continue
        planted += 1
    assert planted >= 5
    project.kedro("viz", "build", "--include-previews")
    return project


def catalog(project: Project) -> dict[str, Any]:
    files = (project.root / "conf/base").glob("catalog*.yml")
    entries = {name: entry for file in files for name, entry in yaml.safe_load(file.read_text()).items()}
    return {name: entry for name, entry in entries.items() if not name.startswith("_")}


def api(project: Project, place: str) -> Any:
    return json.loads((project.root / "build/api" / place).read_text())


def node_files(project: Project) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in (project.root / "build/api/nodes").iterdir()}


def test_every_data_set_stands_in_a_layer(project: Project) -> None:
    """kedro-viz drops all layers when they form a circle."""
    main = api(project, "main")
    assert len(main["layers"]) >= 4
    data = [node for node in main["nodes"] if node["type"] == "data"]
    assert {node["name"] for node in data} <= set(catalog(project))
    assert [node["name"] for node in data if node["layer"] not in main["layers"]] == []


def test_every_node_has_its_privacy_class_as_a_tag(project: Project) -> None:
    main = api(project, "main")
    tasks = [node for node in main["nodes"] if node["type"] == "task"]
    assert [node["name"] for node in tasks if not set(node["tags"]) & set(CLASSES)] == []
    known = {*CLASSES, MECHANISM_TAG, DECLARATION_TAG}
    odd = {tag["id"] for tag in main["tags"]} - known
    assert [tag for tag in odd if not tag.startswith((RELEASES_PREFIX, DECLARES_PREFIX))] == []


def test_mechanisms_and_declarations_show_their_cards(project: Project) -> None:
    nodes, files = api(project, "main")["nodes"], node_files(project)
    marked = [
        node
        for node in nodes
        if node["type"] == "task" and {MECHANISM_TAG, DECLARATION_TAG} & set(node["tags"])
    ]
    assert len(marked) >= 4
    for node in marked:
        preview = files[node["id"]]["preview"]
        assert preview["kind"] == "text"
        assert node["name"] in preview["content"]


def test_nothing_private_is_in_it(project: Project) -> None:
    build = project.root / "build"
    texts = {file: file.read_text("utf-8", "ignore") for file in build.rglob("*") if file.is_file()}
    assert len(texts) > 20
    rows = re.compile(rf"(?<![\w.]){PLANTED_ROWS}(?![\w.])")
    assert [file for file, text in texts.items() if PLANTED_TEXT in text] == []
    in_api = {file: text for file, text in texts.items() if "api" in file.relative_to(build).parts}
    assert [file for file, text in in_api.items() if rows.search(text)] == []
    assert [name for name, node in node_files(project).items() if node.get("stats")] == []


def test_nobody_is_called_home(project: Project) -> None:
    page = (project.root / "build/index.html").read_text()
    assert "heap" not in page.lower()
