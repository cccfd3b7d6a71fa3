"""A small Kedro project in a temporary folder, run as a user would run it: by its command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


class Lab:
    """A copy of ``tests/lab_project`` with the repository's own logging and tracking configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root / "lab"
        shutil.copytree(
            REPOSITORY / "tests/lab_project", self.root, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(REPOSITORY / "conf/logging.yml", self.root / "conf")
        shutil.copy(REPOSITORY / "conf/base/tracking.yml", self.root / "conf/base")
        (self.root / "conf/local").mkdir()

    def kedro(
        self, *arguments: str, folder: str = ".", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "kedro", *arguments, folder=folder, **environment)

    def raptor(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "raptor", *arguments, **environment)

    def python(
        self, *arguments: str, folder: str = ".", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        paths = [str(self.root / "src"), str(REPOSITORY / "src")]
        # A wide terminal, as messages are compared; no colours.
        settings = {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "NO_COLOR": "1", **environment}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root / folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def json(self, name: str) -> Any:
        return json.loads((self.root / "data" / name).read_text())

    def mlflow_runs(self) -> list[Any]:
        """All runs in the project's store, oldest first; empty when there is no store."""
        if not (self.root / "mlflow.db").exists():
            return []
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{self.root / 'mlflow.db'}")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments)
        return sorted(runs, key=lambda run: run.info.start_time)
