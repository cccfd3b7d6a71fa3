"""Epsilon of a single step from its closed form: no grid, no transform.

With the best test x > t of a step (see `loss` for P and Q), delta(epsilon) = P(x > t) - exp(epsilon) Q(x > t),
and both are sums of normal tails. Collected by tails, so that no nearly equal terms of different mixtures
are subtracted where q is small:

* remove: q N((t - 1) / s) - (exp(epsilon) - 1 + q) N(t / s);
* add, with x < t: (q - (exp(epsilon) - 1) (1 - q)) N(-t / s) - exp(epsilon) q N(-(t - 1) / s);
* replace: q N((t - 1) / s) - (exp(epsilon) - 1) (1 - q) N(t / s) - exp(epsilon) q N((t + 1) / s),

where N(z) is the mass of a standard normal above z. The first is equation 6 of "Improving the Gaussian
Mechanism for Differential Privacy" (arXiv 1805.06530) at q = 1, and its subsampled form otherwise.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from raptor.accounting.loss import Direction, _threshold
from raptor.accounting.types import Event

_UNIT_ROUNDOFF = 2.0**-52
_SAFETY = 8.0
_LARGEST_LOG = 700.0
_PRECISION = 1e-12


def one_step_epsilon(event: Event, direction: Direction, delta: float) -> float:
    """Least epsilon >= 0 of one step of `event` at `delta`, to a relative 1e-12; infinity if none is found.

    Guarantee:
        The value is never below the true epsilon: it is the upper end of a bisection, where delta(epsilon)
        with all rounding counted against it was found to be at most `delta`. A threshold t that is off by
        rounding changes delta only to second order, since delta(epsilon) is largest at the exact one.

    Args:
        event: its `steps` are not used.
        delta: above 0.
    """
    if _enough(0.0, event, direction, delta):
        return 0.0
    low, high = 0.0, 1.0
    while not _enough(high, event, direction, delta):
        low, high = high, 2 * high
        if not math.isfinite(high):
            return math.inf
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if _enough(middle, event, direction, delta):
            high = middle
        else:
            low = middle
    return high


def _enough(epsilon: float, event: Event, direction: Direction, delta: float) -> bool:
    """Whether delta(epsilon), rounded up, is at most `delta`."""
    q, s = event.rate, event.noise_multiplier
    towards, loss = (Direction.REMOVE, -epsilon) if direction is Direction.ADD else (direction, epsilon)
    edge = float(_threshold(np.array([loss]), q, s, towards)[0])
    log_q = math.log(q)
    log_rest = math.log1p(-q) if q < 1 else -math.inf
    log_growth = epsilon + math.log(-math.expm1(-epsilon)) if epsilon > 0 else -math.inf
    if direction is Direction.REMOVE:
        kept = float(np.logaddexp(log_growth, log_q))
        terms = [(1, log_q, (edge - 1) / s), (-1, kept, edge / s)]
    elif direction is Direction.ADD:
        if edge == -math.inf:
            return True  # no x has so large a loss
        terms = [
            (1, log_q, -edge / s),
            (-1, log_growth + log_rest, -edge / s),
            (-1, epsilon + log_q, -(edge - 1) / s),
        ]
    else:
        terms = [
            (1, log_q, (edge - 1) / s),
            (-1, log_growth + log_rest, edge / s),
            (-1, epsilon + log_q, (edge + 1) / s),
        ]
    total = 0.0
    for sign, log_factor, z in terms:
        size = log_factor + float(log_ndtr(-z)) - math.log(delta)
        if size > _LARGEST_LOG:
            return False
        # The logarithm is off by a few units of roundoff of its parts, which are about z^2 and epsilon.
        slack = _SAFETY * _UNIT_ROUNDOFF * (4 + z * z + epsilon + abs(log_q) + abs(math.log(delta)))
        total += (sign + slack) * math.exp(size)
    return total <= 1
