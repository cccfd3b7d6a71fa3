"""Entropy, chi-square, the paired bootstrap and the layer rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.errors import ParameterError
from raptor.moe.statistics import (
    bootstrap_deficits,
    choose_layers,
    load_statistics,
    owner_histogram,
    profile_layers,
    vote_agreement,
)

histograms = (
    st.lists(st.integers(0, 2000), min_size=1, max_size=64)
    .filter(any)
    .map(lambda c: np.array(c, dtype=np.int64))
)


def draw(shares: list[float], records: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(shares), size=records, p=shares).astype(np.int64)


def profile(owners: dict[int, np.ndarray], experts: dict[int, int] | None = None, resamples: int = 200):
    experts = experts or dict.fromkeys(owners, 8)
    return profile_layers(owners, owners, experts, resamples)


@given(histograms)
def test_entropy_and_chi2_bound_each_other(counts: np.ndarray) -> None:
    load = load_statistics(counts)
    deficit = math.log(counts.size) - load.entropy
    assert math.expm1(deficit) <= load.chi2 + 1e-9
    assert load.chi2 <= counts.size * deficit + 1e-9


@given(histograms)
def test_bounds(counts: np.ndarray) -> None:
    load = load_statistics(counts)
    size = counts.size
    assert 0 <= load.entropy <= math.log(size)
    assert 0 <= load.normalised_entropy <= 1
    assert -1e-12 <= load.chi2 <= size - 1 + 1e-9
    assert load.min_share <= 1 / size + 1e-12
    assert load.max_share >= 1 / size - 1e-12
    assert load.entropy >= -math.log(load.max_share) - 1e-12
    assert sum(load.counts) == load.records


@given(histograms, st.randoms(use_true_random=False))
def test_renaming_the_experts_changes_nothing_but_the_counts(counts: np.ndarray, random) -> None:
    renamed = counts.tolist()
    random.shuffle(renamed)
    first, second = load_statistics(counts), load_statistics(np.array(renamed, dtype=np.int64))
    assert second.entropy == pytest.approx(first.entropy, abs=1e-12)
    assert second.chi2 == pytest.approx(first.chi2, rel=1e-9, abs=1e-12)
    assert (second.max_share, second.min_share) == (first.max_share, first.min_share)


def test_known_values() -> None:
    load = load_statistics(np.array([1, 1, 2, 0]))
    assert load.entropy == pytest.approx(1.5 * math.log(2))
    assert load.normalised_entropy == pytest.approx(0.75)
    assert load.chi2 == pytest.approx(4 * (2 / 16 + 4 / 16) - 1)
    assert load.miller_madow_correction == pytest.approx(2 / 8)
    assert load.counts == (1, 1, 2, 0)


def test_one_expert_owns_all() -> None:
    load = load_statistics(np.array([0, 7, 0, 0]))
    assert (load.entropy, load.normalised_entropy, load.max_share, load.min_share) == (0.0, 0.0, 1.0, 0.0)
    assert load.chi2 == pytest.approx(3)


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_a_histogram_without_records_is_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="positive sum"):
        load_statistics(np.array(counts, dtype=np.int64))


@pytest.mark.parametrize("owners", [[], [0, 4], [-1, 0]])
def test_owners_out_of_range_are_refused(owners: list[int]) -> None:
    with pytest.raises(ValueError, match="owner"):
        owner_histogram(np.array(owners, dtype=np.int64), 4)


def test_standard_error_agrees_with_fresh_samples() -> None:
    shares, records = [0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05], 2000
    entropies = [
        load_statistics(owner_histogram(draw(shares, records, seed), 8)).entropy for seed in range(400)
    ]
    reported = profile({0: draw(shares, records, 1000)}, resamples=400).layers[0].entropy_standard_error
    assert reported == pytest.approx(np.std(entropies), rel=0.2)


def test_miller_madow_is_the_size_of_the_bias() -> None:
    shares, records = [0.4, 0.3, 0.2, 0.1], 100
    loads = [load_statistics(owner_histogram(draw(shares, records, seed), 4)) for seed in range(3000)]
    truth = -sum(share * math.log(share) for share in shares)
    bias = truth - float(np.mean([load.entropy for load in loads]))
    assert bias == pytest.approx(np.mean([load.miller_madow_correction for load in loads]), rel=0.2)


def test_the_bootstrap_is_paired() -> None:
    """Two layers that all but agree differ far more surely than two independent layers of the same loads."""
    shares = [0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05]
    base = draw(shares, 3000, 1)
    near = base.copy()
    near[:40] = 0
    independent = np.random.default_rng(2).permutation(near)
    paired = profile({0: base, 1: near}).gaps[0]
    unpaired = profile({0: base, 1: independent}).gaps[0]
    assert paired.gap == pytest.approx(unpaired.gap)
    assert paired.standard_error < 0.5 * unpaired.standard_error


def test_a_renamed_layer_has_a_gap_without_error() -> None:
    base = draw([0.4, 0.3, 0.2, 0.1], 500, 3)
    gap = profile({0: base, 1: 3 - base}, {0: 4, 1: 4}).gaps[0]
    assert gap.gap == pytest.approx(0, abs=1e-12)
    assert gap.standard_error == pytest.approx(0, abs=1e-12)


def test_bootstrap_resamples_every_record_of_all_layers_alike() -> None:
    owners = {1: np.array([0, 1]), 2: np.array([1, 0])}
    deficits = bootstrap_deficits(owners, {1: 2, 2: 2}, 64, np.random.default_rng(0))
    assert np.array_equal(deficits[1], deficits[2])
    assert set(np.round(deficits[1], 9)) == {0.0, round(math.log(2), 9)}


def test_bootstrap_refuses_maps_of_different_records_and_too_few_resamples() -> None:
    owners = {0: np.array([0, 1]), 1: np.array([0, 1, 1])}
    with pytest.raises(ValueError, match="same records"):
        bootstrap_deficits(owners, {0: 2, 1: 2}, 10, np.random.default_rng(0))
    with pytest.raises(ValueError, match="2 resamples"):
        bootstrap_deficits({0: owners[0]}, {0: 2}, 1, np.random.default_rng(0))


def test_agreement_rate() -> None:
    assert vote_agreement(np.array([0, 1, 2, 3]), np.array([0, 1, 3, 3])) == 0.75
    with pytest.raises(ValueError, match="same records"):
        vote_agreement(np.array([0]), np.array([0, 1]))


def test_a_clear_winner_is_significant() -> None:
    owners = {
        2: draw([0.65] + [0.05] * 7, 2000, 1),
        5: draw([1 / 8] * 8, 2000, 2),
        7: draw([0.3] + [0.1] * 7, 2000, 3),
    }
    choice = choose_layers(profile(owners))
    assert (choice.layer, choice.runner_up, choice.significant) == (5, 7, True)
    assert choice.gap is not None
    assert choice.gap_standard_error is not None
    assert choice.gap >= 2 * choice.gap_standard_error
    assert (choice.not_distinguished, choice.candidates, choice.experts) == ((), (2, 5, 7), 8)
    assert choice.rule == "argmax entropy"


def test_a_gap_within_the_error_is_not_called_a_winner_but_still_chosen() -> None:
    shares = [0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    table = profile({0: draw(shares, 1000, 5), 1: draw(shares, 1000, 6), 2: np.zeros(1000, dtype=np.int64)})
    choice = choose_layers(table)
    best = max(table.layers, key=lambda row: row.load.entropy)
    assert (choice.layer, choice.entropy) == (best.layer, best.load.entropy)
    assert choice.significant is False
    assert choice.not_distinguished == (1 - best.layer,)


def test_ties_go_to_the_lowest_index_and_are_never_significant() -> None:
    base = draw([0.4, 0.3, 0.2, 0.1], 400, 3)
    table = profile({9: base, 3: 3 - base, 6: base}, {9: 4, 3: 4, 6: 4})
    choice = choose_layers(table)
    assert (choice.layer, choice.runner_up, choice.significant) == (3, 6, False)
    assert choice.not_distinguished == (6, 9)


def test_layers_of_different_width_are_compared_by_their_deficit() -> None:
    """Sixteen experts with an idle half have more entropy than four even ones, and are the worse choice."""
    wide, narrow = np.arange(1600) % 8, np.arange(1600) % 4
    table = profile({0: wide, 1: narrow}, {0: 16, 1: 4})
    assert table.layers[0].load.entropy > table.layers[1].load.entropy
    choice = choose_layers(table)
    assert (choice.layer, choice.experts, choice.rule) == (1, 4, "argmin log E - entropy")
    assert choice.gap == pytest.approx(math.log(2))


def test_candidates_restrict_the_choice_and_its_runner_up() -> None:
    owners = {
        0: draw([1 / 8] * 8, 2000, 1),
        1: draw([0.3] + [0.1] * 7, 2000, 2),
        2: draw([0.65] + [0.05] * 7, 2000, 3),
    }
    table = profile(owners)
    choice = choose_layers(table, [2, 1])
    assert (choice.layer, choice.runner_up, choice.candidates) == (1, 2, (1, 2))
    pair = next(gap for gap in table.gaps if (gap.first, gap.second) == (1, 2))
    assert (choice.gap, choice.gap_standard_error) == (pair.gap, pair.standard_error)


def test_a_single_candidate_has_no_runner_up() -> None:
    choice = choose_layers(profile({4: draw([0.5, 0.5], 100, 0)}, {4: 2}))
    assert (choice.layer, choice.runner_up, choice.gap, choice.gap_standard_error) == (4, None, None, None)
    assert (choice.significant, choice.rule) == (True, "only candidate")


@pytest.mark.parametrize("candidates", [[3], [0, 3], []])
def test_unknown_candidates_are_named(candidates: list[int]) -> None:
    with pytest.raises(ParameterError, match=r"sparse layers of the base model are \[0, 1\]"):
        choose_layers(profile({0: np.array([0, 1]), 1: np.array([1, 1])}, {0: 2, 1: 2}, 10), candidates)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_the_choice_is_the_smallest_deficit_and_its_gap_the_next(seed: int, layers: int) -> None:
    generator = np.random.default_rng(seed)
    owners = {layer: generator.integers(generator.integers(1, 5), size=60) for layer in range(layers)}
    table = profile(owners, dict.fromkeys(owners, 4), resamples=5)
    choice = choose_layers(table)
    deficits = {row.layer: row.load.entropy_deficit for row in table.layers}
    assert deficits[choice.layer] == pytest.approx(min(deficits.values()), abs=1e-12)
    assert choice.gap is not None
    assert choice.gap >= 0
    others = [deficit for layer, deficit in deficits.items() if layer != choice.layer]
    assert choice.gap == pytest.approx(min(others) - deficits[choice.layer], abs=1e-12)


def test_the_profile_is_the_same_twice() -> None:
    owners = {0: draw([0.5, 0.3, 0.2], 300, 1), 1: draw([0.4, 0.3, 0.3], 300, 2)}
    assert profile(owners, {0: 3, 1: 3}) == profile(owners, {0: 3, 1: 3})
