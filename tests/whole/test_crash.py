"""A whole run that is killed while it trains: the same command goes on with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.whole.project import Project
from tests.whole.test_whole_run import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

# As few records as a batch of 64 can be drawn from.
FEW = SMALL.replace("ingestion.records=2400", "ingestion.records=600").replace(
    "corpus_records=600", "corpus_records=100"
)
COMMAND = ("-m", "kedro", "run", "--to-nodes", "end_training", "--params", FEW)


def killed_in_training(project: Project, releases: int) -> None:
    """Start the run, and kill it when its journal has so many releases."""
    journals = project.root / "data/06_models/journals"
    process = subprocess.Popen(
        [sys.executable, *COMMAND],
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if any(path.read_text().count('"kind":"release"') >= releases for path in journals.glob("*.jsonl")):
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_the_same_command_goes_on_with_a_killed_run(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    checkpoint = project.root / "data/06_models/checkpoints/unfinished.safetensors"
    killed_in_training(project, 7)
    assert checkpoint.is_file()
    refused = project.run(*COMMAND[:-1], FEW.replace("cycles=6", "cycles=7"), check=False)
    assert refused.returncode == 1
    assert "training.cycles was 6, is 7" in " ".join((refused.stdout + refused.stderr).split())
    project.run(*COMMAND)
    log = (project.root / "raptor.log").read_text()
    assert "The private training goes on after step" in log
    assert not checkpoint.exists()
    # One journal: nothing was begun anew, so the draw of held-out records was the same again.
    assert len(list((project.root / "data/06_models/journals").glob("*.jsonl"))) == 1
    project.kedro("run", "--pipelines", "accounting", "--params", FEW)
    project.raptor("verify", "data/08_reporting/privacy_certificate.json")
    assert project.json("08_reporting/privacy_certificate.json")["status"] == "complete"
