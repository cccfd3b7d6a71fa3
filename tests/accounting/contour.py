"""Epsilon by another way than the accountant's: a contour integral of moments, without a grid of losses.

With K(t) the product of E_P exp(t loss) over all steps, delta(epsilon) = E_P (1 - exp(epsilon - loss))+ is the
integral of K(t) exp(-t epsilon) / (t (t + 1)) over Re t = c > 0, over 2 pi i, since the Laplace transform of
1 - exp(-x) is 1 / (t (t + 1)). Trapezoid sums of analytic integrands converge exponentially, over the line of the
outcomes as over the contour. A few thousand steps of one event take a second; few or rare steps decay slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from raptor.accounting.types import Adjacency, Event

_REACH = 12.0
BLOCK = 16
MOST = 200_000


def exact_epsilon(
    events: Sequence[Event], delta: float, adjacency: Adjacency, about: float = 1.0, ways: Sequence[str] = ()
) -> float:
    """The least epsilon at `delta`, to about nine digits; it is looked for from `about` on."""
    both = ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove", "add")
    return max(_Contour(events, way).epsilon(delta, about) for way in ways or both)


class _Contour:
    def __init__(self, events: Sequence[Event], way: str) -> None:
        self._events, self._way = events, way

    def epsilon(self, delta: float, about: float) -> float:
        def rest(epsilon: float) -> float:
            return self.log_delta(epsilon) - math.log(delta)

        low, high, factor = about, about, 1.001
        while rest(high) > 0:
            low, high, factor = high, high * factor, factor**3
        factor = 1.001
        while low > 1e-12 and rest(low) < 0:
            low, high, factor = low / factor, low, factor**3
        return float(brentq(rest, low, high, rtol=1e-10, xtol=1e-18))

    def log_delta(self, epsilon: float) -> float:
        def height(log_order: float) -> float:
            order = math.exp(log_order)
            return (
                float(self._log_moment(np.array([order + 0j]))[0].real)
                - order * epsilon
                - math.log(order * (order + 1))
            )

        top = math.log(1e-2)
        while height(top + 0.7) < height(top):
            top += 0.7
        best = minimize_scalar(
            height, bounds=(top - 1.4, top + 0.7), method="bounded", options={"xatol": 1e-3}
        )
        order, peak = math.exp(best.x), best.fun
        # A step h lets the loss come again every 2 pi / h: halved until that does not show.
        step, before = 2 * math.pi * order / 30, math.inf
        while True:
            found = self._integral(epsilon, order, peak, step)
            if abs(found / before - 1) < 1e-11:
                return peak + math.log(found / math.pi)
            step, before = step / 2, found

    def _integral(self, epsilon: float, order: float, peak: float, step: float) -> float:
        total, start = 0.0, 0
        while True:
            u = step * np.arange(start, start + BLOCK)
            t = order + 1j * u
            value = np.exp(self._log_moment(t) - t * epsilon - peak) / (t * (t + 1))
            total += float((np.where(u == 0, 0.5, 1.0) * value.real).sum())
            if np.abs(value).max() * u[-1] < 1e-13 * abs(total) or start > MOST:
                return total * step
            start += BLOCK

    def _log_moment(self, t: np.ndarray) -> np.ndarray:
        return sum(event.steps * np.log1p(self._gain(event, t)) for event in self._events)

    def _gain(self, event: Event, t: np.ndarray) -> np.ndarray:
        """E_P exp(t loss) - 1 of one step."""
        q, s = event.rate, event.noise_multiplier
        c = float(t[0].real)
        if q == 1:
            shift = 2.0 if self._way == "replace" else 1.0
            return np.expm1(t * (t + 1) / 2 * (shift / s) ** 2)
        far = {"remove": c + 1, "add": -c, "replace": 2 * c + 1}[self._way]
        low, high = (
            min(-1.0, far, -far if self._way == "replace" else 0.0) - _REACH * s,
            max(1.0, far) + _REACH * s,
        )
        width = min(s / 6, s * s / 3, s * s / (1 + float(np.abs(t.imag).max())) * 1.5)
        x = np.linspace(low, high, 2 + math.ceil((high - low) / width))
        up, down = _mixture((2 * x - 1) / (2 * s * s), q), _mixture((-2 * x - 1) / (2 * s * s), q)
        loss = {"remove": up, "add": -up, "replace": up - down}[self._way]
        base = -0.5 * (x / s) ** 2 + (0 if self._way == "add" else up)
        weight = (x[1] - x[0]) / (s * math.sqrt(2 * math.pi))
        found = np.empty(t.shape, dtype=np.complex128)
        for at, value in enumerate(t):
            # exp(base) (exp(t loss) - 1), where the one may vanish as the other grows.
            exponent = value * loss
            near = np.abs(exponent) < 1
            inner = np.where(near, np.exp(base) * np.expm1(np.where(near, exponent, 0)), 0)
            outer = np.where(near, 0, np.exp(base + np.where(near, 0, exponent)) - np.exp(base))
            found[at] = (inner + outer).sum() * weight
        return found


def _mixture(z: np.ndarray, q: float) -> np.ndarray:
    return np.where(z < 30, np.log1p(q * np.expm1(np.minimum(z, 30))), z + math.log(q))
