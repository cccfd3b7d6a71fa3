"""Membership inference: is a record among those that a model was trained on?

Many models are trained, each on the records that its own fair coins chose, independently of all others. Each is then
attacked in turn, with the others as its shadow models: their coins and answers say how a record's score is spread with
and without it. An attack gives every (model, record) a score, higher meaning "member", from the model's answer to the
record alone. What it finds is a lower bound on what can be found: a stronger attack may see more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from scipy.stats import rankdata

from raptor.audit.bounds import LARGEST_MU, at_most, largest, rejects
from raptor.audit.curves import Curve, GaussianCurve
from raptor.audit.guesses import Bits, Scores, Tally, preset_guesses, tally
from raptor.errors import ParameterError


@dataclass(frozen=True)
class Models:
    """Answers of models that were trained on random parts of the same records.

    Attributes:
        margins: (models, records) logit-scaled confidences, see `label_margins`.
        members: (models, records) whether the record was among those the model was trained on.
    """

    margins: Scores
    members: Bits

    def __post_init__(self) -> None:
        if self.margins.shape != self.members.shape or self.margins.ndim != 2 or len(self.margins) < 4:
            raise ParameterError(
                "A membership attack needs four models or more and one coin for each answer; got answers of shape "
                f"{self.margins.shape} and coins of shape {self.members.shape}."
            )
        if not np.isfinite(self.margins).all():
            raise ParameterError(
                "A model answers with what is not a finite number: its training has diverged."
            )
        if self.members.all() or not self.members.any():
            raise ParameterError("All coins are alike, so there is nothing to tell apart.")


def label_margins(logits: Scores, labels: npt.NDArray[np.int64]) -> Scores:
    """log(p / (1 - p)) of the probability p of each record's own label, (records,).

    Args:
        logits: (records, classes).
        labels: (records,).

    The logit-scaled confidence of "Membership Inference Attacks From First Principles" (arXiv 2112.03570, section
    V), in its stable form. The loss is log(1 + exp(-margin)), so a threshold on either is one on the other.
    """
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return np.asarray(logits[rows, labels] - logsumexp(others, axis=1), dtype=np.float64)


def loss_threshold(models: Models) -> Scores:
    """A small loss says "member", for all records alike ("Privacy Risk in Machine Learning", arXiv 1709.01604)."""
    return models.margins


def offline_lira(models: Models) -> Scores:
    """How far a record's margin lies above those of shadow models without it, in standard deviations.

    The offline attack of arXiv 2112.03570 (section VI) with one variance for all records, which that paper takes
    where shadow models are few.
    """
    outside = _Shadows.of(models, ~models.members)
    # A record that all shadow models have is held against the mean of the others.
    without = np.where(np.isnan(outside.mean), np.nanmean(outside.mean), outside.mean)
    return np.asarray((models.margins - without) / outside.deviation, dtype=np.float64)


def online_lira(models: Models) -> Scores:
    """Log ratio of the likelihoods of a record's margin with and without it, each a Gaussian of its own mean.

    The online attack of arXiv 2112.03570 (algorithm 1), with one variance for all records on each side. A record
    that no shadow model has, or that all have, gets its missing mean from the other side and the mean gap.
    """
    inside, outside = _Shadows.of(models, models.members), _Shadows.of(models, ~models.members)
    gap = np.nanmean(inside.mean - outside.mean)
    with_it = np.where(np.isnan(inside.mean), outside.mean + gap, inside.mean)
    without = np.where(np.isnan(outside.mean), inside.mean - gap, outside.mean)
    z_in = (models.margins - with_it) / inside.deviation
    z_out = (models.margins - without) / outside.deviation
    ratio = (z_out**2 - z_in**2) / 2 + np.log(outside.deviation / inside.deviation)
    return np.asarray(ratio, dtype=np.float64)


ATTACKS: Mapping[str, Callable[[Models], Scores]] = {
    "loss": loss_threshold,
    "offline": offline_lira,
    "online": online_lira,
}
"""Name in results -> (models, records) scores. A target's own coins play no part in its scores."""


