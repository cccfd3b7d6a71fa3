"""Rows that become runs below the run that made them."""

from __future__ import annotations

import math
from pathlib import Path

from mlflow import MlflowClient

from raptor.hooks.config import TrackingConfig
from raptor.hooks.mlflow_run import MlflowRun


def test_each_row_is_a_finished_run_below_its_parent(tmp_path: Path) -> None:
    config = TrackingConfig()
    run = MlflowRun(config, tmp_path, "benchmark", 0, {})
    rows = [
        {"dataset": "a", "method": "raptor", "accuracy": 0.5, "seed": 0},
        {"dataset": "a", "method": "scope_b", "accuracy": math.nan, "seed": 1},
    ]
    run.log_children(rows, ["accuracy"])
    run.close("FINISHED")
    client = MlflowClient(tracking_uri=f"sqlite:///{(tmp_path / config.database).as_posix()}")
    experiment = client.get_experiment_by_name(config.experiment)
    found = client.search_runs(
        [experiment.experiment_id], f"tags.mlflow.parentRunId = '{run.run_id}'", order_by=["params.seed ASC"]
    )
    assert [child.info.status for child in found] == ["FINISHED", "FINISHED"]
    assert [child.info.run_name for child in found] == ["a raptor 0", "a scope_b 1"]
    assert found[0].data.metrics == {"accuracy": 0.5}
    assert found[0].data.params == {"dataset": "a", "method": "raptor", "seed": "0"}
    # MLflow would keep it as 0, which would be read as a result.
    assert found[1].data.metrics == {}
