"""Coins and normals: right distributions, nothing repeated, nothing shared."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from raptor.dp.sampling import PoissonSampler
from raptor.dp.streams import BLOCK, RandomSource
from raptor.errors import ParameterError


def test_normals_are_standard_normal() -> None:
    drawn = RandomSource.seeded(1).stream("noise").normals((200_000,)).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(drawn.var() - 1) < 0.02
    # The two halves of Box-Muller, which are those of each block, must not be tied to each other.
    whole = drawn[: len(drawn) // BLOCK * BLOCK].reshape(-1, 2, BLOCK // 2)
    first, second = whole[:, 0].ravel(), whole[:, 1].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(len(first))
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 4 / math.sqrt(len(first))


def test_tails_reach_beyond_a_float32_generator() -> None:
    """P(|z| > 4.5) is 6.8e-6: about 27 of four million draws."""
    beyond = int((RandomSource.seeded(2).stream("noise").normals((4_000_000,)).abs() > 4.5).sum())
    assert 10 <= beyond <= 50


def test_odd_and_empty_shapes() -> None:
    stream = RandomSource.seeded(3).stream("noise")
    assert stream.normals((3, 5)).shape == (3, 5)
    assert stream.normals((0,)).shape == (0,)
    assert stream.normals(()).shape == ()


@pytest.mark.parametrize("rate", [1e-4, 0.013, 0.5, 1.0])
def test_coins_have_the_rate(rate) -> None:
    count = 400_000
    hits = int(RandomSource.seeded(4).stream("coins").coins(count, rate).sum())
    assert abs(hits - count * rate) <= 5 * math.sqrt(count * rate * (1 - rate)) + 1e-9


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_rates_are_refused(rate) -> None:
    with pytest.raises(ParameterError):
        RandomSource.seeded(5).stream("coins").coins(10, rate)


def test_samples_are_binomial_and_records_independent() -> None:
    sampler = PoissonSampler(40, 0.2, RandomSource.seeded(6).stream("coins"))
    draws = np.zeros((5000, 40))
    for row in draws:
        row[sampler.draw().numpy()] = 1
    sizes = draws.sum(axis=1)
    assert abs(sizes.mean() - 8) < 5 * math.sqrt(6.4 / 5000)
    assert abs(sizes.var() - 6.4) < 0.8
    correlation = np.corrcoef(draws.T) - np.eye(40)
    assert np.abs(correlation).max() < 5 / math.sqrt(5000)


def test_coins_are_exact_to_the_last_bit(monkeypatch) -> None:
    """A rate in float32 would move the threshold by up to 2^-24 of itself."""
    threshold = math.floor(0.1 * 2**64)
    stream = RandomSource.seeded(4).stream("coins")
    words = np.array([0, threshold - 1, threshold, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(stream, "_words", lambda _count: words)
    assert stream.coins(4, 0.1).tolist() == [True, True, False, False]


def test_the_tail_reaches_twelve_deviations(monkeypatch) -> None:
    """All bits zero give the largest radius; one word of 53 bits would stop at 8.7."""
    stream = RandomSource.seeded(4).stream("noise")
    monkeypatch.setattr(stream, "_words", lambda count: np.zeros(count, dtype=np.uint64))
    assert 12.0 < float(stream.normals((2,)).max()) < 12.5


def test_an_empty_sample_stays_empty() -> None:
    sampler = PoissonSampler(40, 1e-9, RandomSource.seeded(6).stream("coins"))
    assert all(len(sampler.draw()) == 0 for _ in range(100))


@pytest.mark.parametrize("used", [1, 2, 3, 1001])
def test_a_stream_goes_on_where_another_stopped(used) -> None:
    """A word is half of a block of the cipher, so positions lie at blocks and within them."""
    first, second = (RandomSource.seeded(9).stream("coins") for _ in range(2))
    first.coins(used, 0.5)
    assert first.position == 8 * used
    second.seek(first.position)
    assert torch.equal(first.coins(500, 0.5), second.coins(500, 0.5))
    assert torch.equal(first.normals((7,)), second.normals((7,)))
    assert first.position == second.position


def test_secure_sources_never_repeat() -> None:
    first = RandomSource.secure().stream("noise").normals((100,))
    second = RandomSource.secure().stream("noise").normals((100,))
    assert not torch.isin(first, second).any()


def test_a_stream_never_repeats_itself_and_purposes_share_nothing() -> None:
    source = RandomSource.seeded(7)
    stream = source.stream("shared/noise")
    drawn = torch.cat(
        [stream.normals((500,)) for _ in range(4)] + [source.stream("expert/noise").normals((500,))]
    )
    assert len(drawn.unique()) == len(drawn)


def test_seeded_sources_repeat_and_say_so() -> None:
    assert torch.equal(
        RandomSource.seeded(8).stream("a").normals((9,)), RandomSource.seeded(8).stream("a").normals((9,))
    )
    assert not RandomSource.seeded(8).is_secure
    assert RandomSource.secure().is_secure
    assert RandomSource.seeded(8).name.startswith("seeded")


def test_a_source_does_not_show_its_key() -> None:
    key = bytes(range(32))
    assert key.hex() not in repr(RandomSource(key, "secure:test", True))
    with pytest.raises(ParameterError):
        RandomSource(b"short", "secure:test", True)
