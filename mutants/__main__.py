"""Plants every fault, and fails when the test suite does not notice one: `python -m mutants`.

First all named tests pass on the code as it is. Then one fault after the other is planted in a copy of the code, and
one of its tests must fail there. The code itself is never changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from mutants.children import FAILED, PASSED, Child, Outcome, prepare
from mutants.fault import SOURCES, Fault, FaultError
from mutants.faults import FAULTS

REPOSITORY = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "conf", "pyproject.toml")
Item = TypeVar("Item")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every fault is caught; 1 when one survives; 2 when the list does not fit the code."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose names or files hold one of these")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (2)")
    parser.add_argument("--table", action="store_true", help="print the table of docs/privacy.md")
    given = parser.parse_args(arguments)
    chosen = [
        fault
        for fault in FAULTS
        if not given.words or any(word in f"{fault.name} {fault.file}" for word in given.words)
    ]
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="raptor-mutants-") as folder:
            outcomes = _all(chosen, _copies(Path(folder).resolve(), given.jobs), quiet=given.table)
    except FaultError as error:
        print(error, file=sys.stderr)
        return 2
    survivors = [fault for fault in chosen if outcomes[fault.name].code != FAILED]
    if given.table:
        print(table(chosen, outcomes))
    caught = len(chosen) - len(survivors)
    print(f"{caught} of {len(chosen)} faults caught, {time.monotonic() - started:.0f} s", file=sys.stderr)
    for fault in survivors:
        print(f"NOT CAUGHT: {fault.name} ({fault.file}) {outcomes[fault.name].reason}", file=sys.stderr)
    return 1 if survivors else 0


def table(faults: Sequence[Fault], outcomes: dict[str, Outcome]) -> str:
    """Markdown: fault, first test that failed."""
    rows = ["| fault | caught by |", "|---|---|"]
    for fault in faults:
        test = outcomes[fault.name].test.removeprefix("tests/").partition("[")[0]
        rows.append(f"| {fault.name} | `{test or 'nothing'}` |")
    return "\n".join(rows)


def _copies(folder: Path, count: int) -> list[Path]:
    """As many copies of the code as faults are planted at a time."""
    roots = [folder / str(number) for number in range(max(1, count))]
    for root in roots:
        root.mkdir()
        for name in COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, root / name)
    return roots


def _all(faults: Sequence[Fault], roots: Sequence[Path], quiet: bool) -> dict[str, Outcome]:
    """Outcome of each fault by its name.

    Raises:
        FaultError: a fault cannot be planted, or its tests do not pass without it.
    """
    for fault in faults:
        fault.planted(roots[0])
    # Tests find the shared data beside the repository, not beside the copy.
    os.environ.setdefault("RAPTOR_SHARED", str(REPOSITORY.parent / "shared"))
    prepare()
    tests = sorted({test for fault in faults for test in fault.tests})
    shares = [tests[number :: len(roots)] for number in range(len(roots))]
    whole = Outcome(PASSED)
    for share, outcome in _parallel(
        [share for share in shares if share],
        roots,
        lambda share, root: Child.start(root, share),
        lambda share, root: None,
    ):
        if outcome.code != PASSED:
            raise FaultError(
                f"without a fault, {outcome.test or share} ends with {outcome.code}: {outcome.reason}"
            )
        whole.took.update(outcome.took)

    def plant(fault: Fault, root: Path) -> Child:
        shutil.copy2(root / SOURCES / fault.file, root / "original")
        (root / SOURCES / fault.file).write_text(fault.planted(root), encoding="utf-8")
        return Child.start(root, fault.tests, whole.limit_s(fault.tests))

    ended = list(_noted(faults, roots, plant, quiet))
    # A machine that is busy, or a process that has got stuck, is given a second chance.
    slow = [fault for fault, outcome in ended if outcome.code == -signal.SIGALRM]
    return {fault.name: outcome for fault, outcome in [*ended, *_noted(slow, roots, plant, quiet)]}


def _noted(
    faults: Sequence[Fault], roots: Sequence[Path], plant: Callable[[Fault, Path], Child], quiet: bool
) -> Iterator[tuple[Fault, Outcome]]:
    """Plant each fault, and say what became of it."""
    for fault, outcome in _parallel(faults, roots, plant, _restore):
        if outcome.code not in (PASSED, FAILED) and outcome.code > 0:
            raise FaultError(
                f"{fault.name}: pytest ends with {outcome.code}, {outcome.test} {outcome.reason}"
            )
        if not quiet:
            end = outcome.test if outcome.code == FAILED else "NOT CAUGHT"
            first = outcome.reason.partition("\n")[0]
            print(f"{fault.name}: {end}, {outcome.seconds:.1f} s\n    {first[:110]}", flush=True)
        yield fault, outcome


def _restore(fault: Fault, root: Path) -> None:
    (root / "original").replace(root / SOURCES / fault.file)


def _parallel(
    items: Sequence[Item],
    roots: Sequence[Path],
    start: Callable[[Item, Path], Child],
    end: Callable[[Item, Path], None],
) -> Iterator[tuple[Item, Outcome]]:
    """Items with their outcomes, one at a time in each root, in the order in which they end."""
    waiting, free = list(reversed(items)), list(roots)
    running: dict[int, tuple[Item, Path, Child]] = {}
    try:
        while waiting or running:
            while waiting and free:
                item, root = waiting.pop(), free.pop()
                child = start(item, root)
                running[child.pid] = (item, root, child)
            pid, status = os.wait()
            item, root, child = running.pop(pid)
            outcome = child.outcome(status)
            end(item, root)
            free.append(root)
            yield item, outcome
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
