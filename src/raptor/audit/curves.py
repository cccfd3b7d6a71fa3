"""Trade-off curves: how well two neighbouring data sets can be told apart at most.

A curve is asked for one thing: if an event has probability x on one data set, how small can its probability on
the neighbour be? A smaller answer is a weaker promise, so rounding here always goes down.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from raptor.accounting.accountant import epsilon as ledger_epsilon
from raptor.accounting.compose import merge
from raptor.accounting.loss import Direction, Floats, StepLoss, directions, spread, step_loss
from raptor.accounting.types import Adjacency, Event
from raptor.errors import ParameterError

_NORMAL = NormalDist()
_TAIL = 1e-14
_BEYOND = 1e-11
_STEP_POINTS = 20_000
_LINES = 800
_LARGEST_EPSILON = 100.0
_ORDERS = np.geomspace(0.05, 200.0, 40)


class Curve(Protocol):
    """A hypothesis about the mechanism that an audit may reject."""

    def least(self, mass: float) -> float:
        """Least probability on the neighbour of an event that has probability `mass`."""
        ...

    def epsilon(self, delta: float) -> float:
        """Epsilon of the curve at `delta`."""
        ...


@dataclass(frozen=True)
class GaussianCurve:
    """Telling N(0, 1) from N(mu, 1): one release without sampling has mu = 1 / noise multiplier.

    "Gaussian Differential Privacy" (arXiv 1905.02383).
    """

    mu: float

    def least(self, mass: float) -> float:
        if not 0.0 < mass < 1.0:
            return float(mass >= 1.0)
        return _NORMAL.cdf(_NORMAL.inv_cdf(mass) - self.mu)

    def epsilon(self, delta: float) -> float:
        if self.mu <= 0:
            return 0.0
        event = Event(1.0, 1 / self.mu, 1)
        return ledger_epsilon([event], delta, Adjacency.ADD_REMOVE, confirm=False).epsilon


@dataclass(frozen=True)
class ClaimCurve:
    """All that (epsilon, delta) itself promises, of whatever mechanism ("Gaussian Differential Privacy", section 2)."""

    claim: float
    delta: float

    def least(self, mass: float) -> float:
        # exp is kept where it is finite: at a claim beyond 700 both lines say nothing anyway.
        growth = math.exp(min(self.claim, 700.0))
        lines = (1 - self.delta - growth * (1 - mass), (mass - self.delta) / growth)
        return min(max(0.0, *lines), 1.0)

    def epsilon(self, delta: float) -> float:
        return self.claim if delta >= self.delta else math.inf


def most_found(curve: Curve, false_rate: float) -> float:
    """Largest true-positive rate that a membership attack can have at a false-positive rate, under a curve.

    Members are those with the record, non-members those without: the attack's "not a member" has probability
    1 - false_rate without the record, so at least `curve.least` of that with it. For `ClaimCurve` this is
    min(e^epsilon x + delta, 1 - (1 - x - delta) / e^epsilon) at x = false_rate.
    """
    return 1.0 - curve.least(1.0 - false_rate)


class LedgerCurve:
    """The curve that a ledger of Poisson-subsampled Gaussian sums promises, in the worse direction everywhere.

    Made from the privacy profile delta(epsilon) of the composed losses: the curve is the largest convex function
    that all its (epsilon, delta) guarantees allow ("Gaussian Differential Privacy", arXiv 1905.02383). Losses are
    those of `raptor.accounting.loss`, which dominate the true ones, and only some of the guarantees are used: both
    make the promise weaker, so a rejection of it is sound.
    """

    def __init__(self, events: Sequence[Event], adjacency: Adjacency) -> None:
        """Raises ParameterError when nothing is released, as then there is nothing to audit."""
        self.events = merge(events)
        self.adjacency = adjacency
        if not self.events:
            raise ParameterError("An audit needs at least one planned release; the plan has none.")
        profiles = [_profile(self.events, direction) for direction in directions(self.events, adjacency)]
        top = min(max(float(losses[-1]) for losses, _ in profiles), _LARGEST_EPSILON)
        # The guarantees: at every epsilon the larger delta of the two directions.
        epsilons = np.linspace(0.0, top, _LINES)
        deltas = np.max([_delta_at(epsilons, *profile) for profile in profiles], axis=0)
        growth = np.exp(epsilons)
        # At epsilon 0 both kinds of line are the same one.
        slopes = np.concatenate([1 / growth[:0:-1], growth])
        offsets = np.concatenate([(-deltas / growth)[:0:-1], 1 - deltas - growth])
        # A line outside of its own range is lower than the best one there: sound, only weaker.
        ends = np.maximum.accumulate((offsets[:-1] - offsets[1:]) / (slopes[1:] - slopes[:-1]))
        self._ends: list[float] = ends.tolist()
        self._slopes: list[float] = slopes.tolist()
        self._offsets: list[float] = offsets.tolist()

    def least(self, mass: float) -> float:
        line = bisect_right(self._ends, mass)
        return min(max(0.0, self._slopes[line] * mass + self._offsets[line]), 1.0)

    def epsilon(self, delta: float) -> float:
        return ledger_epsilon(self.events, delta, self.adjacency, confirm=False).epsilon


def scaled(events: Sequence[Event], factor: float) -> list[Event]:
    """The same releases with `factor` times the noise."""
    return [Event(event.rate, event.noise_multiplier * factor, event.steps) for event in events]


def _profile(events: Sequence[Event], direction: Direction) -> tuple[Floats, Floats]:
    """Losses of all events together on a grid, ascending, and delta at each of them as an epsilon.

    A plain transform: its rounding of about 1e-15 matters to a certificate at a tiny delta, not to an audit, whose
    sharpest question is about probabilities of 1e-6.
    """
    widths = [high - low for low, high in (spread(event, direction, _TAIL) for event in events)]
    count = sum(event.steps for event in events)
    # The second bound keeps what the grid adds to epsilon, about count * grid^2, out of the third digit.
    grid = max(min(min(widths) / 2000, 0.02 / math.sqrt(count)), max(widths) / _STEP_POINTS)
    steps = [step_loss(event, direction, grid, _TAIL) for event in events]
    counts = [event.steps for event in events]
    top, bottom = _reach(steps, counts, grid, 1.0), -_reach(steps, counts, grid, -1.0)
    first = math.floor(bottom / grid) - 1
    size = 1 << (math.ceil(top / grid) + 2 - first).bit_length()
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for step, steps_made in zip(steps, counts, strict=True):
        folded = np.zeros(size)
        np.add.at(folded, np.arange(step.mass.size) % size, step.mass)
        spectrum *= np.fft.rfft(folded) ** steps_made
    shift = sum(step.first * made for step, made in zip(steps, counts, strict=True))
    mass = np.maximum(np.roll(np.fft.irfft(spectrum, size), (shift - first) % size), 0.0)
    losses = grid * np.arange(first, first + size, dtype=np.float64)
    lost = 2 * _BEYOND + sum(step.beyond * made for step, made in zip(steps, counts, strict=True))
    above = np.cumsum(mass[::-1])[::-1]
    discounted = np.cumsum((mass * np.exp(-np.maximum(losses, -700.0)))[::-1])[::-1]
    delta = above - np.exp(np.minimum(losses, 700.0)) * discounted + lost
    keep = losses <= top + grid
    return losses[keep], np.clip(delta[keep], 0.0, 1.0)


def _delta_at(epsilons: Floats, losses: Floats, deltas: Floats) -> Floats:
    """delta at each epsilon, on chords between grid points: delta is convex in exp(epsilon), so never below it."""
    growth = np.exp(np.clip(losses, -700.0, 700.0))
    return np.asarray(np.interp(np.exp(epsilons), growth, deltas), dtype=np.float64)


def _reach(steps: Sequence[StepLoss], counts: Sequence[int], grid: float, sign: float) -> float:
    """What `sign` times the sum of the losses passes with probability at most `_BEYOND`, by Chernoff's bound."""
    best = math.inf
    for order in _ORDERS:
        moment = 0.0
        for step, made in zip(steps, counts, strict=True):
            losses = sign * grid * (step.first + np.arange(step.mass.size))
            moment += made * float(logsumexp(order * losses, b=step.mass))
        best = min(best, (moment - math.log(_BEYOND)) / order)
    return best
