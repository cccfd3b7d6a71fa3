"""The `raptor` command. Kedro adds these commands to its own, so that `kedro run` is the `run` below."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import click

from raptor import __version__
from raptor.errors import RaptorError

COMMANDS = {
    "calibrate": "raptor.cli_accounting:calibrate",
    "epsilon": "raptor.cli_accounting:epsilon",
    "export": "raptor.cli_export:export",
    "flow": "raptor.cli_flow:flow",
    "init": "raptor.cli_init:init",
    "inspect": "raptor.cli_inspect:inspect",
    "plan": "raptor.cli_plan:plan",
    "predict": "raptor.cli_predict:predict",
    "run": "raptor.cli_run:run",
    "search": "raptor.cli_search:search",
    "verify": "raptor.cli_accounting:verify",
}


class LazyCommands(click.Group):
    """Imports a command when it is used: `raptor epsilon` needs neither Kedro nor torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = copy.copy(getattr(importlib.import_module(module), name))
        if command.callback is not None:
            command.callback = _one_message(command.callback)
        return command


def _one_message(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Show an error that was raised on purpose as one message with exit code 1, without a traceback."""

    @functools.wraps(callback)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return callback(*args, **kwargs)
        except RaptorError as error:
            raise click.ClickException(str(error)) from error

    return guarded


@click.group(name="raptor", cls=LazyCommands)
@click.version_option(__version__, package_name="raptor")
def cli() -> None:
    """Private fine-tuning of mixture-of-experts models: accounting, checks and runs."""


def main() -> None:
    """Entry point of the console script and of `python -m raptor`."""
    cli(prog_name="raptor")
