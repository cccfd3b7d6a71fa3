"""A whole run on the embedded default, small: what it leaves, what it must not leave, and running it again."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.whole.project import REPOSITORY, Project

pytestmark = pytest.mark.slow

# The default, given here so that the number of releases is known.
SHARED_STEPS = 4
SMALL = ",".join(
    [
        "ingestion.records=2400",
        "selection.corpus_records=600",
        "training.cycles=6",
        f"training.shared.steps_per_cycle={SHARED_STEPS}",
        "training.batch_size=64",
        "training.threads=1",
        "audit.canaries=1000",
        "audit.trials=300",
    ]
)
OUTPUTS = [
    "06_models/raptor_model/config.json",
    "06_models/raptor_model/model.safetensors",
    "06_models/raptor_model/classifier_head.safetensors",
    "06_models/raptor_model/tokenizer.json",
    "06_models/release_log.jsonl",
    "07_model_output/privacy_ledger.jsonl",
    "08_reporting/routing_profile.json",
    "08_reporting/evaluation_metrics.json",
    "08_reporting/privacy_certificate.json",
    "08_reporting/privacy_certificate.md",
    "08_reporting/failure_modes.json",
    "08_reporting/report.html",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after one whole run, with the private facts of that run beside it."""
    folder = tmp_path_factory.mktemp("whole")
    project = Project(folder / "project")
    project.run("-m", "tests.whole.watched_run", str(folder / "facts.json"), "--params", SMALL)
    return project


@pytest.fixture(scope="module")
def facts(project: Project) -> dict[str, Any]:
    found = json.loads((project.root.parent / "facts.json").read_text())
    from datasets import load_from_disk

    owners = load_from_disk(str(project.root / "data/05_model_input/owner_partition"))
    records = load_from_disk(str(project.root / "data/02_intermediate/private_records"))
    columns = [column for column in owners.column_names if column.startswith("layer_")]
    tallies = [Counter(owners[column]) for column in columns]
    found["owner_counts"] = [[tally[expert] for expert in range(8)] for tally in tallies]
    found["texts"] = list(records["text"])
    return found


def published(project: Project) -> dict[str, str]:
    """Every file that may be shown to others, as text: MLflow's store and artifacts, log, report, static viz."""
    files = [
        project.root / "raptor.log",
        project.root / "mlflow.db",
        *(project.root / "data/08_reporting").rglob("*"),
        *(project.root / "mlruns").rglob("*"),
        *(project.root / "build").rglob("*"),
        *(project.root / ".viz").rglob("*"),
        project.root / "data/07_model_output/privacy_ledger.jsonl",
        project.root / "data/05_model_input/privacy_plan.json",
    ]
    return {
        file.relative_to(project.root).as_posix(): file.read_bytes().decode("utf-8", "ignore")
        for file in files
        if file.is_file() and file.suffix not in {".png", ".woff", ".woff2", ".js", ".css"}
    }


def numbers(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text)


def run_of(values: list[int], text: str, length: int) -> bool:
    """Whether `length` neighbouring values stand in the text as neighbouring numbers."""
    found = numbers(text)
    wanted = {
        tuple(str(value) for value in values[start : start + length])
        for start in range(len(values) - length + 1)
    }
    return any(tuple(found[start : start + length]) in wanted for start in range(len(found) - length + 1))


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_of_the_contract_exists(project, name) -> None:
    assert (project.root / "data" / name).stat().st_size > 0


def test_the_certificate_is_accepted_and_stays_in_the_budget(project) -> None:
    certificate = project.json("08_reporting/privacy_certificate.json")
    target = project.json("05_model_input/privacy_plan.json")["epsilon_target"]
    assert 0 < certificate["epsilon"] <= target
    done = project.raptor("verify", "data/08_reporting/privacy_certificate.json")
    assert len(done.stdout.strip().splitlines()) >= 1


def test_a_certificate_with_another_epsilon_is_refused(project, tmp_path) -> None:
    certificate = project.json("08_reporting/privacy_certificate.json")
    certificate["epsilon"] = certificate["epsilon"] / 2
    forged = project.root / "data/08_reporting/forged.json"
    forged.write_text(json.dumps(certificate))
    done = project.raptor("verify", str(forged), check=False)
    forged.unlink()
    assert done.returncode == 1
    assert "epsilon" in done.stdout + done.stderr


def test_the_ledger_has_every_step_of_both_streams(project) -> None:
    lines = [
        json.loads(line)
        for line in (project.root / "data/06_models/release_log.jsonl").read_text().splitlines()
    ]
    text = json.dumps(lines)
    assert text.count('"stream": "shared"') == 6 * SHARED_STEPS
    assert text.count('"stream": "expert"') == 6


