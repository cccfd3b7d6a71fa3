"""A first environment for somebody's own records: public constants that make sense, each with its reason."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raptor.errors import DataError, ParameterError

NAME = re.compile(r"[a-z][a-z0-9_-]{0,59}")
TAKEN = ("base", "local")
LARGEST_BATCH = 1024
SMALLEST_BATCH = 8
STEPS = 120
FEW = 1000
# A policy, not a bound: the guarantee would hold for fewer users, and no model would be worth it.
FEWEST_USERS = 50


@dataclass(frozen=True)
class Constants:
    """Public constants of a first run. All of them follow from the public number of units and from epsilon.

    Attributes:
        population: public number of training units n.
        unit: record or user.
        epsilon, delta: the budget.
        batch_size: expected units of a step.
        cycles: repetitions of the schedule.
    """

    population: int
    epsilon: float
    delta: float
    batch_size: int
    cycles: int
    unit: Literal["record", "user"] = "record"

    @classmethod
    def of(
        cls, units: int, epsilon: float, steps_per_cycle: int, unit: Literal["record", "user"] = "record"
    ) -> Constants:
        """Constants for so many training units (records, or users), and about `STEPS` steps of both streams together.

        Larger samples lose less to noise, as one unit then hides among more: a quarter of all units, or 1,024, which
        one machine handles. More steps do not lose more either, once the noise multiplier is above about 1.

        Raises:
            DataError: there are too few units for any private training.
        """
        fewest = 2 * SMALLEST_BATCH if unit == "record" else FEWEST_USERS
        if units < fewest:
            raise DataError(
                f"A private training needs at least {fewest} training {unit}s, and useful ones have thousands. Give "
                "more of them."
            )
        population = round_down(units)
        # At most a tenth of the chance that publishing one whole record would have.
        delta = 10.0 ** math.floor(math.log10(0.1 / population) + 1e-9)
        batch = max(min(1 << (population // 4).bit_length() - 1, LARGEST_BATCH), SMALLEST_BATCH)
        return cls(population, epsilon, delta, batch, round(STEPS / steps_per_cycle), unit)


def round_down(number: int) -> int:
    """To two significant digits, and to tens at least, so that the declared number never is the exact count itself
    unless that happens to be round."""
    scale: int = 10 ** max(len(str(number)) - 2, 1)
    return number // scale * scale


def environment_name(source: str) -> str:
    """A name for an environment, from that of the source."""
    stem = Path(source).name.split(".", 1)[0].casefold()
    name = re.sub(r"[^a-z0-9]+", "_", stem).strip("_")[:60]
    return name if NAME.fullmatch(name) and name not in TAKEN else "own"


def require_free(conf_source: Path, name: str) -> Path:
    """The folder of a new environment.

    Raises:
        ParameterError: the name cannot be one, or is taken.
    """
    if not NAME.fullmatch(name) or name in TAKEN:
        raise ParameterError(
            f"{name[:80]!r} cannot be the name of an environment: use at most 60 small letters, digits, - and _, and "
            f"none of {', '.join(TAKEN)}. Give one with --name."
        )
    folder = conf_source / name
    if folder.exists():
        raise ParameterError(f"{folder} is there already. Delete it, or give another --name.")
    return folder


def parameters_text(
    ingestion: Mapping[str, object], constants: Constants, base_model: str | None = None
) -> str:
    """The parameters of an environment, as a commented YAML file.

    Args:
        ingestion: keys of `ingestion` and their values; None is left out.
        base_model: its source; None for the embedded one.
    """
    model = "" if base_model is None else f"base_model:\n  source: {_yaml(base_model)}\n"
    given = "\n".join(f"  {key}: {_yaml(value)}" for key, value in ingestion.items() if value is not None)
    return f"""# Made by `raptor init`. Everything here is public: the certificate repeats it, and MLflow keeps it.
{model}ingestion:
{given}
privacy:
  # Of all that is released, against an attacker who knows everything else. 1 is strong, 8 weak; smaller costs accuracy.
  epsilon: {_figure(constants.epsilon)}
  # The chance that epsilon does not hold; at most a tenth of 1/n.
  delta: {constants.delta:.1e}
  # n, training {constants.unit}s, declared public: counted once and rounded down.
  population: {constants.population}
  # Who is protected: one record, or one user with all of the user's records.
  unit: {constants.unit}
training:
  # B, expected number drawn in each step. Larger samples lose less to noise and take longer.
  batch_size: {constants.batch_size}
  # Repetitions of the shared and the expert steps. More learn more, and each gets a little more noise.
  cycles: {constants.cycles}
"""


def in_words(constants: Constants, name: str) -> str:
    """What the constants mean, and what to do next."""
    rate, budget = constants.batch_size / constants.population, _figure(constants.epsilon)
    protected = "any one record" if constants.unit == "record" else "any one user and all the user's records"
    rows = [
        (
            f"n = {constants.population:,}",
            f"training {constants.unit}s, rounded down; declared public, like all that is here",
        ),
        (
            f"epsilon = {budget}, delta = {constants.delta:.0e}",
            f"whatever somebody concludes from the model would be at most e^{budget} times less likely "
            f"without {protected}, except with probability delta",
        ),
        (
            f"B = {constants.batch_size:,}",
            f"each step draws every {constants.unit} by a coin of chance B/n = {rate:.3g}",
        ),
        (
            f"cycles = {constants.cycles}",
            "repetitions of steps of the shared layers and steps of the experts",
        ),
    ]
    width = max(len(figure) for figure, _ in rows)
    lines = [f"  {figure:<{width}}  {meaning}" for figure, meaning in rows]
    if constants.population < FEW:
        lines.append(
            f"\nWith so few {constants.unit}s noise hides most of what could be learnt: expect a weak model."
        )
    lines += [
        "\nChange what you like in it, then:\n",
        f"  raptor plan --env {name}   what it will cost, before any record is touched",
        f"  kedro run --env {name}     train; certificate and report lie in data/08_reporting",
        "  raptor predict --model data/06_models/raptor_model --input FILE --output FILE",
    ]
    return "\n".join(lines)


def _figure(value: float) -> str:
    """A number as short as it can be without becoming another one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _yaml(value: object) -> str:
    if isinstance(value, str):
        # Configuration files read ${...} as a reference; a JSON string is a YAML string.
        text = json.dumps(value.replace("${", "\\${"), ensure_ascii=False)
        # YAML refuses control characters that JSON lets stand, and folds some kinds of line break into a space.
        return "".join(
            letter if letter.isprintable() or _is_surrogate(letter) else f"\\U{ord(letter):08x}"
            for letter in text
        )
    return json.dumps(value)


def _is_surrogate(letter: str) -> bool:
    """Python's sign for a byte that is not UTF-8; the writing of the file refuses it."""
    return "\ud800" <= letter <= "\udfff"


def write_environment(folder: Path, text: str) -> Path:
    """Write the folder as a whole, or nothing.

    Returns:
        The file.

    Raises:
        DataError: it cannot be written.
        ParameterError: the name of the source or of a column is not UTF-8.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        try:
            partial.mkdir()
            (partial / "parameters.yml").write_text(text, encoding="utf-8")
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except UnicodeEncodeError:
        raise ParameterError(
            "The name of the source or of a column is not UTF-8, so no configuration file can hold it. Rename it."
        ) from None
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror or error}). Nothing is left of it: check the disk and your "
            "permissions."
        ) from None
    return folder / "parameters.yml"
