"""Fixtures that several test packages share: tiny models and the place of the shared test data."""

from __future__ import annotations

import os
from pathlib import Path

# Before absl, which dp-accounting imports: its handler closes what pytest captures when Kedro sets logging up after it.
import kedro.framework.project  # noqa: F401
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# One thread a process: tests run side by side, and threads that wait for each other take several times as long.
# Here, before anything imports torch, which reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: begun last, one process would run them while the others wait."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Real data sets and cases; they are not part of the project, so tests that need them may skip."""
    place = Path(os.environ.get("RAPTOR_SHARED", REPOSITORY.parent / "shared"))
    if not (place / "data").is_dir():
        pytest.skip(f"the shared test data are not here ({place}); set RAPTOR_SHARED to their folder")
    return place
