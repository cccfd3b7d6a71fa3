"""Speed and tightness of the accountant: seconds of processor time of one core, and figures beside a reference.

python -m benchmarks.accountant           times: median of some runs, best on an idle machine
python -m benchmarks.accountant --table   epsilon beside reference values, as a Markdown table

The reference values were made once: losses of one step on three grids by "connect the dots" (arXiv 2207.04380), a
tilted Fourier transform, and an extrapolation to a grid of width 0. They are uncertain by 1e-8 or less, but for the
one of sigma 0.1 by 6e-5.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# One core: set before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from raptor.accounting.accountant import epsilon
from raptor.accounting.calibration import calibrate
from raptor.accounting.compose import renyi_epsilon
from raptor.accounting.types import Adjacency, Event, EventShape

ROOT = Path(__file__).resolve().parents[1]
ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
SST2, RTE, COLA, QNLI, QQP, MNLI = 67349, 2490, 8551, 104743, 363846, 392702

# What it is, rate, noise multiplier, steps, delta, reference epsilon.
REFERENCE = [
    ("SST-2, B 1024", 1024 / SST2, 1.0, 200, 1 / (10 * SST2), 1.6538265279),
    ("SST-2, B 2048", 2048 / SST2, 0.7, 100, 1 / (10 * SST2), 6.0813032883),
    ("SST-2, B 4096", 4096 / SST2, 1.5, 1000, 1 / (10 * SST2), 7.6178354610),
    ("SST-2, B 1024", 1024 / SST2, 0.6, 5000, 1 / (10 * SST2), 26.9489302288),
    ("RTE, B 1024", 1024 / RTE, 5.0, 100, RTE**-1.1, 2.9584807165),
    ("CoLA, B 512", 512 / COLA, 1.0, 500, COLA**-1.1, 8.3890422362),
    ("QNLI, B 1024", 1024 / QNLI, 0.5, 3000, 1 / (10 * QNLI), 24.4272900422),
    ("QQP, B 2048", 2048 / QQP, 0.4, 500, QQP**-1.1, 17.2619716703),
    ("MNLI, B 1024", 1024 / MNLI, 0.55, 5000, 1 / (10 * MNLI), 7.6758873001),
    ("one release, no sampling", 1.0, 5.0, 1, 1e-6, 0.8341175486),
    ("one sampled release", 0.01, 1.0, 1, 1e-5, 0.1994504478),
    ("tiny noise", 0.01, 0.1, 100, 1e-5, 354.1960923589),
    ("many steps", 0.001, 1.0, 100_000, 1e-6, 1.8610474912),
    ("tiny delta", 0.01, 1.0, 1000, 1e-12, 3.9142981562),
    ("tinier delta", 0.01, 1.0, 1000, 1e-15, 4.8545377510),
    ("every second record", 0.5, 2.0, 10, 1e-5, 3.9589955687),
]


def schedule() -> float:
    """A thousand noise levels."""
    events = [Event(0.015, 0.8 + 1.2 * step / 999, 1) for step in range(1000)]
    return epsilon(events, 1e-6, ADD, confirm=False).epsilon


def one(rate: float, noise: float, steps: int, delta: float, adjacency: Adjacency) -> float:
    return epsilon([Event(rate, noise, steps)], delta, adjacency, confirm=False).epsilon


def two_streams(confirm: bool) -> float:
    shapes = [EventShape(1024 / SST2, 500), EventShape(4096 / SST2, 500, 1.5)]
    return calibrate(shapes, 3.0, 1 / (10 * SST2), ADD, confirm=confirm).factor


WORK: dict[str, Callable[[], float]] = {
    "epsilon, 500 steps": lambda: one(0.0152, 1.0, 500, 1e-6, ADD),
    "epsilon, 500 steps, replace-one": lambda: one(0.0152, 1.0, 500, 1e-6, REPLACE),
    "epsilon, 100,000 steps": lambda: one(0.001, 1.0, 100_000, 1e-6, ADD),
    "epsilon, rare steps, tiny delta": lambda: one(1e-5, 1.0, 1000, 1e-9, ADD),
    "epsilon, rare steps, large delta": lambda: one(1e-5, 0.4, 1000, 1e-3, ADD),
    "epsilon, rare steps, replace-one": lambda: one(1e-5, 0.4, 1000, 1e-3, REPLACE),
    "epsilon, schedule of 1,000 levels": schedule,
    "calibrate, two streams of 500": lambda: two_streams(confirm=False),
    "the same, confirmed": lambda: two_streams(confirm=True),
}
COMMANDS = {
    "raptor epsilon": ["epsilon", "--event", "0.0152,1.0,500", "--event", "0.0152,1.4,500"],
    "raptor epsilon, shared sample": ["epsilon", "--shared-sample", "0.0152,1.0+1.4,500"],
    "raptor calibrate": ["calibrate", "--event", "0.0152,500", "--epsilon", "3"],
    "raptor calibrate, two streams": [
        *("calibrate", "--event", "0.0152,500", "--event", "0.0608,500,1.5", "--epsilon", "3"),
    ],
}


def spent(work: Callable[[], float]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def spent_by_command(arguments: list[str]) -> float:
    """Processor seconds of a command, its start and imports among them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "raptor", *arguments, "--delta", "1e-6", "--json"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times(runs: int) -> None:
    for name, work in WORK.items():
        show(name, [spent(work) for _ in range(runs)])
    for name, arguments in COMMANDS.items():
        show(name, [spent_by_command(arguments) for _ in range(runs)])


def show(name: str, taken: list[float]) -> None:
    print(f"{name:34} {statistics.median(taken):.2f} s", flush=True)


def table() -> None:
    print("| setting | rate | sigma | steps | delta | reference | ours | above by | Renyi |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, rate, noise, steps, delta, truth in REFERENCE:
        event = [Event(rate, noise, steps)]
        found = epsilon(event, delta, ADD, confirm=False).epsilon
        renyi = renyi_epsilon(event, delta, ADD)
        # What is below the digits of the reference is no difference.
        above = found / truth - 1 if abs(found / truth - 1) > 1e-9 else 0.0
        print(
            f"| {name} | {rate:.4g} | {noise:g} | {steps:,} | {delta:.2g} | {truth:.8g} | {found:.8g} "
            f"| {above:.1e} | {renyi:.4g} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and tightness of the accountant.")
    parser.add_argument("--table", action="store_true", help="figures beside reference values")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.table:
        table()
    else:
        times(arguments.runs)


if __name__ == "__main__":
    main()
