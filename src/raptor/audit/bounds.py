"""Lower bounds on epsilon from guesses about who was in the data.

Two kinds of evidence. *One run*: m canaries, each in by its own fair coin, one run, one guess a canary. *Independent
trials*: one canary, many runs of one mechanism. Each bound holds with the stated confidence over the coins and the
noise; it may say less than the truth and is never a proof of privacy.

Which guesses count (the k+ highest scores as "in", the k- lowest as "out") is fixed before looking, or chosen from
a preset list with the confidence shared out evenly (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, binom, norm

from raptor.audit.curves import Curve, GaussianCurve
from raptor.audit.guesses import Bits, Guesses, Scores, Tally, tally
from raptor.errors import ParameterError

_ROUNDS = 24
_SMALLEST = 1e-4
_LARGEST_EPSILON = 60.0
LARGEST_MU = 40.0
_THRESHOLDS = 200


@dataclass(frozen=True)
class LowerBound:
    """Epsilon is at least `epsilon` at `delta`, with `confidence`.

    Attributes:
        method: `one-run`, `one-run f-DP` or `trials`.
        canaries: canaries of one run, or independent trials.
        guesses, correct: of the best choice of guesses; for trials, the trials that bound the errors.
        detail: what the bound takes for granted, in words.
    """

    method: str
    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    detail: str


def one_run_p_value(found: Tally, epsilon: float, delta: float) -> float:
    """Largest probability, under (epsilon, delta)-DP, of at least so many right guesses.

    "Privacy Auditing with One (1) Training Run" (arXiv 2305.08846), main theorem: guesses are right as often as coins
    of bias e^epsilon / (1 + e^epsilon), but for a term that grows with canaries times delta.
    """
    right = 1 / (1 + np.exp(-epsilon))
    v = found.correct
    plain = float(binom.sf(v - 1, found.guesses, right))
    extra = 0.0
    if delta > 0 and v > 0:
        back = np.arange(1, v + 1)
        extra = float(np.max((binom.sf(v - back - 1, found.guesses, right) - plain) / back))
    return min(1.0, plain + 2 * found.canaries * delta * extra)


def one_run_bound(
    scores: Scores, bits: Bits, choices: Sequence[Guesses], delta: float, confidence: float
) -> LowerBound:
    """Bound from one run with nothing assumed about the mechanism but that the canaries' coins are fair.

    Guarantee:
        If the run is (e, delta)-DP for adding or removing one canary, the returned epsilon is at most e with
        probability at least `confidence`. It cannot pass about log(m / log(1 / (1 - confidence))).
    """
    level = (1 - confidence) / len(choices)

    def rejected(found: Tally, epsilon: float) -> bool:
        return one_run_p_value(found, epsilon, delta) <= level

    best, tallied = _best(
        scores, bits, choices, lambda found: largest(lambda e: rejected(found, e), _LARGEST_EPSILON)
    )
    return _bound("one-run", best, delta, confidence, tallied, "nothing about the shape of the mechanism")


def rejects(curve: Curve, found: Tally, level: float) -> bool:
    """Whether so many right guesses have a probability below `level` if the mechanism keeps to the curve.

    "Auditing f-Differential Privacy in One Run" (arXiv 2410.22235), the numerical procedure for coins: the masses of
    "exactly i right" are followed downwards from the observed number; right and wrong answers at i are tied by the
    curve.
    """
    m, r, v = found.canaries, found.guesses, found.correct
    right, wrong = level * v / m, level * (r - v) / m
    limit = r / m
    for i in range(v - 1, -1, -1):
        grown = max(wrong, curve.least(right))
        right = min(right + i / (r - i) * (grown - wrong), 1.0)
        wrong = grown
        # Both only grow, so the answer is known as soon as they pass the limit.
        if right + wrong > limit:
            return True
    return right + wrong > limit


def f_dp_bound(
    scores: Scores, bits: Bits, choices: Sequence[Guesses], delta: float, confidence: float
) -> LowerBound:
    """Bound from one run for a mechanism whose trade-off curve is some Gaussian one.

    Guarantee:
        If the run is mu-GDP, the returned epsilon is at most that of mu at `delta` with probability at least
        `confidence`. A rejected mu always shows that the run is not mu-GDP; that this means an epsilon at
        `delta` assumes the Gaussian shape, as one full-batch release has.
    """
    level = (1 - confidence) / len(choices)

    def mu_of(found: Tally) -> float:
        return largest(lambda mu: rejects(GaussianCurve(mu), found, level), LARGEST_MU)

    mu, tallied = _best(scores, bits, choices, mu_of)
    return _bound(
        "one-run f-DP", GaussianCurve(mu).epsilon(delta), delta, confidence, tallied, "a Gaussian curve"
    )


def family_bound(
    scores: Scores,
    bits: Bits,
    choices: Sequence[Guesses],
    family: Callable[[float], Curve],
    strengths: tuple[float, float],
    delta: float,
    confidence: float,
    *,
    rounds: int = 9,
) -> LowerBound:
    """Bound from one run for a mechanism whose curve belongs to a family, such as a ledger with scaled noise.

    Args:
        family: strength -> curve; a larger strength promises less.
        strengths: the least and the largest strength to try, above 0.

    Guarantee:
        If the run keeps to `family(s)`, the returned epsilon is at most that of `family(s)` with probability at
        least `confidence`; 0 when the least strength is not rejected.
    """
    level = (1 - confidence) / len(choices)
    tallies = [tally(scores, bits, choice) for choice in choices]

    def rejected(curve: Curve) -> Tally | None:
        return next((found for found in tallies if rejects(curve, found, level)), None)

    low, high = strengths
    curve = family(low)
    found = rejected(curve)
    if found is None:
        return _bound("one-run f-DP", 0.0, delta, confidence, tallies[0], "the curve of the ledger")
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        tried = family(middle)
        hit = rejected(tried)
        if hit is None:
            high = middle
        else:
            low, curve, found = middle, tried, hit
    return _bound(
        "one-run f-DP",
        curve.epsilon(delta),
        delta,
        confidence,
        found,
        "the curve of the ledger, noise scaled",
    )


def trials_bound(scores: Scores, bits: Bits, delta: float, confidence: float) -> LowerBound:
    """Bound from independent trials of a mechanism whose trade-off curve is some Gaussian one.

    A threshold is chosen on the first half of the trials; Clopper-Pearson bounds of both kinds of error on the
    second half give mu >= Phi^-1(1 - false positives) - Phi^-1(false negatives), as in "Tight Auditing of
    Differentially Private Machine Learning" (arXiv 2302.07956).

    Guarantee:
        If each trial is mu-GDP and independent of the others, the returned epsilon is at most that of mu at
        `delta` with probability at least `confidence`. Not valid for canaries that share a run.
    """
    if np.isnan(scores).any() or len(scores) != len(bits) or len(scores) < 4:
        raise ParameterError("Trials need at least four scores that are numbers, and one coin for each.")
    half = len(scores) // 2
    thresholds = np.unique(np.quantile(scores[:half], np.linspace(0.002, 0.998, _THRESHOLDS)))
    level = (1 - confidence) / 2
    guide = _mu(scores[:half], bits[:half], thresholds, level)
    threshold = thresholds[int(np.argmax(guide))]
    mu = max(0.0, float(_mu(scores[half:], bits[half:], np.array([threshold]), level)[0]))
    said = scores[half:] > threshold
    found = Tally(len(scores), len(said), int((said == bits[half:]).sum()))
    epsilon = GaussianCurve(mu).epsilon(delta)
    return _bound("trials", epsilon, delta, confidence, found, "a Gaussian curve and independent trials")


def _mu(scores: Scores, bits: Bits, thresholds: Scores, level: float) -> Scores:
    """Lower bound on mu at each threshold, (thresholds,); both errors are at most their bound, each at `level`."""
    inside, outside = np.sort(scores[bits]), np.sort(scores[~bits])
    missed = np.searchsorted(inside, thresholds, side="right")
    alarms = len(outside) - np.searchsorted(outside, thresholds, side="right")
    return np.asarray(
        -norm.ppf(at_most(alarms, len(outside), level)) - norm.ppf(at_most(missed, len(inside), level)),
        dtype=np.float64,
    )


def at_most(events: npt.NDArray[np.int64], trials: int, level: float) -> Scores:
    """One-sided upper bound of Clopper and Pearson on a probability, right with probability 1 - level."""
    bound = np.ones(events.shape)
    below = events < trials
    bound[below] = beta.ppf(1 - level, events[below] + 1, trials - events[below])
    return bound


def _best(
    scores: Scores, bits: Bits, choices: Sequence[Guesses], bound: Callable[[Tally], float]
) -> tuple[float, Tally]:
    tallies = [tally(scores, bits, choice) for choice in choices]
    values = [bound(found) for found in tallies]
    place = int(np.argmax(values))
    return values[place], tallies[place]


def largest(rejected: Callable[[float], bool], limit: float) -> float:
    """Largest value that is still rejected, from below, by bisection; 0 when none worth naming is."""
    if not rejected(_SMALLEST):
        return 0.0
    low, high = _SMALLEST, 1.0
    while high < limit and rejected(high):
        low, high = high, 2 * high
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if rejected(middle):
            low = middle
        else:
            high = middle
        if high - low < 1e-4 * high:
            break
    return low


def _bound(
    method: str, epsilon: float, delta: float, confidence: float, found: Tally, detail: str
) -> LowerBound:
    return LowerBound(
        method, epsilon, delta, confidence, found.canaries, found.guesses, found.correct, f"assumes {detail}"
    )
