"""From a table of completions to metrics, and what one record can move."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.errors import DataError, ParameterError
from raptor.reporting.completion_report import completion_figure, completion_numbers, completion_verdict
from raptor.reporting.completions import (
    SENSITIVITY,
    CompletionTable,
    compare_completions,
    compute,
    readable_completions,
    table_of,
)
from raptor.reporting.evaluation import evaluation_from_json, evaluation_to_json
from raptor.reporting.methods import BASE, RAPTOR

BOUND = 3.0
LOSSES = np.array([0.5, 1.0, 2.0, 9.0, 0.0])
EXACT = np.array([True, False, False, False, True])
COUNTED = np.array([True, True, True, True, False])


def table(noise: float = 0.0) -> CompletionTable:
    exact = table_of(LOSSES, EXACT, COUNTED, BOUND)
    return CompletionTable(exact.sums, BOUND, noise)


def test_metrics_are_those_of_the_records() -> None:
    metrics = compute(table())
    cut = np.array([0.5, 1.0, 2.0, BOUND])
    assert metrics.records == 4
    assert metrics.exact_match.value == 0.25
    assert metrics.loss.value == pytest.approx(cut.mean())
    assert metrics.perplexity == pytest.approx(math.exp(cut.mean()))
    assert metrics.loss.sampling_error == pytest.approx(cut.std() / 2)
    assert metrics.exact_match.sampling_error == pytest.approx(math.sqrt(0.25 * 0.75 / 4))
    assert metrics.loss.noise_error == 0
    low, high = metrics.perplexity_range
    assert low < metrics.perplexity < high


@given(
    losses=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5),
    exact=st.booleans(),
    counted=st.booleans(),
    bound=st.floats(0.1, 100),
)
def test_a_record_moves_the_table_by_the_sensitivity_at_most(losses, exact, counted, bound) -> None:
    """Whatever its loss is, also no number at all."""
    some = np.array(losses)
    flags = np.full(len(losses), exact), np.full(len(losses), counted)
    whole = table_of(some, *flags, bound)
    without = table_of(some[1:], *(flag[1:] for flag in flags), bound)
    assert np.linalg.norm(whole.sums - without.sums) <= SENSITIVITY * (1 + 1e-9)


def test_noise_blurs_ratios_as_it_is_drawn() -> None:
    exact = CompletionTable(np.array([1000.0, 400.0, 300.0, 150.0]), BOUND)
    generator = np.random.default_rng(0)
    drawn = [
        compute(CompletionTable(exact.sums + 20 * generator.standard_normal(4), BOUND, 20.0))
        for _ in range(2000)
    ]
    told = compute(CompletionTable(exact.sums, BOUND, 20.0))
    assert np.std([one.exact_match.value for one in drawn]) == pytest.approx(
        told.exact_match.noise_error, rel=0.1
    )
    assert np.std([one.loss.value for one in drawn]) == pytest.approx(told.loss.noise_error, rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_metrics_survive_json(noise: float) -> None:
    tables = {RAPTOR: table(noise), BASE: table(noise)}
    made = json.loads(json.dumps(evaluation_to_json(tables, (BASE,), records_are_public=noise == 0)))
    assert made["measurable"]
    assert made["methods"][RAPTOR]["perplexity"] == pytest.approx(compute(table(noise)).perplexity)
    assert made["methods"][RAPTOR]["exact_match"] == pytest.approx(0.25)
    back = evaluation_from_json(made)
    assert back.baselines == (BASE,)
    assert back.records_are_public is (noise == 0)
    assert evaluation_to_json(back.tables, back.baselines, back.records_are_public) == made


def test_what_is_lost_in_the_noise_is_null_and_said() -> None:
    noise = 4 / readable_completions(1.0) * SENSITIVITY * 1.01
    comparison = compare_completions({RAPTOR: table(noise)}, (), False)
    assert not comparison.is_measurable
    made = evaluation_to_json(comparison.tables, (), False)
    assert made["records"] is None
    assert set(made["methods"][RAPTOR].values()) == {None}
    assert set(made["methods"][RAPTOR]) == set(compute(table()).to_json())
    assert "not measurable" in completion_verdict(comparison, 1.0)
    assert [number for number, _, _ in completion_numbers(comparison)] == ["not measurable"] * 2


def test_the_report_says_both_figures_and_those_of_the_base_model() -> None:
    comparison = compare_completions({RAPTOR: table(), BASE: table()}, (BASE,), True)
    sentence = completion_verdict(comparison, 4.0)
    assert "25.0" in sentence
    assert "before it" in sentence
    assert "base model" in completion_numbers(comparison)[1][2]
    figure = completion_figure(comparison, 4.0)
    assert len(figure.axes) == 2


def test_unusable_tables_are_refused() -> None:
    with pytest.raises(DataError, match="four finite"):
        CompletionTable(np.zeros(3), BOUND)
    with pytest.raises(ParameterError, match="loss bound"):
        CompletionTable(np.zeros(4), 0.0)
    with pytest.raises(DataError, match="unusable"):
        CompletionTable.from_json({"records": 1})
    with pytest.raises(DataError, match="private model is missing"):
        compare_completions({}, (), True)
