"""The composed privacy loss on a grid, and the epsilon that it has at a delta."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raptor.accounting.loss import Floats

_LARGEST_EXPONENT = 600.0
_FARTHEST = 250.0
_SURE = 500.0
_BLOCK = 300.0


def lowest(about: float, order: float) -> float:
    """The least epsilon that is found by weights of `order` where it was looked for at `about`."""
    return max(0.0, about - _FARTHEST / order)


@dataclass(frozen=True)
class Composed:
    """All steps together: the mass over delta at each loss is density * exp(log_scale - order * loss).

    Attributes:
        loss: ascending, `grid` apart.
        rounding: L2 norm of what rounding may have taken from `density`; added at its worst, by Cauchy-Schwarz.
        beyond: mass over delta of what is not in the density, counted as infinite loss but for the relief.
    """

    density: Floats
    loss: Floats
    grid: float
    order: float
    log_scale: float
    rounding: float
    beyond: float

    def epsilon(self, about: float, relief: float) -> float:
        """Solve sum over loss > epsilon of (1 - exp(epsilon - loss)) * mass + beyond - exp(epsilon) * relief = 1.

        The sum at a grid point is added up from those of the points above, by positive terms alone:
        from one point down to the next it grows by (1 - exp(-grid)) * V, where V is the sum of mass * exp(point -
        loss) from that point on. So nothing cancels, however small epsilon is.

        Returns:
            Far below `about` the weights overflow; when the answer lies there, a value there, a bound too.
            Infinity where there is no answer on the grid.
        """
        least = lowest(about, self.order)
        start = int(np.searchsorted(self.loss, least, side="right"))
        stop = int(np.searchsorted(self.loss, about + _SURE, side="right"))
        if start == self.loss.size:
            return least if self.beyond <= 1 else math.inf
        weight = np.exp(np.minimum(self.log_scale - self.order * self.loss[start:], _LARGEST_EXPONENT))
        with np.errstate(over="ignore"):
            unsure = self.rounding * np.sqrt(np.cumsum((weight * weight)[::-1]))[::-1]
        mass = self.density[start:] * weight
        size = stop - start
        # What is this far above counts in full.
        sure = self.beyond + float(mass[size:].sum())
        loss, mass, unsure = self.loss[start:stop], mass[:size], unsure[:size]
        value = self._discounted(mass)
        gained = -math.expm1(-self.grid) * value
        at = np.concatenate([np.cumsum(gained[::-1])[::-1][1:], [0.0]])
        less = relief * np.exp(np.minimum(loss, _LARGEST_EXPONENT)) if relief else np.zeros(size)
        # Below a point, at epsilon, delta is base + (1 - exp(epsilon - loss)) * slope.
        base, slope = at + unsure + sure - less, value + less
        before = np.concatenate([[least], loss[:-1]])
        enough = base - np.expm1(before - loss) * slope <= 1
        if not enough.any():
            return math.inf
        first = int(np.argmax(enough))
        if first == 0:
            return least
        # Epsilon is below the first point at which it is enough; that point itself is a bound as well.
        missing = float((1 - base[first - 1]) / slope[first - 1]) if slope[first - 1] > 0 else 0.0
        solved = float(loss[first - 1]) + (math.log1p(-missing) if missing < 1 else 0.0)
        return max(least, min(solved, float(before[first])))

    def _discounted(self, mass: Floats) -> Floats:
        """Sum of mass * exp(point - loss) from each point on, in blocks short enough for the exponentials."""
        length = max(1, int(_BLOCK / self.grid))
        value = np.empty_like(mass)
        carried = 0.0
        for end in range(mass.size, 0, -length):
            block = slice(max(0, end - length), end)
            growth = np.exp(self.grid * (np.arange(block.start, end) - end))
            value[block] = growth * (np.cumsum((mass[block] / growth)[::-1])[::-1] + carried)
            carried = float(value[block.start])
        return value
