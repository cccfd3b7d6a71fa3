"""Bias and variance of the public denominator: formulas against the step itself, repeated."""

from __future__ import annotations

import numpy as np
import pytest

from raptor.diagnostics.estimator import (
    OwnerSums,
    draw_updates,
    errors,
    made_up_gradients,
    owner_sums,
    unbiased_mean_squares,
)
from raptor.diagnostics.failure_modes import check_formulas
from raptor.diagnostics.signal import log_slope, signal

EXPERTS, RECORDS, WIDTH = 4, 400, 8
LOADS = (0.55, 0.3, 0.1, 0.05)
SETTING = {"batch_size": 64.0, "noise_multiplier": 0.8, "clipping_norm": 1.0}


@pytest.fixture(scope="module", name="made")
def _made() -> tuple[np.ndarray, np.ndarray, OwnerSums]:
    generator = np.random.default_rng(1)
    owners = np.repeat(np.arange(EXPERTS), (np.array(LOADS) * RECORDS).astype(int))
    gradients = made_up_gradients(RECORDS, WIDTH, 1.0, generator)
    return gradients, owners, owner_sums(gradients, owners, EXPERTS)


def test_bias_and_variance_are_those_of_the_formula(made: tuple[np.ndarray, np.ndarray, OwnerSums]) -> None:
    gradients, owners, sums = made
    repetitions = 20_000
    drawn = draw_updates(
        gradients,
        owners,
        EXPERTS,
        repetitions=repetitions,
        generator=np.random.default_rng(2),
        **SETTING,
    )
    expected = errors(sums, rate=64 / RECORDS, **SETTING)
    variance = expected.sampling + expected.noise
    assert drawn.variance == pytest.approx(variance, rel=0.02)
    means = np.stack([gradients[owners == expert].mean(axis=0) for expert in range(EXPERTS)])
    # The squared bias, less what the finite number of repetitions adds to it.
    found = ((drawn.mean - means) ** 2).sum(axis=1) - variance / repetitions
    assert found == pytest.approx(expected.bias, rel=0.05, abs=3e-3)
    assert np.linalg.norm(drawn.mean - EXPERTS * np.array(LOADS)[:, None] * means, axis=1) == pytest.approx(
        0.0, abs=5 * float(np.sqrt(variance.max() / repetitions))
    )


def test_only_the_bias_depends_on_how_uneven_the_loads_are() -> None:
    sums = {
        name: OwnerSums(np.array(loads), np.full(4, 0.3), np.full(4, 0.8), np.full(4, 10))
        for name, loads in {"even": (0.25,) * 4, "uneven": LOADS}.items()
    }
    even, uneven = (errors(sums[name], rate=0.1, **SETTING) for name in ("even", "uneven"))
    assert even.bias.sum() == 0 < uneven.bias.sum()
    assert uneven.sampling.sum() == pytest.approx(even.sampling.sum())
    assert uneven.noise == pytest.approx(even.noise)
    # The mean over experts of the squared relative bias is chi2.
    assert uneven.bias.mean() / 0.3 == pytest.approx(4 * sum((load - 0.25) ** 2 for load in LOADS))


def test_the_check_of_a_run_sees_agreement() -> None:
    owners = np.repeat(np.arange(3), [500, 300, 200])
    check = check_formulas(owners, 3, 0.05, 0.7, np.random.default_rng(3))
    assert check.variance < 0.1
    assert check.mean < 4


def test_the_mean_of_few_records_is_estimated_without_their_spread() -> None:
    generator = np.random.default_rng(4)
    mean = np.array([0.3, 0.0, 0.0])
    found = []
    for _ in range(4000):
        part = mean + 0.5 * generator.standard_normal((6, 3))
        sums, squares = (part.sum(axis=0) ** 2).sum(), (part**2).sum()
        found.append(unbiased_mean_squares(np.array([sums]), np.array([squares]), np.array([6.0]))[0])
    assert np.mean(found) == pytest.approx(0.09, abs=0.01)
    assert np.isnan(unbiased_mean_squares(np.array([1.0]), np.array([1.0]), np.array([1.0]))[0])


@pytest.mark.parametrize(("mean", "square", "slope"), [(1.0, 1.0, 1.0), (0.0, 1.0, 0.5)])
def test_the_slope_is_one_where_records_agree_and_a_half_where_they_do_not(
    mean: float, square: float, slope: float
) -> None:
    loads = np.array(LOADS)
    sums = OwnerSums(loads, np.full(4, mean), np.full(4, square), np.full(4, 100))
    found = signal(sums, rate=0.01, batch_size=4096, noise_multiplier=2.0, clipping_norm=1.0)
    assert found.slope == pytest.approx(slope, abs=0.01)
    assert (found.measured <= found.ceiling * 1.02).all()
    assert found.ceiling == pytest.approx(4096 * loads / (2.0 * 10.0))


def test_the_ceiling_of_the_published_setting() -> None:
    """switch-base-8, B = 1024, even loads, adapters of rank 8: 0.74 at sigma 0.7 and 0.23 at 2.2."""
    even = OwnerSums(np.full(8, 0.125), np.ones(8), np.ones(8), np.full(8, 61_440))
    for noise, ceiling in ((0.7, 0.74), (2.2, 0.23)):
        found = signal(even, rate=0.01, batch_size=1024, noise_multiplier=noise, clipping_norm=1.0)
        assert found.ceiling == pytest.approx(ceiling, abs=0.01)
        assert np.isnan(found.slope)


def test_a_slope_needs_two_different_loads() -> None:
    assert np.isnan(log_slope(np.array([0.5, 0.5]), np.array([1.0, 2.0])))
    assert np.isnan(log_slope(np.array([0.5, 0.4]), np.array([1.0, 0.0])))
