"""Runs of pytest in forked children, which find the libraries imported and the project not."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
LIMIT_S = 90


@dataclass(frozen=True)
class Outcome:
    """How a run of pytest ended.

    Attributes:
        code: exit status of pytest; below 0 the signal that ended it.
        test: the first test that failed, or that could not be made ready.
        reason: first line of its error.
        seconds: wall-clock time.
    """

    code: int
    test: str = ""
    reason: str = ""
    seconds: float = 0.0


class _FirstFailure:
    """A plugin of pytest that keeps the first failure."""

    def __init__(self) -> None:
        self.test = self.reason = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        self._keep(report)

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

    @classmethod
    def start(cls, root: Path, tests: Sequence[str], stop_first: bool = True) -> Child:
        """Fork, and run `tests` on the sources in `root`."""
        answer = root / "outcome.json"
        answer.unlink(missing_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return cls(pid, answer, time.monotonic())
        code = 3
        try:
            code = _run(root, tests, stop_first, answer)
        finally:
            os._exit(code)

    def outcome(self, status: int) -> Outcome:
        """What became of it, from the status that the system gave."""
        seconds = time.monotonic() - self.started
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGALRM:
            where = (self.answer.parent / "stopped.txt").read_text().splitlines()
            reason = " ".join([f"not done after {LIMIT_S} s", *(line.strip() for line in where[1:4])])
            return Outcome(code, reason=reason, seconds=seconds)
        if not self.answer.is_file():
            return Outcome(code or 3, reason="the process ended without an answer", seconds=seconds)
        return Outcome(**{**json.loads(self.answer.read_text()), "seconds": seconds})


def _run(root: Path, tests: Sequence[str], stop_first: bool, answer: Path) -> int:
    signal.alarm(LIMIT_S)
    place = (root / "stopped.txt").open("w")
    faulthandler.dump_traceback_later(LIMIT_S - 5, file=place)
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

    first = _FirstFailure()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *(["-x"] if stop_first else [])]
    code = int(pytest.main([*options, *tests], plugins=[first]))
    used = Path(str(sys.modules["raptor"].__file__)) if "raptor" in sys.modules else None
    if used is not None and root not in used.parents:
        code, first.reason = 3, f"the tests ran on {used.parent}"
    answer.write_text(json.dumps(asdict(Outcome(code, first.test, first.reason))))
    return code
