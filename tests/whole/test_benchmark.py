"""The comparison by one command, on a Parquet file of one's own: what it leaves, and what a second run does."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from tests.pipelines.benchmark.test_benchmark import write_set
from tests.whole.project import Project

pytestmark = pytest.mark.exhaustive

COMMAND = (
    "run",
    "--env",
    "glue-cpu",
    "--pipelines",
    "benchmark",
    "--params",
    "benchmark.sets=[own.parquet],benchmark.methods=[raptor,scope_b,nonprivate_b],benchmark.epsilons=[4],"
    "benchmark.most_seeds=1,benchmark.attacks.sets=[own],benchmark.attacks.methods=[raptor],benchmark.attacks.epsilons=[4],"
    "benchmark.attacks.models=4,benchmark.attacks.control_methods=[],training.cycles=1,training.batch_size=40,selection.corpus_records=100",
)


def test_one_command_leaves_tables_figures_and_runs(tmp_path) -> None:
    project = Project(tmp_path / "project")
    write_set(project.root / "own.parquet", records=200)
    project.kedro(*COMMAND)
    made = project.root / "docs/results"
    assert sorted(file.name for file in made.iterdir()) == [
        "accuracy.png",
        "attacks.json",
        "attacks.png",
        "diagnostics.json",
        "gains.png",
        "results.parquet",
        "tables.md",
    ]
    rows = pq.read_table(made / "results.parquet").to_pylist()
    assert [(row["dataset"], row["method"]) for row in rows] == [
        ("own", "nonprivate_b"),
        ("own", "raptor"),
        ("own", "scope_b"),
    ]
    client = MlflowClient(tracking_uri=f"sqlite:///{project.root / 'mlflow.db'}")
    runs = client.search_runs([found.experiment_id for found in client.search_experiments()])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(runs) == len(parents) + len(rows) == 4
    times = project.times()
    cells = {name: time for name, time in times.items() if "/cells/" in name}
    assert len(cells) == 3 + 4
    assert "## Attacks" in (made / "tables.md").read_text(encoding="utf-8")
    project.kedro(*COMMAND)
    assert {name: time for name, time in project.times().items() if "/cells/" in name} == cells
