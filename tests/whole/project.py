"""A whole project in a temporary folder: the repository's own configuration and code, data of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


class Project:
    """Runs commands in a copy of the repository's project as a user would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        for name in ("pyproject.toml", ".telemetry"):
            shutil.copy(REPOSITORY / name, root / name)
        shutil.copytree(REPOSITORY / "conf", root / "conf", ignore=shutil.ignore_patterns("local"))
        (root / "conf/local").mkdir()
        (root / "src").mkdir()
        (root / "src/raptor").symlink_to(REPOSITORY / "src/raptor")

    def environment(self) -> dict[str, str]:
        """Variables of a command in the project."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "KEDRO_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
        }

    def run(
        self, *arguments: str, check: bool = True, timeout: int = 1200
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python command, such as `-m kedro run`, in the project."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def kedro(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "kedro", *arguments, check=check)

    def raptor(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "raptor", *arguments, check=check)

    def json(self, name: str) -> Any:
        return json.loads((self.root / "data" / name).read_text(encoding="utf-8"))

    def times(self) -> dict[str, int]:
        """Modification time of every file under data."""
        return {
            file.relative_to(self.root).as_posix(): file.stat().st_mtime_ns
            for file in (self.root / "data").rglob("*")
            if file.is_file()
        }
