"""Which code ran: the package's own commit and digest, and not those of the folder around it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from raptor.accounting.facts import NO_COMMIT
from raptor.code_version import running_code, source_digest


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture(name="package")
def _package(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "mechanism.py").write_text("NOISE = 1\n")
    return package


def test_code_without_a_repository(package: Path) -> None:
    found = running_code(package)
    assert (found.commit, found.modified) == (NO_COMMIT, None)
    assert found.digest == source_digest(package)


def test_committed_code_and_changes_of_it(package: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    clean = running_code(package)
    assert (clean.commit, clean.modified) == (commit, False)
    # Something else in the repository is no other code.
    (tmp_path / "notes.txt").write_text("x")
    assert running_code(package) == clean
    (package / "mechanism.py").write_text("NOISE = 0\n")
    changed = running_code(package)
    assert (changed.commit, changed.modified) == (commit, True)
    assert changed.digest != clean.digest


def test_code_that_is_installed_inside_another_repository(package: Path, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("src\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "somebody's project")
    assert running_code(package).commit == NO_COMMIT


def test_without_git_there_is_still_a_digest(package: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = running_code(package)
    assert (found.commit, found.modified) == (NO_COMMIT, None)
    assert len(found.digest) == 64


@pytest.mark.parametrize("change", ["renamed", "moved", "added", "removed"])
def test_the_digest_follows_names_and_files(package: Path, change: str) -> None:
    before = source_digest(package)
    file = package / "mechanism.py"
    if change == "renamed":
        file.rename(package / "noise.py")
    elif change == "moved":
        (package / "inner").mkdir()
        file.rename(package / "inner" / "mechanism.py")
    elif change == "added":
        (package / "more.py").write_text("")
    else:
        file.unlink()
    assert source_digest(package) != before
