"""What a private step costs over a non-private one of the same role, in time and in memory.

python -m benchmarks.step --json FILE [--cases NAME ...] [--rounds N] [--threads N] [--quick]
python -m benchmarks.step --table FILE

To be read on an idle machine. `docs/performance.md` says what is measured and what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Before torch loads: its profiler, which measures memory, writes lines of its own otherwise.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from benchmarks import table
from benchmarks.cases import BY_NAME, FULL, QUICK
from benchmarks.measure import Row, measure


def write(rows: Sequence[Row], place: Path) -> None:
    """One row a line. The file is replaced at once, so that a run that is stopped leaves whole rows."""
    beside = place.with_name(place.name + ".part")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    beside.replace(place)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows here after each case")
    parser.add_argument(
        "--cases", nargs="+", choices=BY_NAME, metavar="NAME", help=f"some of: {', '.join(BY_NAME)}"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each case (default: 9, quick: 3)")
    parser.add_argument("--threads", type=int, default=1, help="1: CPU time; more: wall time (default: 1)")
    parser.add_argument("--quick", action="store_true", help="two small cases, few rounds")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the rows of a file as markdown")
    chosen = parser.parse_args(given)
    if min(chosen.threads, chosen.rounds or 1) < 1:
        parser.error("--threads and --rounds take numbers from 1")
    return chosen


def main(given: Sequence[str] | None = None) -> None:
    """Measure, or print the table of a file."""
    chosen = _arguments(given)
    if chosen.table is not None:
        print(table.markdown([json.loads(line) for line in chosen.table.open(encoding="utf-8")]))
        return
    cases = [BY_NAME[name] for name in chosen.cases] if chosen.cases else QUICK if chosen.quick else FULL
    rounds = chosen.rounds or (3 if chosen.quick else 9)
    rows: list[Row] = []
    for case in cases:
        print(f"{case.name}: {rounds} rounds", file=sys.stderr, flush=True)
        rows += measure(case, rounds, chosen.threads)
        if chosen.json is not None:
            write(rows, chosen.json)
    print(table.plain(rows))


if __name__ == "__main__":
    main()
