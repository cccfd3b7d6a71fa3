"""Checks of numbers and words that come from outside: parameters, plans, ledgers, certificates."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from raptor.errors import BudgetError, ParameterError

E = TypeVar("E", bound=StrEnum)
LARGEST_COUNT = 2**63 - 1
LEAST_DELTA = 1e-200


def real(value: object, name: str, where: str = "") -> float:
    """`value` as a finite float; refuses bool, text, NaN and infinity.

    Raises:
        ParameterError: says what `name` (of `where`) should have been.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterError(f"{_place(name, where)} must be a number, not {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError(f"{_place(name, where)} must be a finite number, not {_shown(value)}")
    return number


def positive(value: object, name: str, where: str = "") -> float:
    """`value` as a finite float above 0."""
    number = real(value, name, where)
    if number <= 0:
        raise ParameterError(f"{_place(name, where)} must be above 0, not {_shown(value)}")
    return number


def rate(value: object, name: str = "rate", where: str = "") -> float:
    """`value` as a sampling rate in (0, 1]."""
    number = real(value, name, where)
    if not 0 < number <= 1:
        raise ParameterError(
            f"{_place(name, where)} must be above 0 and at most 1, not {_shown(value)} "
            "(expected batch size over population)"
        )
    return number


def share(value: object, name: str, where: str = "") -> float:
    """`value` as a part of a whole, strictly between 0 and 1."""
    number = real(value, name, where)
    if not 0 < number < 1:
        raise ParameterError(f"{_place(name, where)} must be above 0 and below 1, not {_shown(value)}")
    return number


def count(value: object, name: str, where: str = "", minimum: int = 0) -> int:
    """`value` as a whole number from `minimum` to `LARGEST_COUNT`; refuses bool and floats."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ParameterError(f"{_place(name, where)} must be a whole number, not {_shown(value)}")
    number = int(value)
    if number < minimum:
        raise ParameterError(f"{_place(name, where)} must be at least {minimum}, not {number}")
    if number > LARGEST_COUNT:
        raise ParameterError(f"{_place(name, where)} must be at most {LARGEST_COUNT}, not {_shown(number)}")
    return number


def word(value: object, name: str, where: str = "") -> str:
    """`value` as text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ParameterError(f"{_place(name, where)} must be text that is not empty, not {_shown(value)}")
    return value


def member(kind: type[E], value: object, name: str, where: str = "") -> E:
    """`value` as a member of the enumeration `kind`."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(str(item.value) for item in kind)
        raise ParameterError(f"{_place(name, where)} must be one of {known}, not {_shown(value)}") from None


def budget_delta(value: object, where: str = "") -> float:
    """`value` as a delta strictly between 0 and 1.

    Raises:
        BudgetError: delta is missing, 0, negative, NaN, infinite, 1 or more, or not a number.
    """
    try:
        number = real(value, "delta", where)
    except ParameterError as error:
        raise BudgetError(str(error)) from None
    if not 0 < number < 1:
        raise BudgetError(
            f"{_place('delta', where)} must be above 0 and below 1, not {_shown(value)}; "
            "choose less than one over the number of records"
        )
    if number < LEAST_DELTA:
        raise BudgetError(
            f"{_place('delta', where)} must be at least {LEAST_DELTA:g}, not {_shown(value)}: below that nothing is "
            "computed"
        )
    return number


def budget_epsilon(value: object, where: str = "") -> float:
    """`value` as an epsilon above 0.

    Raises:
        BudgetError: epsilon is missing, 0, negative, NaN, infinite or not a number.
    """
    try:
        return positive(value, "epsilon", where)
    except ParameterError as error:
        raise BudgetError(str(error)) from None


def fields(
    data: object, wanted: frozenset[str], where: str, optional: frozenset[str] = frozenset()
) -> dict[str, object]:
    """`data` as a dictionary that has all of `wanted`, perhaps some of `optional`, and nothing else."""
    if not isinstance(data, Mapping):
        raise ParameterError(f"{where} must be an object with named fields, not {_shown(data)}")
    missing = sorted(wanted - set(data))
    if missing:
        raise ParameterError(f"{where} lacks the field {missing[0]}")
    unknown = sorted(str(key) for key in set(data) - wanted - optional)
    if unknown:
        raise ParameterError(f"{where} has the unknown field {unknown[0]}")
    return dict(data)


def _place(name: str, where: str) -> str:
    return f"{name} of {where}" if where else name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