@dataclass(frozen=True)
class _Shadows:
    """Means (models, records) over the shadow models of each target, NaN where it has none, and one deviation each."""

    mean: Scores
    deviation: Scores

    @classmethod
    def of(cls, models: Models, chosen: Bits) -> _Shadows:
        """Of the chosen (model, record) pairs, for each target without its own."""
        margins = np.where(chosen, models.margins, 0.0)
        number = chosen.sum(axis=0) - chosen
        with np.errstate(invalid="ignore"):
            mean = (margins.sum(axis=0) - margins) / number
        deviation = np.empty((len(margins), 1))
        for target in range(len(margins)):
            here = chosen.copy()
            here[target] = False
            squares = np.where(here, (models.margins - mean[target]) ** 2, 0.0).sum()
            freedom = np.maximum(number[target] - 1, 0).sum()
            deviation[target] = np.sqrt(squares / freedom) if freedom and squares > 0 else 1.0
        return cls(mean, deviation)


@dataclass(frozen=True)
class Point:
    """One threshold of an attack over all targets: counts on both sides of it."""

    false_positives: int
    non_members: int
    true_positives: int
    members: int

    @property
    def true_rate(self) -> float:
        return self.true_positives / self.members

    def interval(self, confidence: float) -> tuple[float, float]:
        """Clopper and Pearson's, of the true-positive rate.

        It takes the guesses for independent. Those about one model share its noise, so it is rather too narrow.
        """
        level = (1 - confidence) / 2
        found = np.array([self.members - self.true_positives, self.true_positives])
        missed, high = at_most(found, self.members, level)
        return 1.0 - float(missed), float(high)


def operating_points(scores: Scores, members: Bits, false_rates: Sequence[float]) -> list[Point]:
    """The lowest threshold whose false-positive rate does not pass each of the given ones, over all targets.

    Under no signal at all a member passes it with the same probability, up to one over the number of non-members.
    """
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])
    points = []
    for rate in false_rates:
        allowed = min(int(rate * len(outside) + 1e-9), len(outside) - 1)
        threshold = outside[len(outside) - 1 - allowed]
        alarms = len(outside) - int(np.searchsorted(outside, threshold, side="right"))
        hits = len(inside) - int(np.searchsorted(inside, threshold, side="right"))
        points.append(Point(alarms, len(outside), hits, len(inside)))
    return points


def area(scores: Scores, members: Bits) -> float:
    """Probability that a member scores above a non-member: 0.5 is what guessing has."""
    ranks = rankdata(scores.ravel())
    inside = int(members.sum())
    above = ranks[members.ravel()].sum() - inside * (inside + 1) / 2
    return float(above / (inside * (members.size - inside)))


def epsilon_found(scores: Scores, members: Bits, delta: float, confidence: float) -> float:
    """Epsilon at `delta` of the strongest Gaussian curve that some target shows not to hold.

    Guarantee:
        At the confidence, for all targets together: if training is mu-GDP, the result is at most the epsilon of mu.
        It holds however guesses about one model depend on each other, since the coins are what is random, see
        `f_dp_bound`; shadow models have coins of their own, so they are constants to a target's coins.
    """
    level, tallies = _tallies(scores, members, confidence)
    strongest = 0.0
    for found in tallies:
        # Most show nothing, or no more than another, and one look says so.
        if strongest == 0.0 or rejects(GaussianCurve(strongest), found, level):
            strongest = max(strongest, _strength(found, level))
    return GaussianCurve(strongest).epsilon(delta)


def _strength(found: Tally, level: float) -> float:
    return largest(lambda mu: rejects(GaussianCurve(mu), found, level), LARGEST_MU)


def breaks(curve: Curve, scores: Scores, members: Bits, confidence: float) -> bool:
    """Whether some target shows that training does not keep to the curve; with the confidence for all targets."""
    level, tallies = _tallies(scores, members, confidence)
    return any(rejects(curve, found, level) for found in tallies)


def _tallies(scores: Scores, members: Bits, confidence: float) -> tuple[float, list[Tally]]:
    """Guesses of all targets in all preset numbers, and the level of each of these tests."""
    choices = preset_guesses(scores.shape[1])
    found = [
        tally(row, bits, choice) for row, bits in zip(scores, members, strict=True) for choice in choices
    ]
    return (1 - confidence) / len(found), found
