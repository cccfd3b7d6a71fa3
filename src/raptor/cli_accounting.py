"""`raptor epsilon`, `raptor calibrate`, `raptor verify`. They import neither torch nor Kedro."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from raptor.accounting.types import Adjacency, Event, EventShape
from raptor.errors import ParameterError

_ADJACENCIES = click.Choice([item.value for item in Adjacency])

_delta = click.option("--delta", type=float, required=True, help="Probability that the guarantee may miss.")
_adjacency = click.option(
    "--adjacency",
    type=_ADJACENCIES,
    default=Adjacency.ADD_REMOVE.value,
    show_default=True,
    help="Neighbouring data sets: one record more or less, or one exchanged.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_confirm = click.option(
    "--confirm", is_flag=True, help="Ask dp-accounting too and take the larger figure; takes longer to load."
)


@click.command()
@click.option(
    "--event",
    "events",
    multiple=True,
    required=True,
    metavar="RATE,SIGMA,STEPS",
    help="Sampling rate, noise multiplier, number of releases; once per kind of release.",
)
@_delta
@_adjacency
@_confirm
@_json
def epsilon(events: tuple[str, ...], delta: float, adjacency: str, confirm: bool, as_json: bool) -> None:
    """Epsilon of Poisson-subsampled Gaussian releases, all in one ledger: an upper bound."""
    from raptor.accounting.accountant import epsilon as bound

    parsed = [_event(text) for text in events]
    result = bound(parsed, delta, Adjacency(adjacency), confirm=confirm)
    _print(
        as_json,
        result.to_json(),
        f"epsilon <= {result.epsilon:.6g} at delta {result.delta:g} ({adjacency}; {result.method}, {result.library})",
        result.note,
    )


@click.command()
@click.option(
    "--event",
    "events",
    multiple=True,
    required=True,
    metavar="RATE,STEPS[,WEIGHT]",
    help="Sampling rate, number of releases, and the noise relative to the other events (1).",
)
@click.option("--epsilon", "target", type=float, required=True, help="The budget.")
@_delta
@_adjacency
@_confirm
@_json
def calibrate(
    events: tuple[str, ...], target: float, delta: float, adjacency: str, confirm: bool, as_json: bool
) -> None:
    """Noise multipliers that keep all events together within a budget."""
    from raptor.accounting.calibration import calibrate as search

    shapes = [_shape(text) for text in events]
    result = search(shapes, target, delta, Adjacency(adjacency), confirm=confirm)
    noise = ", ".join(f"{value:.6g}" for value in result.noise_multipliers)
    _print(
        as_json,
        result.to_json(),
        f"noise multipliers {noise}: epsilon {result.epsilon:.6g} of {target:g} at delta {delta:g} ({adjacency})",
        result.achieved.note,
    )


@click.command()
@click.argument("certificate", type=click.Path(path_type=Path))
@click.option(
    "--ledger", type=click.Path(path_type=Path), help="The ledger, when it is not beside the certificate."
)
@click.option("--model", type=click.Path(path_type=Path), help="The model's directory, when it is elsewhere.")
def verify(certificate: Path, ledger: Path | None, model: Path | None) -> None:
    """Recompute a certificate from its ledger. Exit code 0, or 1 and the first thing that is wrong."""
    from raptor.accounting.verification import verify_certificate

    click.echo(verify_certificate(certificate, ledger, model).line())


def _event(text: str) -> Event:
    rate, noise, steps = _numbers(text, ("RATE", "SIGMA", "STEPS"), 3)
    return Event(rate, noise, _whole(steps, text))


def _shape(text: str) -> EventShape:
    values = _numbers(text, ("RATE", "STEPS", "WEIGHT"), 2)
    return EventShape(values[0], _whole(values[1], text), *values[2:])


def _numbers(text: str, names: Sequence[str], least: int) -> list[float]:
    parts = [part.strip() for part in text.split(",")]
    wanted = ",".join(names[:least]) + "".join(f"[,{name}]" for name in names[least:])
    if not least <= len(parts) <= len(names):
        raise ParameterError(f"--event {text} must be {wanted}")
    values = []
    for name, part in zip(names, parts, strict=False):
        try:
            values.append(float(part))
        except ValueError:
            raise ParameterError(
                f"{name} of --event {text} is not a number: {part!r}; write {wanted}"
            ) from None
    return values


def _whole(value: float, text: str) -> int:
    if not value.is_integer():
        raise ParameterError(f"STEPS of --event {text} must be a whole number")
    return int(value)


def _print(as_json: bool, data: dict[str, Any], line: str, note: str) -> None:
    click.echo(json.dumps(data, allow_nan=False) if as_json else "\n".join(filter(None, [line, note])))
