"""What may be asked for, and the commands that come of it: they name a folder and hold nothing private."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from raptor.launch.commands import WORKER, elastic_command, external_text
from raptor.launch.config import HERE, LaunchConfig

FOLDER = Path("/project/data/06_models/checkpoints/job-x1")
CLUSTER = {"backend": "external", "processes": 8, "machines": 8, "layout": "sharded"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"processes": 2}, "launch.backend is inline"),
        ({"layout": "sharded"}, "launch.backend is inline"),
        ({"backend": "elastic", "machines": 2}, "set launch.backend=external"),
        ({"backend": "elastic", "scheduler": "slurm"}, "go with launch.backend=external"),
        ({"backend": "elastic", "patience_minutes": 3}, "go with launch.backend=external"),
        ({"backend": "external", "scheduler": "kubeflow"}, "needs launch.image and launch.claim"),
        (CLUSTER, "launch.endpoint"),
        ({"backend": "elastic", "processes": 0}, "greater than or equal to 1"),
        ({"proceses": 2}, "Extra inputs"),
    ],
)
def test_what_would_change_nothing_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        LaunchConfig(**given)


def test_another_number_of_processes_is_another_training() -> None:
    two = LaunchConfig(backend="elastic", processes=2)
    assert two.identity() != HERE.identity()
    assert two.identity() != LaunchConfig(backend="elastic", processes=2, layout="sharded").identity()
    # Who starts them, and on how many machines they are, changes no bit of the sums.
    assert two.identity() == LaunchConfig(backend="external", machines=2, endpoint="a:1").identity()
    assert LaunchConfig(backend="elastic").identity() == HERE.identity()


def test_the_elastic_command_starts_as_many_as_asked_for() -> None:
    command = elastic_command(LaunchConfig(backend="elastic", processes=3), FOLDER)
    assert "--nproc-per-node=3" in command
    assert command[-3:] == ["-m", WORKER, str(FOLDER)]


def test_the_torchrun_line_names_where_machines_meet() -> None:
    line = shlex.split(external_text(LaunchConfig(**CLUSTER, endpoint="first:29500"), FOLDER))
    assert {"--nnodes=8", "--nproc-per-node=8", "--rdzv-endpoint=first:29500"} <= set(line)
    assert line[-3:] == ["-m", WORKER, str(FOLDER)]
    assert "--standalone" in external_text(LaunchConfig(backend="external", processes=2), FOLDER)


def test_the_srun_line_starts_one_torchrun_on_each_machine() -> None:
    line = external_text(LaunchConfig(**CLUSTER, scheduler="slurm", python="/env/bin/python"), FOLDER)
    assert line.startswith("srun --nodes=8 --ntasks-per-node=1 /env/bin/python -m torch.distributed.run")
    assert "$SLURM_JOB_NODELIST" in line
    assert line.endswith(f"--nproc-per-node=8 --max-restarts=1 -m {WORKER} {FOLDER}")


def test_the_train_job_mounts_the_project_where_it_is() -> None:
    config = LaunchConfig(**CLUSTER, scheduler="kubeflow", image="registry/raptor:1", claim="project")
    manifest = yaml.safe_load(external_text(config, FOLDER))
    assert (manifest["apiVersion"], manifest["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = manifest["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["image"]) == (8, "registry/raptor:1")
    assert trainer["command"][-3:] == ["-m", WORKER, str(FOLDER)]
    patch = manifest["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]
    pod = patch["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "project"
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == str(Path.cwd())
