"""One MLflow run for each run that did something, with public and released content only."""

from __future__ import annotations

import json
import math
import subprocess
import time
from typing import Any

import pytest

from raptor.hooks.config import TrackingConfig
from raptor.hooks.mlflow_run import MlflowRun
from tests.lab import Lab

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A project in which some runs succeeded, failed, were refused, and had nothing to do."""
    lab = Lab(tmp_path_factory.mktemp("tracking"))
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=lab.root, check=True)
    assert lab.kedro("run", "--params", "training.steps=3").returncode == 0
    assert lab.kedro("run", "--only-missing-outputs").returncode == 0
    assert lab.kedro("run", "--pipelines", "leaky").returncode == 1
    assert lab.kedro("run", "--params", "training.stesp=3").returncode == 1
    assert lab.kedro("run", "--params", "tracking.enabled=false").returncode == 0
    assert lab.kedro("run", "--runner", "ParallelRunner").returncode == 1
    assert lab.kedro("run", "--pipelines", "broken").returncode == 1
    assert lab.kedro("run", "--runner", "ThreadRunner", "--pipelines", "selection,training").returncode == 0
    assert lab.kedro("run", "--env", "quick", "--pipelines", "training", folder="src").returncode == 0
    return lab


@pytest.fixture(scope="module")
def runs(lab: Lab) -> list[Any]:
    return lab.mlflow_runs()


def test_one_run_for_each_run_that_did_something(runs: list[Any]) -> None:
    """Not for one without work, a refused one, a wrong parameter, or with tracking off."""
    assert [(run.info.run_name, run.info.status) for run in runs] == [
        ("__default__", "FINISHED"),
        ("broken", "FAILED"),
        ("selection+training", "FINISHED"),
        ("training", "FINISHED"),
    ]


def test_parameters_are_flat_and_complete(runs: list[Any]) -> None:
    assert runs[0].data.params == {
        "selection.words": "3",
        "training.steps": "3",
        "training.population": "auto",
        "training.layers": "auto",
        "training.expert.sigma": "1.5",
    }
    assert runs[-1].data.params["training.steps"] == "5"


def test_tags_say_what_was_run(lab: Lab, runs: list[Any]) -> None:
    tags = runs[0].data.tags
    assert tags["kedro.command"].endswith("kedro run --params training.steps=3")
    assert tags["kedro.env"] == "local"
    assert runs[-1].data.tags["kedro.env"] == "quick"
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=lab.root, capture_output=True, text=True, check=True
    )
    assert tags["git.commit"] == head.stdout.strip()
    assert tags["git.dirty"] in {"true", "false"}
    assert tags["raptor.version"]


def test_metrics_have_clean_names_and_finite_values(runs: list[Any]) -> None:
    assert runs[0].data.metrics == {
        "profile/entropy.layer 0": 0.5,
        "profile/words_0_": 3.0,
        "audit/releases": 3.0,
    }


def test_artifacts_are_those_the_catalog_names(lab: Lab, runs: list[Any]) -> None:
    folder = lab.root / "mlruns" / runs[0].info.run_id / "artifacts"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["parameters.json", "selection/profile.json"]
    assert json.loads((folder / "parameters.json").read_text())["training.expert.sigma"] == 1.5


def test_threads_record_the_same(runs: list[Any]) -> None:
    assert runs[2].data.metrics.keys() == runs[0].data.metrics.keys()


def test_no_other_plugin_keeps_facts_about_the_data(lab: Lab) -> None:
    """kedro-viz's own hook would write row counts."""
    assert not (lab.root / ".viz").exists()


def test_store_is_in_the_project_wherever_the_command_is_given(lab: Lab) -> None:
    assert not (lab.root / "src/mlflow.db").exists()
    assert not (lab.root / "src/mlruns").exists()


def test_nothing_private_in_store_or_artifacts(lab: Lab) -> None:
    tracked = [lab.root / "mlflow.db", *(path for path in (lab.root / "mlruns").rglob("*") if path.is_file())]
    for path in tracked:
        content = path.read_bytes()
        assert b"a private record" not in content
        assert b"SECRET" not in content
        assert b"KeyError" not in content


def test_numbers_that_are_not_finite_become_tags(lab: Lab) -> None:
    run = MlflowRun(TrackingConfig(experiment="other"), lab.root, "odd", int(time.time() * 1000), {})
    run.log_metrics(
        {"loss": math.nan, "epsilon": math.inf, "n": 3, "flag": True, "name": "x", "list": [1]}, "m"
    )
    run.log_metrics({"epsilon": None, "delta": 0.5, "n": 3}, "privacy", ["epsilon", "delta"])
    run.log_parameters(
        {"names": ["x" * 10] * 1000, "formula (δ=1e-5)": "=", **{f"p{n}": n for n in range(150)}}
    )
    run.close("FINISHED")
    run.close("FAILED")
    odd = next(item for item in lab.mlflow_runs() if item.info.run_name == "odd")
    assert odd.info.status == "FINISHED"
    assert odd.data.metrics == {"m/n": 3.0, "privacy/delta": 0.5}
    assert odd.data.tags["privacy/epsilon"] == "None"
    assert {key: odd.data.tags[key] for key in ("m/loss", "m/epsilon")} == {
        "m/loss": "nan",
        "m/epsilon": "inf",
    }
    assert odd.data.params["names"].endswith("(whole value: parameters.json)")
    assert odd.data.params["p149"] == "149"
    whole = json.loads((lab.root / "mlruns" / odd.info.run_id / "artifacts/parameters.json").read_text())
    assert len(whole["names"]) == 1000


def test_interrupted_run_is_killed_and_not_finished(lab: Lab) -> None:
    code = (
        "import time; from pathlib import Path; from raptor.hooks.config import TrackingConfig;"
        "from raptor.hooks.mlflow_run import MlflowRun;"
        "MlflowRun(TrackingConfig(), Path.cwd(), 'interrupted', int(time.time() * 1000), {}); raise KeyboardInterrupt"
    )
    lab.python("-c", code)
    statuses = {run.info.run_name: run.info.status for run in lab.mlflow_runs()}
    assert statuses["interrupted"] == "KILLED"
