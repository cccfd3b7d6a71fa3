"""What a run that did not end has spent, by its journal."""

from __future__ import annotations

from pathlib import Path

from raptor.accounting.accountant import epsilon
from raptor.accounting.chain import read_torn
from raptor.accounting.journal import open_lines
from raptor.accounting.plan import read_plan


def spent_in_words(journal: Path) -> str:
    """One sentence on the releases of a journal and their epsilon; a line that is torn counts in every stream.

    Raises:
        LedgerError: the journal is broken, or its header is no plan.
    """
    lines, torn = read_torn(journal)
    header, releases = open_lines(lines, str(journal))
    plan = read_plan(header)
    made = {stream.name: 0 for stream in plan.streams if not stream.is_reserved}
    for release in releases:
        made[release.stream] += 1
    events = [
        event
        for name, count in made.items()
        for event in plan.stream(name).events(min(count + bool(torn), plan.stream(name).steps))
    ]
    figure = epsilon(events, plan.delta, plan.adjacency, confirm=False)
    counts = ", ".join(f"{count} of {plan.stream(name).steps} {name}" for name, count in made.items())
    return (
        f"It has made {counts} releases, which cost epsilon {figure.epsilon:.3g} at delta {plan.delta:.3g}."
    )
