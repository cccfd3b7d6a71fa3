"""What a person sees of long work: bars on a terminal, plain lines elsewhere, and nothing measured on the data.

Durations are not shown: how long a private step takes depends on the size of its private sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar, overload

import rich
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")


@overload
def track(
    items: int, description: str, total: int | None = None, long: bool = False, is_public: bool = False
) -> Iterator[int]: ...


@overload
def track(
    items: Iterable[Item],
    description: str,
    total: int | None = None,
    long: bool = False,
    is_public: bool = False,
) -> Iterator[Item]: ...


def track(
    items: Iterable[Item] | int,
    description: str,
    total: int | None = None,
    long: bool = False,
    is_public: bool = False,
) -> Iterator[Item] | Iterator[int]:
    """Go through ``items`` with a bar on the console that Kedro's log uses, so that the two do not tear.

    Losses, speeds and times of single steps depend on private data, and are not shown.

    Args:
        items: what to go through; a number ``n`` stands for ``range(n)``.
        description: a few words before the bar.
        total: number of items, when ``items`` cannot tell.
        long: off a terminal, say when it starts and when it has ended; without it nothing is said there.
        is_public: what is gone through is public, so that the time that is left may be shown; off a terminal one
            line for each tenth.
    """
    if isinstance(items, int):
        return _track(range(items), description, items, long, is_public)
    if total is None and isinstance(items, Sized):
        total = len(items)
    return _track(items, description, total, long, is_public)


def say(text: str) -> None:
    """One plain line on the console."""
    rich.get_console().print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def working(description: str) -> Iterator[None]:
    """Show that something long is going on whose progress cannot be told."""
    console = rich.get_console()
    if console.is_terminal:
        with console.status(f"{description} ..."):
            yield
        return
    say(f"{description}: started")
    yield
    say(f"{description}: done")


@contextmanager
def on_stderr() -> Iterator[None]:
    """Keep the console off standard output while a command prints its result there."""
    console = rich.get_console()
    before, console.stderr = console.stderr, True
    try:
        yield
    finally:
        console.stderr = before


def _track(
    items: Iterable[Item], description: str, total: int | None, long: bool, is_public: bool
) -> Iterator[Item]:
    console = rich.get_console()
    if not console.is_terminal and is_public and total:
        yield from _in_lines(items, description, total)
        return
    if not console.is_terminal:
        if long:
            say(f"{description}: started")
        yield from items
        if long:
            say(f"{description}: done")
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    if is_public:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(task)


def _in_lines(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """A line with the time that is left for each tenth."""
    started = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if number == total or number * 10 // total > (number - 1) * 10 // total:
            left = (time.monotonic() - started) * (total - number) / number
            say(f"{description}: {number} of {total}, about {left / 60:.0f} minutes left")
