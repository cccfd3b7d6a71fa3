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
    metavar="RATE,SIGMA,STEPS",
    help="Sampling rate, noise multiplier, number of releases; once per kind of release. Rate 1: no sampling.",
)
@click.option(
    "--shared-sample",
    "shared",
    multiple=True,
    metavar="RATE,SIGMA1+SIGMA2,STEPS",
    help="Steps that release several sums on one and the same sample: they are one release of joint noise.",
)
@click.option(
    "--owner",
    "owners",
    multiple=True,
    metavar="RATE,SIGMA,STEPS[/RATE,SIGMA,STEPS]",
    help="What a record of this owner costs beside the rest, once per owner who never changes: the worst one counts.",
)
@_delta
@_adjacency
@_confirm
@_json
def epsilon(
    events: tuple[str, ...],
    shared: tuple[str, ...],
    owners: tuple[str, ...],
    delta: float,
    adjacency: str,
    confirm: bool,
    as_json: bool,
) -> None:
    """Epsilon of Poisson-subsampled Gaussian releases, all in one ledger: an upper bound.

    \b
    One release of deviation SIGMA without a sample:      --event 1,SIGMA,1
    Two sums on one sample, as two protected layers are:  --shared-sample 0.02,1.1+0.9,400
    Experts of unequal noise, record bound to its owner:  --owner 0.02,0.8,400 --owner 0.02,1.6,400
    Experts of unequal noise, owners that may change:     --event with the least SIGMA
    """
    from raptor.accounting.joint import epsilon_of_owners

    if not events and not shared and not owners:
        raise click.UsageError("give at least one --event, --shared-sample or --owner")
    common = [parse_event(text) for text in events] + [_shared(text) for text in shared]
    each = [[parse_event(part, "--owner") for part in text.split("/")] for text in owners]
    found = epsilon_of_owners(
        [[*common, *own] for own in each] or [common], delta, Adjacency(adjacency), confirm=confirm
    )
    result = found.bound
    worst = f"; worst owner: {found.owner + 1} of {len(each)}" if each else ""
    _print(
        as_json,
        result.to_json() | ({"owner": found.owner} if each else {}),
        f"epsilon <= {result.epsilon:.6g} at delta {result.delta:g} ({adjacency}; {result.method}, {result.library}"
        f"{worst})",
        result.note,
    )


@click.command()
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="RATE,STEPS[,WEIGHT]",
    help="Sampling rate, number of releases, and the noise relative to the other events (1).",
)
@click.option(
    "--shared-sample",
    "shared",
    multiple=True,
    metavar="RATE,STEPS,WEIGHT1+WEIGHT2",
    help="Steps that release several sums on one and the same sample, and the relative noise of each.",
)
@click.option("--epsilon", "target", type=float, required=True, help="The budget.")
@_delta
@_adjacency
@_confirm
@_json
def calibrate(
    events: tuple[str, ...],
    shared: tuple[str, ...],
    target: float,
    delta: float,
    adjacency: str,
    confirm: bool,
    as_json: bool,
) -> None:
    """Noise multipliers that keep all events together within a budget: one per event, then one per shared sum."""
    from raptor.accounting.calibration import calibrate as search

    if not events and not shared:
        raise click.UsageError("give at least one --event or --shared-sample")
    joint = [_shared_shape(text) for text in shared]
    shapes = [_shape(text) for text in events] + [shape for shape, _ in joint]
    result = search(shapes, target, delta, Adjacency(adjacency), confirm=confirm)
    sigmas = list(result.noise_multipliers[: len(events)])
    sigmas += [result.factor * weight for _, weights in joint for weight in weights]
    noise = ", ".join(f"{value:.6g}" for value in sigmas)
    _print(
        as_json,
        result.to_json() | {"sigmas": sigmas},
        f"noise multipliers {noise}: epsilon {result.epsilon:.6g} of {target:g} at delta {delta:g} ({adjacency})",
        result.achieved.note,
    )


@click.command()
@click.argument("certificate", type=click.Path(path_type=Path))
@click.option(
    "--ledger", type=click.Path(path_type=Path), help="The ledger, when it is not beside the certificate."
)
@click.option("--model", type=click.Path(path_type=Path), help="The model's directory, when it is elsewhere.")
@click.option(
    "--audit", type=click.Path(path_type=Path), help="The results of the audit, when they are elsewhere."
)
def verify(certificate: Path, ledger: Path | None, model: Path | None, audit: Path | None) -> None:
    """Recompute a certificate from its ledger. Exit code 0, or 1 and the first thing that is wrong."""
    from raptor.accounting.verification import verify_certificate

    click.echo(verify_certificate(certificate, ledger, model, audit).line())


def parse_event(text: str, option: str = "--event") -> Event:
    """One kind of release from RATE,SIGMA,STEPS.

    Raises:
        ParameterError: says which number is wrong, and in which option.
    """
    rate, noise, steps = _numbers(text, ("RATE", "SIGMA", "STEPS"), 3, option)
    return Event(rate, noise, _whole(steps, text, option))


def _shared(text: str) -> Event:
    from raptor.accounting.joint import shared_sample

    rate, noise, steps = _sample(text, ("RATE", "SIGMA1+SIGMA2", "STEPS"))
    return shared_sample(rate[0], noise, _whole(steps[0], text, "--shared-sample"))


def _shared_shape(text: str) -> tuple[EventShape, list[float]]:
    """The one event that the sums are together, and the weight of each."""
    from raptor.accounting.joint import joint_multiplier

    rate, steps, weights = _sample(text, ("RATE", "STEPS", "WEIGHT1+WEIGHT2"))
    shape = EventShape(rate[0], _whole(steps[0], text, "--shared-sample"), joint_multiplier(weights))
    return shape, weights


def _sample(text: str, names: Sequence[str]) -> list[list[float]]:
    """The numbers in each part of a shared sample, of which one has several."""
    parts = text.split(",")
    where = f"--shared-sample {text}"
    if len(parts) != len(names):
        raise ParameterError(f"{where} must be {','.join(names)}")
    return [
        [_number(value, name, where) for value in (part.split("+") if "+" in name else [part])]
        for part, name in zip(parts, names, strict=True)
    ]


def _shape(text: str) -> EventShape:
    values = _numbers(text, ("RATE", "STEPS", "WEIGHT"), 2)
    return EventShape(values[0], _whole(values[1], text), *values[2:])


def _numbers(text: str, names: Sequence[str], least: int, option: str = "--event") -> list[float]:
    parts = text.split(",")
    wanted = ",".join(names[:least]) + "".join(f"[,{name}]" for name in names[least:])
    if not least <= len(parts) <= len(names):
        raise ParameterError(f"{option} {text} must be {wanted}")
    return [_number(part, name, f"{option} {text}") for name, part in zip(names, parts, strict=False)]


def _number(part: str, name: str, where: str) -> float:
    try:
        return float(part.strip())
    except ValueError:
        raise ParameterError(f"{name} of {where} is not a number: {part.strip()!r}") from None


def _whole(value: float, text: str, option: str = "--event") -> int:
    if not value.is_integer():
        raise ParameterError(f"STEPS of {option} {text} must be a whole number")
    return int(value)


def _print(as_json: bool, data: dict[str, Any], line: str, note: str) -> None:
    click.echo(json.dumps(data, allow_nan=False) if as_json else "\n".join(filter(None, [line, note])))
