"""Structural checks of releases: faults that no score of a single canary can see.

An expert that is skipped when no record reached it, or a noisy sum that is divided by the number of records that
did, gives records away through where noise is and how large it is. So the noise itself is looked at, in coordinates
that no canary uses: there a release must be N(0, (sigma C / D)^2), whatever was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import chi2, norm

from raptor.accounting.plan import StreamPlan
from raptor.audit.canaries import (
    CanaryGradients,
    CanarySet,
    MakeMechanism,
    MakeRule,
    Recorder,
    plain_mechanism,
    plain_rule,
    private_stream,
)
from raptor.dp.streams import RandomSource
from raptor.errors import ParameterError

Values = npt.NDArray[np.float64]

# Rounding of a float32 sum; the clipped norm itself aims below C by NORM_MARGIN.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Finding:
    """Outcome of one check.

    Attributes:
        check: name of the check.
        stream: whose releases were looked at.
        p_value: probability of something at least so odd in a correct mechanism, all its comparisons together.
        passed: whether `p_value` is above the level.
        what: the most telling figure, in words.
    """

    check: str
    stream: str
    p_value: float
    passed: bool
    what: str


@dataclass(frozen=True)
class Noise:
    """Spare coordinates of one stream's releases over the public noise deviation sigma C / D.

    Attributes:
        values: (steps, blocks, spare); standard normal in a correct mechanism.
        counts: (steps, blocks) canaries that the samples brought to each block, which only an audit may know.
        whole: (steps, blocks) whether a block of the release is exactly zero as a whole.
    """

    values: Values
    counts: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_]


def observe_noise(
    plan: StreamPlan,
    canaries: CanarySet,
    randomness: RandomSource,
    *,
    make_mechanism: MakeMechanism = plain_mechanism,
    make_rule: MakeRule = plain_rule,
) -> Noise:
    """Run the stream's steps on the canaries and cut out the spare coordinates.

    The samples are drawn a second time from the same coins to count who was in them.

    Raises:
        ParameterError: the canaries leave no spare coordinates.
    """
    if canaries.spare < 8:
        raise ParameterError("Structural checks need at least 8 spare coordinates in each block.")
    recorder = Recorder()
    stream = private_stream(
        plan, canaries, recorder, randomness, make_mechanism=make_mechanism, make_rule=make_rule
    )
    for _ in range(plan.steps):
        stream.step()
    releases = np.stack(recorder.releases)
    numbers = np.flatnonzero(canaries.included)
    coins = randomness.stream(f"audit/{plan.name}/coins")
    counts = np.zeros(releases.shape[:2], dtype=np.int64)
    for step in range(plan.steps):
        drawn = numbers[coins.coins(len(numbers), plan.rate).numpy()]
        counts[step] = np.bincount(drawn % plan.blocks, minlength=plan.blocks)
    deviation = plan.noise_deviation / plan.denominator
    return Noise(releases[:, :, -canaries.spare :] / deviation, counts, (releases == 0).all(axis=2))


def check_structure(
    plans: Mapping[str, StreamPlan], noises: Mapping[str, Noise], level: float
) -> list[Finding]:
    """All checks of all streams; each is made at `level`, shared out over its comparisons (Bonferroni)."""
    findings: list[Finding] = []
    for name, noise in noises.items():
        findings += [
            _skipped(name, noise),
            _variance(name, noise, level, plans[name]),
            _follows_counts(name, noise, level),
            _correlation(name, noise, level),
        ]
    findings += [
        _across(f"{one} and {other}", noises[one], noises[other], level)
        for one, other in combinations(noises, 2)
    ]
    return findings


def check_sensitivity(plan: StreamPlan, canaries: CanarySet, make_rule: MakeRule = plain_rule) -> Finding:
    """Whether a single canary adds at most C to a sum before noise; exact, so there is no probability in it."""
    engine = CanaryGradients(canaries, plan.blocks, plan.clipping_norm)
    records = canaries.records
    rule = make_rule(plan)
    longest = 0.0
    for number in range(min(len(records), 64)):
        batch = records.take(torch.tensor([number]), torch.device("cpu"))
        total = engine.clipped_sum(batch, rule)
        length = sum(float(value.double().square().sum()) for value in total.tensors.values()) ** 0.5
        longest = max(longest, length / plan.clipping_norm)
    passed = longest <= 1 + _ROUNDING
    return Finding(
        "clipping", plan.name, float(passed), passed, f"one record adds {longest:.6g} C to a sum, C allowed"
    )


def _skipped(name: str, noise: Noise) -> Finding:
    zero = int(noise.whole.sum())
    empty = int((noise.counts == 0).sum())
    return Finding(
        "no block skipped",
        name,
        0.0 if zero else 1.0,
        zero == 0,
        f"{zero} of {noise.whole.size} released blocks exactly zero; {empty} had no record",
    )


def _variance(name: str, noise: Noise, level: float, plan: StreamPlan) -> Finding:
    """Chi-square of every block over all steps, and of every step's block, against the public deviation."""
    steps, _, spare = noise.values.shape
    each = (noise.values**2).sum(axis=2)
    p_values = np.concatenate(
        [_two_sided(each.sum(axis=0), steps * spare), _two_sided(each.ravel(), spare)], axis=None
    )
    p = min(1.0, float(p_values.min()) * p_values.size)
    ratios = np.sqrt(each / spare)
    public = plan.noise_deviation / plan.denominator
    return Finding(
        "noise deviation",
        name,
        p,
        p > level,
        f"noise over the public {public:.4g}: {np.sqrt((noise.values**2).mean()):.4f} over all, "
        f"{ratios.min():.3f} to {ratios.max():.3f} in single blocks",
    )


