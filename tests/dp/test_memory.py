"""Freed memory that the process keeps: a step after the first finds its pages there."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

from raptor.dp import memory

FAULTS = """
import resource, sys
from raptor.dp.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def step():
    kept = [b"x" * (1 << 22) for _ in range(40)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt: elsewhere nothing is kept"
)
def test_a_second_step_has_hardly_a_page_fault() -> None:
    found = {
        name: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, name], check=True, capture_output=True, text=True
            ).stdout
        )
        for name in ("kept", "given back")
    }
    pages = 40 * 2**22 // resource.getpagesize()
    assert found["kept"] < 0.01 * pages, found
    assert found["kept"] < found["given back"], found


def test_another_system_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert not memory.keep_freed_memory()
