"""Canaries pass through the real steps: sampled by coins, clipped to C, noised, and seen at their own coordinate."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from raptor.audit.canaries import (
    CanaryGradients,
    CanarySet,
    Recorder,
    private_stream,
    run_schedule,
    run_trials,
)
from raptor.dp.clipping import ClippingRule
from raptor.dp.streams import RandomSource
from tests.audit.faults import one_release, scaled_noise, small_plan

CPU = torch.device("cpu")


def all_in(count: int, experts: int, spare: int = 0) -> CanarySet:
    return CanarySet(np.ones(count, dtype=np.bool_), experts, spare)


@pytest.mark.parametrize("blocks", [1, 4])
def test_clipped_gradients_are_orthogonal_and_of_norm_c(blocks: int) -> None:
    canaries = all_in(10, 4, spare=3)
    engine = CanaryGradients(canaries, blocks, 0.5)
    rows = []
    for number in range(10):
        batch = canaries.records.take(torch.tensor([number]), CPU)
        total = engine.clipped_sum(batch, ClippingRule(0.5))
        rows.append(torch.cat([total.tensors[name] for name in engine.parameters]))
    products = torch.stack(rows) @ torch.stack(rows).T
    assert torch.equal(products, torch.diag(products.diagonal()))
    assert (products.diagonal().sqrt() <= 0.5).all()
    assert (products.diagonal().sqrt() > 0.4998).all()
    assert canaries.block_size(blocks) == (13 if blocks == 1 else 6)


def test_a_canary_is_in_its_owners_block_alone() -> None:
    canaries = all_in(8, 4)
    engine = CanaryGradients(canaries, 4, 1.0)
    batch = canaries.records.take(torch.tensor([6]), CPU)
    assert batch.owners.tolist() == [2]
    total = engine.clipped_sum(batch, ClippingRule(1.0)).tensors
    assert [bool(total[name].any()) for name in engine.parameters] == [False, False, True, False]
    empty = engine.clipped_sum(batch.part(0, 0), ClippingRule(1.0))
    assert not any(value.any() for value in empty.tensors.values())
    assert empty.sensitivity.norm == 1.0


def test_without_noise_scores_are_the_coins() -> None:
    randomness = RandomSource.seeded(0)
    plan = one_release(1.0)
    canaries = CanarySet.draw(500, randomness, 8)
    scores = run_schedule([plan], canaries, randomness, make_mechanism=scaled_noise(0.0))
    assert ((scores > 0) == canaries.included).all()
    assert 150 < canaries.included.sum() < 350


def test_sampling_is_that_of_the_stream() -> None:
    randomness = RandomSource.seeded(1)
    plan = dataclasses.replace(small_plan().stream("expert"), rate=0.25, steps=40)
    canaries = all_in(400, 4)
    recorder = Recorder()
    stream = private_stream(plan, canaries, recorder, randomness, make_mechanism=scaled_noise(0.0))
    for _ in range(plan.steps):
        stream.step()
    drawn = np.stack(recorder.releases) != 0
    assert drawn.mean() == pytest.approx(0.25, abs=0.01)
    values = np.stack(recorder.releases)[drawn]
    assert values == pytest.approx(np.full(values.size, plan.clipping_norm / plan.denominator), rel=1e-3)


def test_trials_are_separate_releases_with_noise_of_the_plan() -> None:
    plan = dataclasses.replace(one_release(2.0), steps=600)
    scores, bits = run_trials(plan, 600, RandomSource.seeded(2))
    values = scores * plan.denominator / plan.clipping_norm
    assert values[bits].mean() - values[~bits].mean() == pytest.approx(1.0, abs=0.6)
    assert values[~bits].std() == pytest.approx(2.0, rel=0.15)
    assert len(set(scores.tolist())) == 600


def test_the_score_is_the_likelihood_ratio() -> None:
    from raptor.audit.canaries import Likelihood

    plan = small_plan().stream("shared")
    canaries = all_in(2, 1)
    observer = Likelihood(canaries, plan)
    observer.apply({"shared": torch.tensor([0.0, 1.0]) * plan.clipping_norm / plan.denominator})
    s, q = plan.noise_multiplier, plan.rate
    expected = [np.log(1 - q + q * np.exp((2 * y - 1) / (2 * s * s))) for y in (0.0, 1.0)]
    assert observer.scores == pytest.approx(expected)
