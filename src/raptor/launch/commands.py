"""The commands that start the processes of a training. They name a folder, and nothing that is private."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import yaml

from raptor.launch.config import LaunchConfig

WORKER = "raptor.launch.worker"
_RUN = ("-m", "torch.distributed.run")
_PORT = 29500


def elastic_command(launch: LaunchConfig, folder: Path) -> list[str]:
    """Processes on this machine, which meet at a port of its own choice; the run itself starts them again."""
    given = ["--standalone", "--nnodes=1", f"--nproc-per-node={launch.processes}", "--max-restarts=0"]
    return [sys.executable, *_RUN, *given, "--local-addr=localhost", "-m", WORKER, str(folder)]


def external_text(launch: LaunchConfig, folder: Path) -> str:
    """What to type, or to submit, so that the processes of `launch.backend=external` are started."""
    if launch.scheduler == "kubeflow":
        return _train_job(launch, folder)
    if launch.scheduler == "slurm":
        return _srun_line(launch, folder)
    return _torchrun_line(launch, folder)


def _python(launch: LaunchConfig) -> str:
    return launch.python or sys.executable


def _group(launch: LaunchConfig) -> list[str]:
    return [f"--nnodes={launch.machines}", f"--nproc-per-node={launch.processes}"]


def _restarts(launch: LaunchConfig) -> str:
    return f"--max-restarts={launch.restarts}"


def _torchrun_line(launch: LaunchConfig, folder: Path) -> str:
    if launch.endpoint is None:
        meeting = ["--standalone"]
    else:
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={launch.endpoint}", f"--rdzv-id={folder.name}"]
    parts = [_python(launch), *_RUN, *meeting, *_group(launch), _restarts(launch), "-m", WORKER, str(folder)]
    return shlex.join(parts)


def _srun_line(launch: LaunchConfig, folder: Path) -> str:
    """One torchrun on each machine of the allocation; they meet at the first of its list."""
    first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    before = ["srun", f"--nodes={launch.machines}", "--ntasks-per-node=1", _python(launch), *_RUN]
    before += ["--rdzv-backend=c10d", f"--rdzv-id={folder.name}"]
    after = [*_group(launch), _restarts(launch), "-m", WORKER, str(folder)]
    return f"{shlex.join(before)} --rdzv-endpoint={first}:{_PORT} {shlex.join(after)}"


def _train_job(launch: LaunchConfig, folder: Path) -> str:
    """A TrainJob of Kubeflow Trainer (2.2 or later), whose runtime says where the machines meet (PET_ variables)."""
    project = str(Path.cwd())
    mount = {"name": "project", "mountPath": project}
    volume = {"name": "project", "persistentVolumeClaim": {"claimName": launch.claim}}
    pod = {"volumes": [volume], "containers": [{"name": "node", "volumeMounts": [mount]}]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    command = [_python(launch), *_RUN, *_group(launch), _restarts(launch), "-m", WORKER, str(folder)]
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": f"raptor-{folder.name.replace('_', '-').lower()}"},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": launch.image,
                "numNodes": launch.machines,
                "command": command,
            },
            "runtimePatches": [
                {
                    "manager": "raptor.launch/external",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
                }
            ],
        },
    }
    return str(yaml.safe_dump(manifest, sort_keys=False))
