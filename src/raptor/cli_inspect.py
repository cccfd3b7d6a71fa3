"""`raptor inspect`: what ingestion would make of a source, on the terminal only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from raptor.text.report import DataReport

TOKENIZER = Path(__file__).parent / "assets" / "base_model" / "tokenizer.json"


@click.command()
@click.argument("source")
@click.option("--text", default="text", show_default=True, metavar="COL[+COL2]", help="Text column, or two.")
@click.option("--label", default="label", show_default=True, metavar="COL", help="Column of classes.")
@click.option("--completion", metavar="COL", help="Column of completions, in place of a label.")
@click.option("--split", metavar="COL", help="Column that says train, validation, test or unlabelled.")
@click.option("--user", metavar="COL", help="Column that says whose record it is.")
@click.option("--image", metavar="COL", help="Column of images.")
@click.option("--encoding", default="utf-8", show_default=True, help="Encoding of text files.")
@click.option("--max-length", default=32, show_default=True, help="Tokens of a record that are read.")
@click.option("--max-classes", default=1000, show_default=True, help="More are taken for a wrong column.")
@click.option(
    "--model",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Model whose tokenizer counts cut texts; the embedded one by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    source: str,
    text: str,
    label: str,
    completion: str | None,
    split: str | None,
    user: str | None,
    image: str | None,
    encoding: str,
    max_length: int,
    max_classes: int,
    model: Path | None,
    as_json: bool,
) -> None:
    """Show what ingestion would make of SOURCE: a file, a folder, a hub data set, or `embedded`.

    What is shown is as private as the records. It goes to the terminal and nowhere else.
    """
    from raptor.progress import on_stderr
    from raptor.text.columns import Columns
    from raptor.text.lengths import remark_cut
    from raptor.text.problems import RecordError
    from raptor.text.records import IMAGE, Rules, read_records

    columns = Columns(text, None if completion else label, split, user, completion, image)
    try:
        with on_stderr():
            records = read_records(source, columns, Rules(encoding=encoding, max_classes=max_classes))
    except RecordError as error:
        raise click.ClickException(error.terminal) from None
    warnings = list(records.report.warnings)
    if completion is None:
        tokenizer = model / "tokenizer.json" if model is not None else TOKENIZER
        warnings += remark_cut(records.table, tokenizer, max_length)
    elif model is not None:
        from raptor.pipelines.ingestion.config import IngestionConfig
        from raptor.pipelines.ingestion.encoding import load_tokenizer
        from raptor.text.lengths import remark_cut_prompted

        lengths = IngestionConfig(completion=completion, max_length=max_length).lengths
        if lengths is not None:
            warnings += remark_cut_prompted(records.table, load_tokenizer(model), lengths)
    pictured = None if image is None else records.table.num_rows - records.table[IMAGE].null_count
    if as_json:
        shown = {**_contract(records.report), "warnings": warnings, **_details(records.report)}
        if pictured is not None:
            shown["images"] = pictured
        click.echo(json.dumps(shown, ensure_ascii=False, allow_nan=False))
    else:
        _show(records.report, warnings, pictured)


def printable(name: str) -> str:
    """A class name that cannot steer the terminal."""
    return name if name.isprintable() else repr(name)[1:-1]


def _contract(report: DataReport) -> dict[str, Any]:
    return {"rows": report.rows, "labels": report.labels, "splits": report.splits, "users": report.users}


def _details(report: DataReport) -> dict[str, Any]:
    return {
        "kind": report.kind,
        "classes": report.classes,
        "labels_by_split": report.labels_by_split,
        "unlabelled": report.unlabelled,
        "held_out": report.held_out,
        "repeats": report.repeats,
    }


def _show(report: DataReport, warnings: list[str], pictured: int | None) -> None:
    what = f"{report.classes} classes" if report.classes else "prompts with completions"
    click.echo(f"{report.rows:,} records ({report.kind}), {what}")
    for split, count in report.splits.items():
        held_out = ", the held-out set" if split == report.held_out else ""
        click.echo(f"  {split}: {count:,}{held_out}")
    if report.held_out is None:
        click.echo("  no held-out set: ingestion draws one (ingestion.held_out_fraction)")
    shown = {printable(name): count for name, count in report.labels.items()}
    width = max(map(len, shown), default=0)
    for name, count in shown.items():
        click.echo(f"  {name:<{width}}  {count:,}")
    if report.unlabelled:
        missing = "a label" if report.classes else "a completion, and not used"
        click.echo(f"  without {missing}: {report.unlabelled:,}")
    if pictured is not None:
        click.echo(f"  with an image: {pictured:,}")
    if report.users is not None:
        click.echo(f"  users: {report.users:,}")
    for warning in warnings:
        click.echo(f"Warning: {warning}")
