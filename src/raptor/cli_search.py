"""`raptor search`: what a whole search over runs costs. It imports neither torch nor Kedro."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import click

from raptor.accounting.selection import NEEDS, Search, Selection, draw_runs
from raptor.accounting.types import Adjacency, Event
from raptor.cli_accounting import parse_event
from raptor.errors import ParameterError

T = TypeVar("T")
_CHOICES = [item.value for item in Selection if item is not Selection.NONE]


@click.command()
@click.option(
    "--runs", type=int, help="Runs on the same records; with a random selection, the mean of their number."
)
@click.option(
    "--selection",
    type=click.Choice(_CHOICES),
    default=Selection.NAIVE.value,
    show_default=True,
    help="naive: everything of all runs may leave. Otherwise the distribution of the number of runs, which is drawn in "
    "secret, and the best run alone leaves.",
)
@click.option("--event", "events", multiple=True, metavar="RATE,SIGMA,STEPS", help="A release of one run.")
@click.option(
    "--ledger", "ledgers", multiple=True, type=click.Path(path_type=Path), help="The ledger of a run."
)
@click.option(
    "--certificate",
    "certificates",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The certificate of a run; it is verified.",
)
@click.option(
    "--delta", type=float, help="Probability that the guarantee may miss; default: that of the ledger."
)
@click.option(
    "--adjacency",
    type=click.Choice([item.value for item in Adjacency]),
    help="Neighbouring data sets; default: those of the ledger, or add-remove.",
)
@click.option("--draw", is_flag=True, help="Print a number of runs, drawn in secret, and nothing else.")
@click.option("--confirm", is_flag=True, help="Ask dp-accounting too, where it can be asked.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def search(
    runs: int | None,
    selection: str,
    events: tuple[str, ...],
    ledgers: tuple[Path, ...],
    certificates: tuple[Path, ...],
    delta: float | None,
    adjacency: str | None,
    draw: bool,
    confirm: bool,
    as_json: bool,
) -> None:
    """Epsilon of a whole search: trying settings on the same records and keeping one costs privacy.

    \b
    Ten runs like this one:          --certificate privacy_certificate.json --runs 10
    Two runs of different settings:  --ledger first.jsonl --ledger second.jsonl
    The best of a secret number:     --ledger first.jsonl --runs 10 --selection geometric
    That number, before the search:  --runs 10 --selection geometric --draw
    """
    from raptor.accounting.accountant import epsilon
    from raptor.accounting.search import search_epsilon

    if draw:
        click.echo(draw_runs(_declared(runs, selection)))
        return
    found, facts = _ledgers(ledgers, certificates)
    groups = [*found, *([[parse_event(text) for text in events]] if events else [])]
    if not groups:
        raise click.UsageError("give the releases of a run: --certificate, --ledger or --event")
    delta, kind = _settled("delta", delta, facts), Adjacency(_settled("adjacency", adjacency, facts))
    together = [event for group in groups for event in group]
    if len(groups) > 1:
        if runs is not None or selection != Selection.NAIVE:
            raise click.UsageError(
                "several runs are composed as they are: leave out --runs and --selection, or give one of them"
            )
        declared, result = None, epsilon(together, delta, kind, confirm=confirm)
    else:
        declared = _declared(runs, selection)
        result = search_epsilon(together, declared, delta, kind, confirm=confirm)
    count = len(groups) if declared is None else declared.runs
    needs = list(NEEDS) if declared is not None and declared.selection.is_random else []
    if as_json:
        click.echo(
            json.dumps(
                {**result.to_json(), "runs": count, "selection": selection, "needs": needs}, allow_nan=False
            )
        )
        return
    kinds = f"random number of runs, mean {count}" if needs else f"{count} runs"
    click.echo(
        f"epsilon <= {result.epsilon:.6g} at delta {result.delta:g} for the whole search ({kinds}, {selection}; "
        f"{kind.value}, {result.method})"
    )
    for need in needs:
        click.echo(f"  if: {need}")


def _declared(runs: int | None, selection: str) -> Search:
    if runs is None:
        raise click.UsageError("say how many runs: --runs")
    return Search(runs, Selection(selection))


def _ledgers(
    ledgers: tuple[Path, ...], certificates: tuple[Path, ...]
) -> tuple[list[list[Event]], list[dict[str, object]]]:
    """What each run is charged, and its delta and adjacency."""
    if not ledgers and not certificates:
        return [], []
    from raptor.accounting.chain import read_chain
    from raptor.accounting.ledger import read_ledger
    from raptor.accounting.verification import verify_certificate

    places = [*ledgers, *(verify_certificate(path).ledger for path in certificates)]
    read = [read_ledger(read_chain(place), str(place)) for place in places]
    if len({ledger.digest for ledger in read}) < len(read):
        raise ParameterError("a ledger is given twice; each run counts once")
    facts: list[dict[str, object]] = [
        {"delta": ledger.plan.delta, "adjacency": ledger.plan.adjacency.value} for ledger in read
    ]
    return [list(ledger.events) for ledger in read], facts


def _settled(name: str, given: T | None, facts: list[dict[str, object]]) -> T:
    """The value that was given, or the one that all ledgers have."""
    found = {fact[name] for fact in facts}
    if name == "adjacency":
        found = found or {Adjacency.ADD_REMOVE.value}
        if given is not None and facts and found != {given}:
            raise ParameterError(
                f"--adjacency is {given}, but the ledgers are for {', '.join(map(str, found))}"
            )
    if given is not None:
        return given
    if len(found) != 1:
        raise click.UsageError(f"give --{name}: " + ("the ledgers differ" if found else "there is no ledger"))
    return found.pop()  # type: ignore[return-value]
