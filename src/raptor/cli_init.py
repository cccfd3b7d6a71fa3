"""`raptor init`: an environment for somebody's own records, and in words what it says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from raptor.text.records import Records


@click.command()
@click.option("--source", required=True, help="File, folder or hub data set.")
@click.option("--text", required=True, metavar="COL[+COL2]", help="Text column, or two.")
@click.option("--label", metavar="COL", help="Column of classes.")
@click.option("--completion", metavar="COL", help="Column of texts that are to follow, in place of classes.")
@click.option("--model", metavar="DIR_OR_HUB", help="Base model; needed for completions: a sparse decoder.")
@click.option("--split", metavar="COL", help="Column that says train, validation or test.")
@click.option("--user", metavar="COL", help="Column that says whose record it is.")
@click.option(
    "--unit",
    type=click.Choice(["record", "user"]),
    default="record",
    show_default=True,
    help="Who is protected: one record, or one user with all of the user's records.",
)
@click.option("--encoding", default="utf-8", show_default=True, help="Encoding of text files.")
@click.option("--max-classes", default=1000, show_default=True, help="More are taken for a wrong column.")
@click.option(
    "--epsilon", default=4.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Budget."
)
@click.option("--name", help="Name of the environment; by default that of the source.")
def init(
    source: str,
    text: str,
    label: str | None,
    completion: str | None,
    model: str | None,
    split: str | None,
    user: str | None,
    unit: Literal["record", "user"],
    encoding: str,
    max_classes: int,
    epsilon: float,
    name: str | None,
) -> None:
    """Read the records once, and write conf/NAME with public constants for a first run on them.

    The counts that are shown are as private as the records. The file holds one of them, rounded down: the number of
    training records, which is declared public.
    """
    from raptor.cli_plan import project_parameters
    from raptor.environment import (
        Constants,
        environment_name,
        in_words,
        parameters_text,
        require_free,
        write_environment,
    )
    from raptor.errors import ParameterError
    from raptor.pipelines.ingestion.config import IngestionConfig
    from raptor.progress import on_stderr
    from raptor.project import bootstrap
    from raptor.text.columns import Columns
    from raptor.text.problems import RecordError
    from raptor.text.records import Rules, read_records

    if unit == "user" and user is None:
        raise ParameterError("--unit user needs --user: the column that says whose record it is.")
    if (label is None) == (completion is None):
        raise ParameterError(
            "Give --label, the column of classes, or --completion, the column of texts that are to follow: one of them."
        )
    if completion is not None and model is None:
        raise ParameterError(
            "--completion needs --model: a directory or hub name of a sparse decoder, such as "
            "allenai/OLMoE-1B-7B-0924. The embedded base model tells classes and continues no text."
        )
    if not math.isfinite(epsilon):
        raise ParameterError(f"--epsilon is {epsilon}, which is no budget. Give a number, such as 4.")
    conf_source = bootstrap()
    name = name or environment_name(source)
    folder = require_free(conf_source, name)
    usual = IngestionConfig()
    try:
        with on_stderr():
            rules = Rules(encoding=encoding, max_classes=max_classes)
            records = read_records(source, Columns(text, label, split, user, completion), rules)
    except RecordError as error:
        raise click.ClickException(error.terminal) from None
    training = project_parameters(None)[0]["training"]
    steps = training.shared.steps_per_cycle + training.expert.steps_per_cycle
    constants = Constants.of(_training_units(records, unit, usual.held_out_fraction), epsilon, steps, unit)
    ingestion = {
        "source": _place(source, conf_source.parent),
        "text": text,
        "label": label,
        "completion": completion,
        "split": split,
        "user": user,
        "encoding": encoding if encoding != usual.encoding else None,
        "max_classes": max_classes if max_classes != usual.max_classes else None,
    }
    file = write_environment(folder, parameters_text(ingestion, constants, _model(model, conf_source.parent)))
    for warning in records.report.warnings:
        click.echo(f"Warning: {warning}")
    if user is not None and unit == "record":
        click.echo(
            "One record is protected at a time. With --unit user it is a user with all records (docs/privacy.md, 9)."
        )
    click.echo(f"{file} is written:\n\n{in_words(constants, name)}")


def _place(source: str, project: Path) -> str:
    """A source as the project's commands find it, wherever they are given."""
    path = Path(source).expanduser()
    if not path.exists():
        return source
    whole = path.resolve()
    return str(whole.relative_to(project) if whole.is_relative_to(project) else whole)


def _model(model: str | None, project: Path) -> str | None:
    return None if model is None else _place(model, project)


def _training_units(records: Records, unit: str, held_out_fraction: float) -> int:
    """How many records or users the run will train on; those that it will hold out are drawn then."""
    import pyarrow.compute as pc

    train = records.table.filter(pc.equal(records.table["split"], "train"))
    units = len(train) if unit == "record" else len(train["user"].unique())
    return units if records.held_out is not None else int(units * (1 - held_out_fraction))
