"""Privacy loss of one Poisson-subsampled Gaussian sum: on a grid, and its moments.

A step with rate q and noise multiplier s is dominated by a pair (P, Q) on the line:

* remove: P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2); add: the other way round;
* replace: P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = (1 - q) N(0, s^2) + q N(-1, s^2).

The grid follows "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions"
(arXiv 2207.04380), written with interval masses: the mass between two neighbouring grid points moves to
these points so that it keeps its total under P and under Q. The discrete pair dominates the true one, so
every epsilon taken from it is an upper bound. Masses are taken in the nearer tail, which keeps their
relative precision far out, where a small delta looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from raptor.accounting.types import Adjacency, Event

Floats = npt.NDArray[np.float64]

_QUADRATURE_REACH = 13.0
_QUADRATURE_CELLS = 1 << 18
_LARGEST_LOSS = 1e300
_LARGEST_EXPONENT = 600.0
# A cell's mass is parted between two points by a ratio near 1, which a handful of roundings move, each by 2^-53; moving
# the ratio moves the mean loss by as much. Errors of the masses themselves cancel, as what one cell lacks its neighbour
# has. By logarithms, of numbers down to 1e-308, it is more.
LOSS_ROUNDING = 2.0**-50
FAR_LOSS_ROUNDING = 2.0**-42


class Direction(StrEnum):
    """Which of two neighbouring data sets plays P."""

    REMOVE = "remove"
    ADD = "add"
    REPLACE = "replace"

    @property
    def reverse(self) -> Direction:
        """The direction with P and Q exchanged."""
        return {"remove": Direction.ADD, "add": Direction.REMOVE}.get(self.value, Direction.REPLACE)


def directions(events: Sequence[Event], adjacency: Adjacency) -> tuple[Direction, ...]:
    """The directions whose worst one is the guarantee; without sampling, add and remove are the same."""
    if adjacency is Adjacency.REPLACE_ONE:
        return (Direction.REPLACE,)
    if all(event.rate == 1 for event in events):
        return (Direction.REMOVE,)
    return (Direction.REMOVE, Direction.ADD)


@dataclass(frozen=True)
class StepLoss:
    """Loss of one step under P: `mass[k]` at `(first + k) * grid`.

    Attributes:
        beyond: mass under P of the losses above the grid; they may be taken for infinite.
        beyond_other: mass under Q of these losses.
        lifted_other: mass under Q of the losses below the grid, whose mass under P is at the first point.
        unsure: how much larger a loss may be than its points say, by rounding.
    """

    first: int
    mass: Floats
    beyond: float
    beyond_other: float
    lifted_other: float
    unsure: float


def spread(event: Event, direction: Direction, tail: float) -> tuple[float, float]:
    """Lowest and highest loss of one step, but for `tail` mass at each end."""
    q, s = event.rate, event.noise_multiplier
    reach = -s * float(ndtri(tail))
    low = -1 - reach if direction is Direction.REPLACE else -reach
    ends = _loss(np.array([low, 1 + reach]), q, s, direction)
    return float(ends.min()), float(ends.max())


def step_loss(event: Event, direction: Direction, grid: float, tail: float) -> StepLoss:
    """Loss of one step of `event` on multiples of `grid`, dominating the true loss.

    Args:
        tail: mass at each end that is left out above, and rounded up to the lowest point below.
    """
    return loss_between(event, direction, grid, *spread(event, direction, tail))


def loss_between(event: Event, direction: Direction, grid: float, lowest: float, highest: float) -> StepLoss:
    """Loss of one step on multiples of `grid`, dominating the true loss up to the last point.

    Args:
        lowest: losses below are rounded up to the first point, which is at most this one.
        highest: the last point is at least this one.
    """
    q, s = event.rate, event.noise_multiplier
    first, last = math.floor(lowest / grid), math.ceil(highest / grid)
    losses: Floats = grid * np.arange(first, last + 1, dtype=np.float64)
    if direction is Direction.ADD:
        edges = _threshold(-losses[::-1], q, s, Direction.REMOVE)
        ours, theirs = _line_masses(edges, q, s, Direction.REMOVE)
        p, other = theirs[::-1], ours[::-1]
    else:
        p, other = _line_masses(_threshold(losses, q, s, direction), q, s, direction)
    inner_p, inner_q = p[1:-1], other[1:-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if max(-losses[0], losses[-1]) < _LARGEST_EXPONENT:
            ratio = np.exp(losses[:-1]) * (inner_q / inner_p)
            unsure = LOSS_ROUNDING
        else:
            ratio = np.exp(losses[:-1] + np.log(inner_q) - np.log(inner_p))
            unsure = FAR_LOSS_ROUNDING
    # A ratio out of reach of floating point goes to the upper point, which can only raise epsilon.
    ratio = np.minimum(np.nan_to_num(ratio, nan=0.0), 1.0)
    share = np.clip((ratio - math.exp(-grid)) / -math.expm1(-grid), 0.0, 1.0)
    mass = np.zeros(losses.size)
    mass[:-1] = inner_p * share
    mass[1:] += inner_p * (1 - share)
    mass[0] += p[0]
    return StepLoss(first, mass, float(p[-1]), float(other[-1]), float(other[0]), unsure)


@dataclass(frozen=True)
class Limits:
    """The part of each event's loss, one step of it, that goes onto the grid.

    Attributes:
        lowest, highest: least and largest loss of each event.
        left, right: the same part on the line.
        cut: whether losses above `highest` were left out though they hold more than the tail.
    """

    lowest: Floats
    highest: Floats
    left: Floats
    right: Floats
    cut: npt.NDArray[np.bool_]


def limits(
    events: Sequence[Event],
    direction: Direction,
    tail: float,
    floor: float = -math.inf,
    ceiling: float = math.inf,
) -> Limits:
    """All losses but for `tail` mass at each end, and of those the ones from `floor` (< 0) to `ceiling` (> 0)."""
    q, s = _columns(events)
    q, s = q[:, 0], s[:, 0]
    reach = -s * float(ndtri(tail))
    left, right = (-1 if direction is Direction.REPLACE else 0) - reach, 1 + reach
    ends = _loss(np.stack([left, right]), q, s, direction)
    lowest, highest = ends.min(axis=0), ends.max(axis=0)
    cut, lifted = highest > ceiling, lowest < floor
    if cut.any() or lifted.any():
        bounds = np.clip(np.array([floor, ceiling]), -_LARGEST_LOSS, _LARGEST_LOSS)
        if direction is Direction.ADD:
            at = [_threshold(np.full(q.size, -bound), q, s, Direction.REMOVE) for bound in bounds]
            left, right = np.where(cut, at[1], left), np.where(lifted, at[0], right)
        else:
            at = [_threshold(np.full(q.size, bound), q, s, direction) for bound in bounds]
            left, right = np.where(lifted, at[0], left), np.where(cut, at[1], right)
    return Limits(np.maximum(lowest, floor), np.minimum(highest, ceiling), left, right, cut)


def masses_above(events: Sequence[Event], direction: Direction, loss: float) -> tuple[float, float]:
    """Masses under P and under Q of one step's losses above `loss` > 0, added over all steps of all events."""
    q, s = _columns(events)
    steps = np.array([[float(event.steps)] for event in events])
    level = np.full_like(q, loss)
    if direction is Direction.ADD:
        edge = _threshold(-level, q, s, Direction.REMOVE)
        p, other = ndtr(edge / s), (1 - q) * ndtr(edge / s) + q * ndtr((edge - 1) / s)
    else:
        edge = _threshold(level, q, s, direction)
        p = (1 - q) * ndtr(-edge / s) + q * ndtr((1 - edge) / s)
        other = ndtr(-edge / s)
        if direction is Direction.REPLACE:
            other = (1 - q) * other + q * ndtr((-1 - edge) / s)
    return float((steps * p).sum()), float((steps * other).sum())


