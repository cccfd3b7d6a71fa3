"""How long commands take to answer: wall seconds, median of some runs, to be read on an idle machine.

python -m benchmarks.start_up [RUNS]

The last row is the time until `raptor run` (the same as `kedro run`) says that its first node starts; the run
is interrupted there. It needs the base model, which is made before where it is missing, and is not timed.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE_MODEL = ROOT / "data" / "06_models" / "base_model"
RAPTOR = [sys.executable, "-m", "raptor"]
BUDGET = ["--epsilon", "3", "--delta", "1e-6", "--json"]

COMMANDS = {
    "raptor epsilon": [
        "epsilon",
        "--event",
        "0.0152,1.0,500",
        "--event",
        "0.0152,1.4,500",
        "--delta",
        "1e-6",
        "--json",
    ],
    "raptor calibrate": ["calibrate", "--event", "0.0152,500", *BUDGET],
    "raptor calibrate, two streams": [
        "calibrate",
        "--event",
        "0.0152,500",
        "--event",
        "0.0608,500,1.5",
        *BUDGET,
    ],
    "raptor flow": ["flow"],
}
SELECTION = ["run", "--pipelines", "selection"]
FIRST_NODE = "profile_routing"


def answered(arguments: list[str]) -> float:
    """Seconds until the command has ended."""
    start = time.perf_counter()
    subprocess.run([*RAPTOR, *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def reached(arguments: list[str], word: str) -> float:
    """Seconds until the command prints a line with `word`; it is interrupted then.

    Raises:
        RuntimeError: it ended without such a line.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    start = time.perf_counter()
    with subprocess.Popen(
        [*RAPTOR, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if word in line:
                taken = time.perf_counter() - start
                process.send_signal(signal.SIGINT)
                process.communicate()
                return taken
    raise RuntimeError(f"{' '.join(arguments)} did not reach {word}:\n{''.join(said)}")


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name, arguments in COMMANDS.items():
        show(name, [answered(arguments) for _ in range(runs)])
    if not BASE_MODEL.exists():
        answered(["run", "--pipelines", "base_model"])
    show("first node of selection", [reached(SELECTION, FIRST_NODE) for _ in range(runs)])


def show(name: str, taken: list[float]) -> None:
    print(f"{name:30} {statistics.median(taken):.2f} s", flush=True)


if __name__ == "__main__":
    main()
