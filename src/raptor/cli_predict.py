"""`raptor predict`: labels and probabilities, or completions, for a file, by a trained model."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.option(
    "--model",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory of a released or exported model.",
)
@click.option(
    "--input", "source", required=True, metavar="FILE", help="File, folder or hub data set of texts."
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="New .csv, .tsv, .jsonl or .parquet file.",
)
@click.option("--text", metavar="COL[+COL2]", help="Text column; by default those of training.")
@click.option("--image", metavar="COL", help="Column of images; by default that of training.")
@click.option("--encoding", default="utf-8", show_default=True, help="Encoding of text files.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
def predict(
    model: Path, source: str, output: Path, text: str | None, image: str | None, encoding: str, device: str
) -> None:
    """Write the label and the probability of every class for each text, or its completion, in the order of the file.

    Answers about private texts are as private as the texts.
    """
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    from raptor.completing import Completer, write_completions
    from raptor.errors import ParameterError
    from raptor.moe.classifier import HEAD_FILE
    from raptor.prediction import Predictor, check_output, write_predictions
    from raptor.progress import on_stderr
    from raptor.text.columns import Columns
    from raptor.text.problems import RecordError
    from raptor.text.records import Rules, read_records

    check_output(output, Path(source), model)
    has_classes = (model / HEAD_FILE).is_file()
    predictor = Predictor.load(model, device) if has_classes else Completer.load(model, device)
    known = predictor.image if isinstance(predictor, Predictor) else None
    if image is not None and known is None:
        raise ParameterError(
            f"--image is given, but the model in {model} was trained on text alone. Leave it out."
        )
    columns = Columns(text or predictor.text, None, image=image or known)
    try:
        with on_stderr():
            names = predictor.label_names if isinstance(predictor, Predictor) else ()
            records = read_records(source, columns, Rules(encoding=encoding, label_names=names))
            if isinstance(predictor, Predictor):
                rows = write_predictions(predictor.answers(records.table), names, output, Path(source), model)
            else:
                rows = write_completions(predictor.answers(records.table), output, Path(source), model)
    except RecordError as error:
        raise click.ClickException(error.terminal) from None
    for warning in records.report.warnings:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(f"{rows:,} predictions in {output}")
