"""Guesses about who was in the data: which canaries are guessed, and how many guesses are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.errors import ParameterError

Scores = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Guesses:
    """How many canaries are guessed: the `inside` highest scores as in, the `outside` lowest as out."""

    inside: int
    outside: int

    def __post_init__(self) -> None:
        if self.inside < 0 or self.outside < 0 or self.inside + self.outside < 1:
            raise ParameterError(
                f"An audit must guess at least one canary; got {self.inside} in and {self.outside} out."
            )


@dataclass(frozen=True)
class Tally:
    """Outcome of one run: `guesses` of the `canaries` were guessed and `correct` of these were right."""

    canaries: int
    guesses: int
    correct: int


def preset_guesses(canaries: int) -> tuple[Guesses, ...]:
    """A short list for any noise: few guesses where canaries are nearly certain, many where noise is large.

    One-sided ones are for sampling: an included canary that no sample drew looks like one that is out.
    """
    few, many = (max(1, round(canaries * share)) for share in (0.01, 0.05))
    return (Guesses(few, few), Guesses(many, many), Guesses(few, 0))


def tally(scores: Scores, bits: Bits, guesses: Guesses) -> Tally:
    """Guess from (m,) scores, higher meaning "in", and compare with the (m,) bits.

    Raises:
        ParameterError: more guesses than canaries, or scores that are not numbers.
    """
    if guesses.inside + guesses.outside > len(scores) or len(scores) != len(bits):
        raise ParameterError(
            f"{guesses.inside} + {guesses.outside} guesses need as many canaries; there are {len(scores)} scores "
            f"and {len(bits)} coins."
        )
    if np.isnan(scores).any():
        raise ParameterError("A canary has a score that is not a number: the run has diverged.")
    # Equal scores are ordered by index, which says nothing about the coins.
    order = np.argsort(scores, kind="stable")
    inside = bits[order[len(order) - guesses.inside :]]
    outside = bits[order[: guesses.outside]]
    correct = int(inside.sum()) + int((~outside).sum())
    return Tally(len(scores), guesses.inside + guesses.outside, correct)
