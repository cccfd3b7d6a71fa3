"""Progress bars for long nodes: on a terminal only, and without anything measured on the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar, overload

import rich
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")


@overload
def track(items: int, description: str, total: int | None = None) -> Iterator[int]: ...


@overload
def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]: ...


def track(
    items: Iterable[Item] | int, description: str, total: int | None = None
) -> Iterator[Item] | Iterator[int]:
    """Go through ``items`` with a bar on the console that Kedro's log uses, so that the two do not tear.

    Losses, speeds and times of single steps depend on private data, and are not shown.

    Args:
        items: what to go through; a number ``n`` stands for ``range(n)``.
        description: a few words before the bar.
        total: number of items, when ``items`` cannot tell.
    """
    if isinstance(items, int):
        return _track(range(items), description, items)
    if total is None and isinstance(items, Sized):
        total = len(items)
    return _track(items, description, total)


def _track(items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    console = rich.get_console()
    if not console.is_terminal:
        yield from items
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(task)