def test_no_private_fact_is_published(project, facts) -> None:
    project.kedro("viz", "build")
    files = published(project)
    assert any(name.startswith("mlruns/") for name in files)
    assert any(name.startswith("build/") for name in files)
    assert any("report.html" in name for name in files)
    assert len(facts["batch_sizes"]) >= 6 * (SHARED_STEPS + 1)
    # Where a number begins: digits inside the coordinates of pictures are any digits.
    losses = [re.compile(rf"(?<![\d.]){re.escape(f'{value:.6g}')}") for value in facts["losses"]]
    # Long enough to be no common phrase; documentation strings of the pipeline's own tools are among the records.
    snippets = [text[10:60] for text in facts["texts"] if len(text) >= 60]
    for name, text in files.items():
        assert not [snippet for snippet in snippets if snippet in text][:1], name
        assert not [loss for loss in losses if loss.search(text)][:1], name
        assert not run_of(facts["batch_sizes"], text, 3), name
        for counts in facts["owner_counts"]:
            assert not run_of(counts, text, 3), name


def test_mlflow_has_one_run_with_what_an_auditor_needs(project) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{project.root / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments)
    assert len(runs) == 1
    run = runs[0]
    assert run.info.status == "FINISHED"
    assert run.data.params["training.cycles"] == "6"
    assert any("accuracy" in name for name in run.data.metrics)
    artifacts = {
        item.path
        for folder in client.list_artifacts(run.info.run_id)
        for item in [folder, *client.list_artifacts(run.info.run_id, folder.path)]
    }
    for name in ("privacy_ledger.jsonl", "privacy_certificate.json", "report.html", "routing_profile.json"):
        assert any(path.endswith(name) for path in artifacts), (name, artifacts)
    with sqlite3.connect(project.root / "mlflow.db") as store:
        assert store.execute("select count(*) from metrics where is_nan").fetchone() == (0,)


def test_the_report_shows_baselines_failure_modes_and_what_attacks_found(project) -> None:
    page = (project.root / "data/08_reporting/report.html").read_text(encoding="utf-8")
    found = set(re.findall(r'aria-labelledby="figure-(\w+)-title', page))
    assert found >= {"accuracy", "interference", "signal", "dilution", "errors", "bounds", "drift", "audit"}
    modes = project.json("08_reporting/failure_modes.json")
    # Formulas and draws agree on the loads of this run's public corpus.
    assert modes["check"]["variance"] < 0.15
    assert modes["records"] == 600


def test_the_notebooks_run_on_what_the_run_left(project) -> None:
    notebooks = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
    done = project.run("-m", "tests.whole.run_notebook", *map(str, notebooks))
    assert [line for line in done.stdout.splitlines() if re.match(r"\S+\.ipynb: ", line)] == [
        "1_reading_a_result.ipynb: 1 pictures",
        "2_choosing_epsilon.ipynb: 1 pictures",
        "3_understanding_the_diagnostics.ipynb: 6 pictures",
    ]


def test_missing_outputs_only_trains_nothing_again(project) -> None:
    before = project.times()
    done = project.kedro("run", "--only-missing-outputs", "--params", SMALL)
    after = project.times()
    assert {name for name in after if before.get(name) != after[name]} == set(), done.stdout


@pytest.mark.parametrize("stage", ["base_model", "selection", "ingestion", "accounting"])
def test_each_stage_runs_alone(project, stage) -> None:
    project.kedro("run", "--pipelines", stage, "--params", SMALL)


def test_a_stage_alone_refuses_another_number_of_layers_than_was_selected(project) -> None:
    changed = f"{SMALL},selection.protected_layers=2"
    done = project.kedro("run", "--pipelines", "training", "--params", changed, check=False)
    assert done.returncode == 1
    assert "protected_layers is 2, but the selection stage" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.exhaustive
def test_training_and_evaluation_run_alone_and_two_runs_differ(project) -> None:
    """Run after the others, as it makes another model; noise of two runs is never the same."""
    weights = Path(project.root / "data/06_models/raptor_model/model.safetensors")
    before = weights.read_bytes()
    # Ingestion ran again and drew another held-out set, so all that follows from it is made anew.
    for stage in ("training", "accounting", "evaluation"):
        project.kedro(
            "run", "--pipelines", stage, "--params", f"{SMALL},evaluation.baselines=[largest_class]"
        )
    assert weights.read_bytes() != before
    project.raptor("verify", "data/08_reporting/privacy_certificate.json")
