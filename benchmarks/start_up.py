"""How long commands take to answer: wall seconds, median of some runs, to be read on an idle machine.

python -m benchmarks.start_up [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

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
    "raptor calibrate": ["calibrate", "--event", "0.0152,500", "--epsilon", "3", "--delta", "1e-6", "--json"],
    "raptor flow": ["flow"],
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name, arguments in COMMANDS.items():
        taken = []
        for _ in range(runs):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "raptor", *arguments], check=True, capture_output=True)
            taken.append(time.perf_counter() - start)
        print(f"{name:18} {statistics.median(taken):.2f} s")


if __name__ == "__main__":
    main()
