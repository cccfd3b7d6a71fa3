"""The search that a run belongs to: how many runs, and how their number was fixed."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raptor.accounting import checks
from raptor.errors import ParameterError

_MOST_RUNS = 100_000
_UNIFORM_BITS = 53


class Selection(StrEnum):
    """How one of several runs on the same records is chosen.

    The three random ones are distributions of the number of runs, of "Hyperparameter Tuning with Renyi Differential
    Privacy" (arXiv 2110.03620): truncated negative binomial of shape 1 and 0, and Poisson.
    """

    NONE = "none"
    NAIVE = "naive"
    GEOMETRIC = "geometric"
    LOGARITHMIC = "logarithmic"
    POISSON = "poisson"

    @property
    def is_random(self) -> bool:
        return self in (Selection.GEOMETRIC, Selection.LOGARITHMIC, Selection.POISSON)


NEEDS = (
    "The number of runs was drawn at random from the stated distribution before the first run, with a mean that is "
    "public, and it stays secret: nobody may see it, or how long the search took.",
    "Every run is a candidate drawn independently from the same public list, on the same records, and costs at most "
    "what this one does.",
    "The score that picks the best run is differentially private and paid for in each run's ledger, or a function of "
    "public records alone.",
    "Only the chosen run leaves: no other model, metric, ledger or entry of the tracker.",
)
"""What the bound of a random number of runs needs; the program cannot check it."""


@dataclass(frozen=True)
class Search:
    """The search that a run belongs to.

    Attributes:
        runs: runs on the same records; under a random selection the mean of their number.
        selection: how the number is fixed and what is let out.
    """

    runs: int = 1
    selection: Selection = Selection.NONE

    def __post_init__(self) -> None:
        where = "the search (privacy.search)"
        runs = checks.count(self.runs, "runs", where, minimum=1)
        selection = checks.member(Selection, self.selection, "selection", where)
        if selection is Selection.NONE and runs != 1:
            raise ParameterError(
                f"runs of {where} is {runs}, but its selection is none: say how the {runs} runs are counted, naive or "
                "with a random number of them"
            )
        if selection is not Selection.NONE and runs < 2:
            raise ParameterError(f"runs of {where} must be at least 2 with selection {selection}, not {runs}")
        if runs > _MOST_RUNS:
            raise ParameterError(f"runs of {where} must be at most {_MOST_RUNS}, not {runs}")
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "selection", selection)

    def to_json(self) -> dict[str, Any]:
        return {"runs": self.runs, "selection": self.selection.value}

    @classmethod
    def from_json(cls, data: object, where: str) -> Search:
        found = checks.fields(data, frozenset({"runs", "selection"}), f"search of {where}")
        return cls(found["runs"], found["selection"])  # type: ignore[arg-type]


NO_SEARCH = Search()


def stopping(search: Search) -> float:
    """gamma of the truncated negative binomial distribution whose mean is the number of runs."""
    if search.selection is Selection.GEOMETRIC:
        return 1 / search.runs
    if search.selection is not Selection.LOGARITHMIC:
        raise ParameterError(f"selection {search.selection} has no gamma")
    low, high = -800.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        # Mean of the logarithmic distribution at gamma = exp(middle); it falls as gamma grows.
        mean = math.expm1(-middle) / -middle if middle > -700 else math.inf
        low, high = (middle, high) if mean > search.runs else (low, middle)
    # The smaller gamma of the two has the larger mean and the larger bound.
    return math.exp(low)


def draw_runs(search: Search) -> int:
    """A number of runs from the distribution of the selection, by the operating system's randomness. Keep it secret."""
    if not search.selection.is_random:
        raise ParameterError(f"with selection {search.selection} the number of runs is not drawn")
    uniform = (secrets.randbits(_UNIFORM_BITS) + 0.5) * 2.0**-_UNIFORM_BITS
    number, reached = 0, 0.0
    while True:
        reached += probability(search, number)
        if uniform <= reached or number > 1000 * search.runs:
            return number
        number += 1


def probability(search: Search, number: int) -> float:
    """Probability that so many runs are made."""
    if search.selection is Selection.POISSON:
        return math.exp(number * math.log(search.runs) - search.runs - math.lgamma(number + 1))
    if number < 1:
        return 0.0
    gamma = stopping(search)
    if search.selection is Selection.GEOMETRIC:
        return gamma * math.exp((number - 1) * math.log1p(-gamma))
    return math.exp(number * math.log1p(-gamma)) / (number * -math.log(gamma))
