"""`kedro run` with all its options, and with errors that a person can act on."""

from __future__ import annotations

import copy
import difflib
import errno
import functools
import importlib.util
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import kedro
from kedro.framework import project
from kedro.framework.cli.project import run as kedro_run
from omegaconf import OmegaConf

from raptor.errors import ParameterError, RaptorError
from raptor.project import bootstrap


def _guarded(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Run Kedro's command in this project, and turn errors with a cause the user can mend into messages."""

    @functools.wraps(callback)
    def run_command(**options: Any) -> Any:
        if options.pop("dry_run"):
            _describe(options)
            return None
        conf_source = bootstrap()
        if not options.get("conf_source"):
            check_env(options.get("env"), conf_source)
        _check_pipelines([options["pipeline"]] if options.get("pipeline") else options.get("pipelines") or [])
        try:
            return callback(**options)
        except Exception as error:
            told = _for_the_user(error)
            if told is None:
                raise
            raise click.ClickException(told) from error

    return run_command


def _describe(options: dict[str, Any]) -> None:
    """Print what the run would need, in place of it."""
    from raptor.cli_dry_run import described
    from raptor.cli_plan import project_parameters

    parameters, _ = project_parameters(options.get("env"), options.get("params"))
    click.echo(described(parameters, None, as_json=False))


def _for_the_user(error: Exception) -> str | None:
    """The message of an error that was raised on purpose, here or by Kedro; None for a defect."""
    for cause in _causes(error):
        if isinstance(cause, RaptorError):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            place = f" for {cause.filename}" if cause.filename else ""
            return (
                f"The disk is full: there was no room{place}. Nothing is left under a final name that is not whole. "
                "Make room, and give the same command again."
            )
    last = traceback.extract_tb(error.__traceback__)[-1]
    by_kedro = Path(kedro.__file__).parent in Path(last.filename).parents
    wraps_another = error.__cause__ is not None and not isinstance(error.__cause__, OSError)
    return str(error) if by_kedro and not wraps_another else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def check_env(env: str | None, conf_source: Path) -> None:
    if env and not (conf_source / env).is_dir():
        known = sorted(item.name for item in conf_source.iterdir() if item.is_dir())
        raise ParameterError(f"There is no environment {env}{_closest(env, known)}")


def _check_pipelines(names: list[str]) -> None:
    package = importlib.util.find_spec(f"{project.PACKAGE_NAME}.pipelines")
    folders = [Path(place) for place in (package.submodule_search_locations or [])] if package else []
    known = [
        "__default__",
        *sorted(init.parent.name for folder in folders for init in folder.glob("*/__init__.py")),
    ]
    for name in names:
        if name not in known:
            raise ParameterError(f"There is no pipeline {name}{_closest(name, known)}")


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}."


def split_parameters(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Kedro's `key=value,key=value` where a value may be a list: `selection.layers=[1,3]`."""
    if not isinstance(value, str):
        return value
    # A comma inside brackets belongs to the value.
    items = [item.strip() for item in re.split(r",(?![^\[\]]*\])", value) if item.strip()]
    for item in items:
        if not re.match(r"[^=\s]+\s*=", item):
            raise click.BadParameter(f"{item!r} is not of the form name=value.", ctx, option)
    return OmegaConf.to_container(
        OmegaConf.from_dotlist([re.sub(r"\s*=\s*", "=", item, count=1) for item in items])
    )


def _build() -> click.Command:
    command = copy.copy(kedro_run)
    command.params = [copy.copy(option) for option in kedro_run.params]
    command.params.append(
        click.Option(
            ["--dry-run"],
            is_flag=True,
            help="Print what the run would need, from configurations alone, and run nothing (raptor plan --dry-run).",
        )
    )
    for option in command.params:
        if option.name == "params":
            option.callback = split_parameters
    command.callback = _guarded(kedro_run.callback) if kedro_run.callback else None
    return command


run = _build()
