"""Makefile, lock files and consent: what a fresh clone relies on."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

# A make that runs the suite must not lend its flags and level to the makes that the suite runs.
OWN_MAKE = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!]+", line), line
    return dict(line.split("==") for line in lines)


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", name)[0]).lower()


def test_locks_pin_everything_and_agree(repository: Path) -> None:
    run, dev = pins(repository / "requirements.lock"), pins(repository / "requirements-dev.lock")
    assert run.items() <= dev.items()
    assert run["torch"] == "2.13.0"
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    locked = {normalised(name) for name in run}
    assert {normalised(name) for name in project["dependencies"]} <= locked
    developed = {normalised(name) for name in dev}
    assert {normalised(name) for name in project["optional-dependencies"]["dev"]} <= developed


@pytest.mark.parametrize(
    "target", ["run", "test", "test-fast", "test-exhaustive", "mutants", "lint", "viz", "ui", "help", "lock"]
)
def test_make_knows_its_targets(repository: Path, target: str) -> None:
    done = subprocess.run(
        ["make", "-n", target], cwd=repository, env=OWN_MAKE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def fresh_clone(repository: Path, root: Path) -> Path:
    for name in ("Makefile", "requirements.lock", "requirements-dev.lock", "pyproject.toml"):
        (root / name).write_bytes((repository / name).read_bytes())
    return root


def dry(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["make", "-n", *arguments], cwd=root, env=OWN_MAKE, capture_output=True, text=True, check=True
    ).stdout


def test_set_up_is_done_once_and_again_when_the_lock_changes(repository: Path, tmp_path: Path) -> None:
    root = fresh_clone(repository, tmp_path)
    first = dry(root, "run")
    assert "-m venv" in first
    assert "install --quiet -r requirements.lock" in first
    assert first.rstrip().splitlines()[-1].startswith(".venv/bin/kedro run")
    assert "requirements-dev.lock" in dry(root, "test")
    (root / ".venv").mkdir()
    assert "install" in dry(root, "run"), "a folder alone is an interrupted set-up"
    for stamp in (".ready-run", ".ready-dev"):
        (root / ".venv" / stamp).touch()
    assert "install" not in dry(root, "run")
    assert "install" not in dry(root, "test")
    later = (root / ".venv/.ready-run").stat().st_mtime + 5
    os.utime(root / "requirements.lock", (later, later))
    assert "install" in dry(root, "run")
    assert "install" not in dry(root, "test")


def test_set_up_refuses_another_python(repository: Path, tmp_path: Path) -> None:
    root = fresh_clone(repository, tmp_path)
    (root / "python").write_text("#!/bin/sh\nexit 1\n")
    (root / "python").chmod(0o755)
    done = subprocess.run(
        ["make", "run", "PYTHON=./python"],
        cwd=root,
        env=OWN_MAKE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Python 3.11 is needed" in done.stderr
    assert not (root / ".venv").exists()


def test_telemetry_consent_is_refused_in_the_repository(repository: Path) -> None:
    assert (repository / ".telemetry").read_text().strip() == "consent: false"
    makefile = (repository / "Makefile").read_text()
    for name in ("KEDRO_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY"):
        assert f"export {name}" in makefile
