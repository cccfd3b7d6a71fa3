"""Runs of pytest in forked children, which find the libraries imported and the project not."""

from __future__ import annotations

import faulthandler
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

# What takes long to import. None of it may import the project.
LIBRARIES = (
    "torch",
    "torch.utils.checkpoint",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.deepseek_v2.modeling_deepseek_v2",
    "transformers.models.olmoe.modeling_olmoe",
    "transformers.models.switch_transformers.modeling_switch_transformers",
    "scipy.stats",
    "scipy.optimize",
    "dp_accounting.pld.privacy_loss_distribution",
    "cryptography.hazmat.primitives.ciphers",
    "hypothesis.strategies",
    "mpmath",
    "pydantic",
    "pytest",
)
PROJECT = ("raptor", "tests")
PASSED, FAILED = 0, 1
# Of all tests without a fault; and of the tests of a fault, beside a multiple of what they take without it.
LIMIT_S, BASE_S, MULTIPLE = 900, 60, 20
# Where one of these is set, pytest writes out every difference in full, which can take it longer than any limit.
SPELLED_OUT = ("CI", "BUILD_NUMBER")
STACKS = "stacks.txt"


@dataclass(frozen=True)
class Outcome:
    """How a run of pytest ended.

    Attributes:
        code: exit status of pytest; below 0 the signal that ended it.
        test: the first test that failed, or that could not be made ready.
        reason: first line of its error.
        seconds: wall-clock time.
        took: seconds of each test by its node id, with what it takes to make it ready.
    """

    code: int
    test: str = ""
    reason: str = ""
    seconds: float = 0.0
    took: dict[str, float] = field(default_factory=dict)

    def limit_s(self, tests: Sequence[str]) -> int:
        """How long `tests` may take with a fault, from what they took here, without one.

        A fault that makes them take longer is not caught: no test says what is wrong, and a suite that hangs on
        somebody else's machine looks like a bad machine.
        """
        took = sum(
            seconds
            for name, seconds in self.took.items()
            if any(name == test or name.startswith(f"{test}[") for test in tests)
        )
        return BASE_S + math.ceil(MULTIPLE * took)


class _Notes:
    """A plugin of pytest that keeps the first failure, and how long tests take."""

    def __init__(self) -> None:
        self.test = self.reason = ""
        self.took: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: object) -> None:
        self._keep(report)
        name = str(getattr(report, "nodeid", ""))
        self.took[name] = self.took.get(name, 0.0) + float(getattr(report, "duration", 0.0))

    def pytest_collectreport(self, report: object) -> None:
        self._keep(report)

    def _keep(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.test:
            self.test = str(getattr(report, "nodeid", ""))
            crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
            text = getattr(crash, "message", "") or str(getattr(report, "longrepr", ""))
            self.reason = next((line.strip() for line in text.splitlines() if line.strip()), "")


def prepare() -> None:
    """Import the libraries, once for all children.

    Raises:
        RuntimeError: one of them imported the project, whose faults would then not be seen.
    """
    # Two contents of the same size in the same second would share their compiled file.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in SPELLED_OUT:
        os.environ.pop(name, None)
    for name in LIBRARIES:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    if early := [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        raise RuntimeError(f"imported too early: {', '.join(early)}")


@dataclass
class Child:
    """A process that runs tests in a folder of its own."""

    pid: int
    answer: Path
    started: float
    limit_s: int

    @classmethod
    def start(cls, root: Path, tests: Sequence[str], limit_s: int = LIMIT_S) -> Child:
        """Fork, and run `tests` on the sources in `root`, until one of them fails."""
        answer = root / "outcome.json"
        answer.unlink(missing_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return cls(pid, answer, time.monotonic(), limit_s)
        code = 3
        try:
            code = _run(root, tests, limit_s, answer)
        finally:
            os._exit(code)

    def outcome(self, status: int) -> Outcome:
        """What became of it, from the status that the system gave."""
        seconds = time.monotonic() - self.started
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGALRM:
            stacks = (self.answer.parent / STACKS).read_text()
            return Outcome(code, reason=f"not done after {self.limit_s} s\n{stacks}", seconds=seconds)
        if not self.answer.is_file():
            return Outcome(code or 3, reason="the process ended without an answer", seconds=seconds)
        return Outcome(**{**json.loads(self.answer.read_text()), "seconds": seconds})


def _run(root: Path, tests: Sequence[str], limit_s: int, answer: Path) -> int:
    signal.alarm(limit_s)
    # Of all threads, to the file itself: with a thread that waits for another, either of them may be the reason.
    faulthandler.dump_traceback_later(limit_s - 5, file=(root / STACKS).open("w"))
    os.chdir(root)
    paths = [str(root / "src"), str(root)]
    # The place of this package has to go: it has tests of the same names.
    here = {"", str(Path(__file__).resolve().parent.parent)}
    sys.path[:] = paths + [path for path in sys.path if path not in here]
    # Some tests start processes of their own.
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # A process in the background that touches its terminal is stopped, as readline would on import.
    with (root / "output.txt").open("w") as output, Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    import pytest

    notes = _Notes()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = int(pytest.main([*options, *tests], plugins=[notes]))
    used = Path(str(sys.modules["raptor"].__file__)) if "raptor" in sys.modules else None
    if used is not None and root not in used.parents:
        code, notes.reason = 3, f"the tests ran on {used.parent}"
    answer.write_text(json.dumps(asdict(Outcome(code, notes.test, notes.reason, took=notes.took))))
    return code
