"""Sum and noise are integers when they are added: nothing is rounded that depends on the sum."""

from __future__ import annotations

import math

import pytest
import torch

from raptor.accounting.plan import StreamPlan
from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.mechanism import LATTICE, GaussianMechanism, lattice_spacing
from raptor.dp.streams import RandomSource

NORM, DENOMINATOR, DIMENSION = 0.3, 24.0, 5000
SPACING = lattice_spacing(NORM, DIMENSION)


def released(total: torch.Tensor, sigma: float = 0.7) -> torch.Tensor:
    """One release with frozen noise, as lattice steps times the denominator."""
    plan = StreamPlan("shared", 0.5, sigma, 1, NORM, DENOMINATOR)
    mechanism = GaussianMechanism(plan, RandomSource.seeded(5).stream("x"), "seeded", [])  # type: ignore[arg-type]
    made = mechanism.release(ClippedSum({"w": total}, ClippingRule(NORM).sensitivity))["w"]
    assert made.dtype == total.dtype
    return made.double() / (SPACING / DENOMINATOR)


def noise(sigma: float) -> torch.Tensor:
    """The same noise in lattice steps: of deviation sigma C, and as much more as the lattice adds to C."""
    drawn = RandomSource.seeded(5).stream("x").normals((DIMENSION,))
    return (drawn * (sigma * NORM * (1 + LATTICE) / SPACING)).round()


@pytest.mark.parametrize("sigma", [0.01, 0.7, 300.0])
def test_sum_and_noise_are_added_as_integers(sigma: float) -> None:
    total = torch.randn(DIMENSION, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = total.clone()
    found = released(total, sigma)
    torch.testing.assert_close(found, found.round(), rtol=1e-15, atol=0)
    assert torch.equal(found.round(), (total / SPACING).round() + noise(sigma))
    assert torch.equal(total, kept)


def test_a_sum_off_the_lattice_releases_what_its_neighbour_on_it_releases() -> None:
    """Low bits of the sum, where the order of additions shows, do not reach the release."""
    total = (torch.randn(DIMENSION, dtype=torch.float64) / SPACING).round() * SPACING
    assert torch.equal(released(total), released(total + 0.49 * SPACING))
    assert torch.equal(released(total), released(total - 0.49 * SPACING))


def test_releases_in_float32_are_lattice_points_rounded() -> None:
    total = torch.randn(DIMENSION)
    expected = ((total.double() / SPACING).round() + noise(0.7)) * (SPACING / DENOMINATOR)
    assert torch.equal(released(total), expected.float().double() / (SPACING / DENOMINATOR))


def test_no_sum_is_so_large_that_it_swallows_the_noise() -> None:
    """Next to a large number float64 has gaps: noise would be lost in them, and show which sum it was."""
    for large in (1e6, 1e12, 1e30, -1e30):
        base = released(torch.full((DIMENSION,), large, dtype=torch.float64))
        centre = max(min(round(large / SPACING), 2**51), -(2**51))
        assert torch.equal((base - centre).round(), noise(0.7))


def test_a_zero_has_no_sign() -> None:
    found = released(torch.full((DIMENSION,), -0.1 * SPACING, dtype=torch.float64), sigma=1e-7)
    assert (found == 0).any()
    assert not torch.signbit(found[found == 0]).any()


@pytest.mark.parametrize("norm", [1e-12, 0.3, 1.0, 2.0, 7e8])
@pytest.mark.parametrize("dimension", [1, 2, 4, 1000, 10**6, 10**10])
def test_the_lattice_adds_next_to_nothing_to_the_sensitivity(norm: float, dimension: int) -> None:
    spacing = lattice_spacing(norm, dimension)
    assert math.frexp(spacing)[0] == 0.5
    # Two roundings, each by at most half a step, in every coordinate.
    assert 0.499 * LATTICE * norm <= spacing * math.sqrt(dimension) <= LATTICE * norm * (1 + 1e-15)
