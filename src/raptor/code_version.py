"""Which code is running: its digest, and its commit where it is under version control."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from raptor.accounting.facts import NO_COMMIT, Code

_PACKAGE = Path(__file__).resolve().parent


def running_code(folder: Path = _PACKAGE) -> Code:
    """The package's own files, not those of the folder that the command was given in.

    A package that is installed inside of somebody's repository, but does not belong to it, has no commit.
    """
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    changes = _git(folder, "status", "--porcelain", "--", ".") if commit else None
    return Code(
        commit=commit or NO_COMMIT,
        modified=None if changes is None else bool(changes),
        digest=source_digest(folder),
    )


def source_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all Python files of a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; None when it fails or git is absent."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
