"""`raptor export`: the trained model as a directory to take home, with its papers."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="New directory, where nothing is yet."
)
@click.option(
    "--certificate",
    default="data/08_reporting/privacy_certificate.json",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Certificate of the model; ledger and model are found from it.",
)
@click.option("--model", type=click.Path(path_type=Path), help="Model, where it is not the project's.")
def export(output: Path, certificate: Path, model: Path | None) -> None:
    """Check the certificate, then write model, tokenizer, label names, model card and certificate to OUTPUT."""
    from kedro.io import DatasetError

    from raptor.accounting.chain import read_chain
    from raptor.accounting.verification import verify_certificate
    from raptor.datasets import PretrainedDirectory
    from raptor.errors import DataError, LedgerError, ParameterError
    from raptor.export.directory import ExportedModel
    from raptor.text.problems import shorten

    try:
        output.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"--output {shorten(str(output))} cannot be the name of a directory "
            f"({getattr(error, 'strerror', None) or error})."
        ) from None
    else:
        raise ParameterError(f"--output {output} is there already. Give a new name.")
    checked = verify_certificate(certificate, model=model)
    if checked.model is None:
        raise LedgerError("The model of the certificate was not found. Give it with --model.")
    if output.resolve().is_relative_to(checked.model.resolve()):
        raise ParameterError(
            f"--output {output} lies in the model itself, {checked.model}, which would no longer be the certified one. "
            "Give a place outside of it."
        )
    found = json.loads(certificate.read_text(encoding="utf-8"))
    audit = None if checked.audit is None else json.loads(checked.audit.read_text(encoding="utf-8"))
    exported = ExportedModel(checked.model, found, read_chain(checked.ledger), audit)
    try:
        PretrainedDirectory(filepath=str(output)).save(exported)
    except DatasetError as error:
        raise DataError(str(error.__cause__)) from None
    click.echo(f"{output}: {checked.line()}")