def log_moment(
    events: Sequence[Event], direction: Direction, order: float, kept: Limits | None = None
) -> float:
    """log E_P exp(order * loss) of all events together; `order` times the Renyi divergence of order + 1.

    Trapezoid sums over the line, which converge exponentially for these analytic integrands. Noise too
    small for the sum to resolve gives infinity, which is a bound too. With limits the rest of the line is
    left out: a rough guide to what is on the grid, no bound.
    """
    if order == 0:
        return 0.0
    total = 0.0
    gauss = [event for event in events if event.rate == 1]
    for event in gauss:
        shift = 2.0 if direction is Direction.REPLACE else 1.0
        total += event.steps * order * (order + 1) / 2 * (shift / event.noise_multiplier) ** 2
    rest = [event for event in events if event.rate < 1]
    if not rest:
        return total
    q, s = _columns(rest)
    steps = np.array([event.steps for event in rest])
    far = {Direction.REMOVE: order + 1, Direction.ADD: -order, Direction.REPLACE: 2 * order + 1}[direction]
    near = -1.0 if direction is Direction.REPLACE else 0.0
    low = min(near, far, -far if direction is Direction.REPLACE else near) - _QUADRATURE_REACH * s
    high = max(1.0, far, -far if direction is Direction.REPLACE else near) + _QUADRATURE_REACH * s
    if kept is not None:
        sampled = np.array([event.rate < 1 for event in events])
        low = np.clip(low, kept.left[sampled, None], kept.right[sampled, None])
        high = np.clip(high, low, kept.right[sampled, None])
    # A guide needs fewer points.
    widest = np.minimum(s / 4, s * s / 2) if kept is None else np.minimum(s / 2, s * s)
    cells = max(1, math.ceil(float(np.max((high - low) / widest))))
    if cells > _QUADRATURE_CELLS:
        return math.inf
    width = (high - low) / cells
    x = low + width * np.arange(cells + 1)
    exponent = _log_density(x, q, s, direction) + order * _loss(x, q, s, direction)
    peak = exponent.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        each = peak[:, 0] + np.log((np.exp(exponent - peak) * width).sum(axis=1))
    # E exp(order * loss) is at least 1 outside of (-1, 0); rounding must not take it below.
    if kept is None and not -1 < order < 0:
        each = np.maximum(each, 0.0)
    return total + float(np.dot(steps, each))


