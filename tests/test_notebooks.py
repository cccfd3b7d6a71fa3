"""Notebooks: without outputs, and blind to everything private. They are run in `tests/whole`."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from kedro.framework.startup import bootstrap_project

from raptor.errors import DataError
from raptor.hooks.flow_hook import catalog_config
from raptor.notebooks import Picture, Results
from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
# What a cell may import: nothing that opens files by a way of its own.
IMPORTS = {"raptor", "numpy", "torch", "math", "dataclasses"}


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def tree(notebook: Path) -> ast.Module:
    return ast.parse("\n\n".join("".join(c["source"]) for c in cells(notebook) if c["cell_type"] == "code"))


@pytest.fixture(name="results")
def _results(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.chdir(repository)
    bootstrap_project(repository)
    return Results()


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_kept_without_outputs(notebook: Path) -> None:
    for cell in cells(notebook):
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_read_released_and_public_entries_alone(notebook: Path, results: Results) -> None:
    for node in ast.walk(tree(notebook)):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= IMPORTS
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in IMPORTS
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            assert name not in {"open", "exec", "eval", "read_text", "read_bytes", "read_parquet", "fromfile"}
            if name in {"load", "path"}:
                (entry,) = node.args
                assert isinstance(entry, ast.Constant)
                assert entry.value in results.names


def test_what_is_private_is_refused_whether_or_not_it_is_there(results: Results, repository: Path) -> None:
    config = catalog_config(repository / "conf", "base")
    private = [
        name
        for name, item in config.items()
        if not name.startswith("_") and item["metadata"]["privacy"] == "private"
    ]
    assert {"private_train", "release_journals", "split_key", "training_checkpoints"} <= set(private)
    for name in private:
        for ask in (results.load, results.path):
            with pytest.raises(DataError, match="private: it depends on records without noise"):
                ask(name)
        assert name not in results.names


def test_an_entry_without_a_label_is_refused_as_if_it_were_private(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = {"type": "raptor.datasets.JSONDataset", "filepath": "data/01_raw/notes.json"}
    monkeypatch.setattr(results, "_config", {"notes": nameless, "_anchor": {"privacy": "public"}})
    with pytest.raises(DataError, match="private"):
        results.load("notes")
    for unknown in ("_anchor", "nothing"):
        with pytest.raises(DataError, match="The catalog has no"):
            results.load(unknown)


def test_what_no_run_has_made_is_said(
    results: Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "_root", tmp_path)
    with pytest.raises(DataError, match=r"privacy_plan: .*not there yet"):
        results.load("privacy_plan")
    assert results.load("audit_results") is None


def test_a_picture_is_a_png() -> None:
    from raptor.reporting.figures import message

    assert Picture(message("nothing"))._repr_png_().startswith(b"\x89PNG")