def _follows_counts(name: str, noise: Noise, level: float) -> Finding:
    """Correlation of a block's noise with how many records it got: a denominator that is a count shows here."""
    spread = np.log(np.maximum((noise.values**2).mean(axis=2), 1e-300)).ravel()
    counts = noise.counts.ravel().astype(np.float64)
    r, p = _correlated(spread, counts)
    return Finding(
        "noise ignores counts", name, p, p > level, f"correlation of noise size and records {r:+.3f}"
    )


def _correlation(name: str, noise: Noise, level: float) -> Finding:
    """Between experts in each step, and between neighbouring and first and other steps."""
    steps, blocks, _ = noise.values.shape
    pairs = [(noise.values[:, i], noise.values[:, j]) for i, j in combinations(range(blocks), 2)]
    flat = noise.values.reshape(steps, -1)
    along = [(flat[i], flat[j]) for i, j in _step_pairs(steps)]
    return _independent("noise independent", name, [*pairs, *along], level)


def _across(name: str, one: Noise, other: Noise, level: float) -> Finding:
    """Between two streams, step by step and block by block as far as both have them."""
    steps = min(len(one.values), len(other.values))
    spare = min(one.values.shape[2], other.values.shape[2])
    pairs = [
        (one.values[:steps, i, :spare], other.values[:steps, j, :spare])
        for i in range(one.values.shape[1])
        for j in range(other.values.shape[1])
    ]
    return _independent("streams independent", name, pairs, level)


def _step_pairs(steps: int) -> list[tuple[int, int]]:
    return [(step, step + 1) for step in range(steps - 1)] + [(0, step) for step in range(2, steps)]


def _independent(check: str, name: str, pairs: list[tuple[Values, Values]], level: float) -> Finding:
    if not pairs:
        return Finding(check, name, 1.0, True, "one block and one step: nothing to compare")
    found = [_correlated(one.ravel(), other.ravel()) for one, other in pairs]
    p = min(1.0, min(value for _, value in found) * len(found))
    largest = max(abs(r) for r, _ in found)
    return Finding(check, name, p, p > level, f"largest of {len(found)} correlations {largest:.3f}")


def _correlated(one: Values, other: Values) -> tuple[float, float]:
    """Correlation and its two-sided p-value, by Fisher's transform; (0, 1) where one of them is constant."""
    if len(one) < 4 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0, 1.0
    r = float(np.corrcoef(one, other)[0, 1])
    z = np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15)) * np.sqrt(len(one) - 3)
    return r, float(2 * norm.sf(abs(z)))


def _two_sided(values: Values, freedom: int) -> Values:
    return np.asarray(
        np.minimum(1.0, 2 * np.minimum(chi2.sf(values, freedom), chi2.cdf(values, freedom))), dtype=np.float64
    )