def _columns(events: Sequence[Event]) -> tuple[Floats, Floats]:
    """Rates and noise multipliers, one row per event."""
    return (
        np.array([[event.rate] for event in events]),
        np.array([[event.noise_multiplier] for event in events]),
    )


def _loss(x: Floats, q: float | Floats, s: float | Floats, direction: Direction) -> Floats:
    """log P(x) / Q(x); increasing in x but for `add`."""
    up = _log_mixture((2 * x - 1) / (2 * s * s), q)
    if direction is Direction.REMOVE:
        return up
    if direction is Direction.ADD:
        return -up
    return up - _log_mixture((-2 * x - 1) / (2 * s * s), q)


def _log_density(x: Floats, q: Floats, s: Floats, direction: Direction) -> Floats:
    """log P(x)."""
    base = -0.5 * (x / s) ** 2 - np.log(s) - 0.5 * math.log(2 * math.pi)
    return base if direction is Direction.ADD else base + _log_mixture((2 * x - 1) / (2 * s * s), q)


def _log_mixture(z: Floats, q: float | Floats) -> Floats:
    """log(1 - q + q exp(z)), precise near z = 0 and without overflow."""
    with np.errstate(divide="ignore", over="ignore"):
        near = np.log1p(q * np.expm1(np.minimum(z, 30.0)))
        far = z + np.log(q) + np.log1p((1 - q) / q * np.exp(-np.maximum(z, 30.0)))
    result: Floats = np.where(np.asarray(q) == 1, z, np.where(z < 30, near, far))
    return result


def _threshold(losses: Floats, q: float | Floats, s: float | Floats, direction: Direction) -> Floats:
    """The x whose loss is each of `losses`, ascending; -inf below the least loss."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if direction is Direction.REMOVE:
            near = np.log1p(np.maximum(np.expm1(np.minimum(losses, 30.0)) / q, -1.0))
            if losses.max() < 30:
                found = near
            else:
                far = losses - np.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(losses, 30.0)))
                found = np.where(losses < 30, near, far)
            return np.asarray(0.5 + s * s * np.where(np.asarray(q) == 1, losses, found), dtype=np.float64)
        half = np.abs(losses) / 2
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        grown = 0.5 / (s * s) + np.log1p(-np.asarray(q)) - np.log(q) + log_sinh
        arc = np.where(grown > 30, grown + math.log(2), np.arcsinh(np.exp(np.minimum(grown, 30.0))))
        result: Floats = np.sign(losses) * s * s * (half + arc)
    return result


def _line_masses(edges: Floats, q: float, s: float, direction: Direction) -> tuple[Floats, Floats]:
    """Masses under P and under Q below the first edge, between edges, and above the last one."""
    middle = _normal_masses(edges / s)
    up = _normal_masses((edges - 1) / s)
    if direction is Direction.REMOVE:
        return (1 - q) * middle + q * up, middle
    down = _normal_masses((edges + 1) / s)
    return (1 - q) * middle + q * up, (1 - q) * middle + q * down


def _normal_masses(z: Floats) -> Floats:
    """Masses of a standard normal below, between and above ascending edges, from the tail beyond each edge."""
    tail = ndtr(-np.abs(z))
    right = z >= 0
    masses = np.empty(z.size + 1)
    masses[0] = 1 - tail[0] if right[0] else tail[0]
    masses[-1] = tail[-1] if right[-1] else 1 - tail[-1]
    masses[1:-1] = np.where(right[:-1], tail[:-1] - tail[1:], tail[1:] - tail[:-1])
    across = np.flatnonzero(right[1:] & ~right[:-1])
    masses[across + 1] = 1 - tail[across] - tail[across + 1]
    return masses
