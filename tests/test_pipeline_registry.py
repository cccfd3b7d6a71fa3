"""The project's own pipelines: all stages are there, named, and let nothing private out in any environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kedro.framework.project import pipelines
from kedro.framework.startup import bootstrap_project
from kedro.pipeline import Pipeline

from raptor.hooks.flow import Entry
from raptor.hooks.flow_hook import catalog_config, check_project, environments
from raptor.pipeline_registry import STAGES
from raptor.pipelines.mechanism import declarations, exemption


@pytest.fixture(scope="module")
def registered(repository: Path) -> dict[str, Pipeline]:
    bootstrap_project(repository)
    return dict(pipelines)


def test_default_is_all_stages(registered: dict[str, Pipeline]) -> None:
    assert set(STAGES) <= set(registered)
    default = registered["__default__"]
    assert {node.name for node in default.nodes} == {
        node.name for stage in STAGES for node in registered[stage].nodes
    }
    # Nothing but parameters has to be there before the first run: folders and the key are made when they are
    # loaded.
    assert {name for name in default.inputs() if not name.startswith("params:")} == {
        "release_journals",
        "training_checkpoints",
        "split_key",
        "encoding_cache",
    }


def test_every_pipeline_in_every_environment_passes(
    registered: dict[str, Pipeline], repository: Path
) -> None:
    reports = check_project(repository / "conf")
    assert [report.env for report in reports] == environments(repository / "conf")
    assert {report.env: [str(leak) for leak in report.leaks] for report in reports} == {
        report.env: [] for report in reports
    }
    assert all(report.pipelines == len(registered) for report in reports)


def test_everything_between_nodes_is_kept(registered: dict[str, Pipeline], repository: Path) -> None:
    """A data set in memory only would make `--only-missing-outputs` train again."""
    config = catalog_config(repository / "conf", "base")
    for pipeline in registered.values():
        kept = {
            name for name in pipeline.datasets() if not name.startswith("params:") and name != "parameters"
        }
        assert kept <= set(config)


def test_every_entry_is_used_and_has_a_layer(registered: dict[str, Pipeline], repository: Path) -> None:
    config = catalog_config(repository / "conf", "base")
    used = set().union(*(pipeline.datasets() for pipeline in registered.values()))
    assert {name for name in config if not name.startswith("_")} <= used
    for name, item in config.items():
        if not name.startswith("_"):
            assert item["metadata"]["kedro-viz"]["layer"], name
            assert Entry.parse(name, item).place is not None


def test_mechanisms_and_declarations_show_a_card(registered: dict[str, Pipeline]) -> None:
    marked = [node for node in registered["__default__"].nodes if exemption(node) is not None]
    assert {node.name for node in marked} >= {"train_raptor", "evaluate_model"}
    for node in marked:
        card = node.preview()
        assert card is not None
        assert node.name in card.to_dict()["content"]


def test_declared_facts_have_reasons(registered: dict[str, Pipeline]) -> None:
    assert {item.dataset for item in declarations(registered["__default__"])} == {
        "label_names",
        "public_constants",
    }


def test_heavy_libraries_are_not_imported_with_the_pipelines(repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kedro.framework.startup import bootstrap_project;"
        "bootstrap_project(Path('.').resolve()); from kedro.framework.project import pipelines, settings;"
        "dict(pipelines); settings.HOOKS; import raptor.cli, raptor.datasets, raptor.progress;"
        "heavy = {'torch', 'transformers', 'datasets', 'mlflow', 'pandas', 'matplotlib', 'sklearn', 'scipy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_accounting_commands_import_neither_kedro_nor_torch(repository: Path) -> None:
    code = (
        "import sys; from raptor.cli import cli;"
        "cli(['epsilon', '--event', '0.01,1.0,100', '--delta', '1e-6', '--json'], standalone_mode=False);"
        "print(sorted({'kedro', 'torch', 'transformers', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
