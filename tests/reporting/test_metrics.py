"""Metrics from the two tables: by hand, against scikit-learn, and errors against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raptor.errors import DataError, ParameterError
from raptor.reporting.metrics import (
    Estimate,
    _total,
    accuracy,
    calibration_error,
    compute_metrics,
    gain_kept,
    is_measurable,
    largest_class,
    macro_f1,
    readable_records,
    recall,
    total_noise,
)
from raptor.reporting.tables import EvaluationTables, tables_from_probabilities

HAND = np.array([[5.0, 1.0, 0.0], [2.0, 3.0, 1.0], [0.0, 2.0, 6.0]])
RELIABILITY = np.array([[10.0, 4.0, 3.0], [10.0, 8.0, 9.0]])


def random_answers(records: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.choice(classes, size=records, p=generator.dirichlet(np.full(classes, 3.0)))
    logits = generator.normal(size=(records, classes)) + 1.5 * np.eye(classes)[labels]
    exponent = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponent / exponent.sum(axis=1, keepdims=True), labels


def test_every_metric_by_hand() -> None:
    metrics = compute_metrics(EvaluationTables(HAND, RELIABILITY))
    assert metrics.records == 20
    assert metrics.accuracy.value == pytest.approx(14 / 20)
    assert metrics.largest_class.value == pytest.approx(8 / 20)
    assert [r.value for r in metrics.recall] == pytest.approx([5 / 6, 3 / 6, 6 / 8])
    assert metrics.macro_f1.value == pytest.approx((10 / 13 + 6 / 12 + 12 / 15) / 3)
    assert metrics.calibration_error.value == pytest.approx((1 + 1) / 20)
    assert metrics.accuracy.sampling_error == pytest.approx(math.sqrt(0.7 * 0.3 / 20))
    assert metrics.largest_class.sampling_error == pytest.approx(math.sqrt(0.4 * 0.6 / 20))
    assert metrics.recall[2].sampling_error == pytest.approx(math.sqrt(0.75 * 0.25 / 8))
    assert metrics.accuracy.noise_error == 0.0


def test_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, recall_score

    probabilities, labels = random_answers(700, 6)
    predicted = probabilities.argmax(axis=1)
    tables = tables_from_probabilities(probabilities, labels, bins=10)
    assert np.array_equal(tables.confusion, confusion_matrix(labels, predicted, labels=range(6)))
    assert accuracy(tables).value == pytest.approx(accuracy_score(labels, predicted))
    assert macro_f1(tables).value == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert [r.value for r in recall(tables)] == pytest.approx(
        list(recall_score(labels, predicted, average=None))
    )


def test_a_class_without_records_or_answers_counts_as_zero_like_in_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    labels = np.array([0, 0, 1, 1, 1])
    predicted = np.array([0, 1, 1, 1, 0])
    tables = tables_from_probabilities(np.eye(4)[predicted], labels, bins=5)
    expected = f1_score(labels, predicted, labels=range(4), average="macro", zero_division=0)
    assert macro_f1(tables).value == pytest.approx(expected)
    assert [r.value for r in recall(tables)][2:] == [0.0, 0.0]


def test_calibration_error_is_the_textbook_sum_over_bins() -> None:
    probabilities, labels = random_answers(900, 4, seed=3)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for low in np.arange(10) / 10:
        inside = (confidence >= low) & (confidence < low + 0.1 if low < 0.9 else confidence <= 1)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    tables = tables_from_probabilities(probabilities, labels, bins=10)
    assert calibration_error(tables).value == pytest.approx(expected, abs=1e-9)


def test_full_confidence_falls_into_the_last_bin_and_nothing_is_lost() -> None:
    tables = tables_from_probabilities(np.eye(2)[[0, 1, 1]], np.array([0, 1, 0]), bins=10)
    assert tables.reliability[-1].tolist() == [3.0, 3.0, 2.0]
    assert tables.reliability[:-1].sum() == 0


def test_one_record_moves_the_tables_by_at_most_their_sensitivity() -> None:
    probabilities, labels = random_answers(60, 5, seed=1)
    whole = tables_from_probabilities(probabilities, labels, bins=7)
    for index in range(60):
        keep = np.arange(60) != index
        less = tables_from_probabilities(probabilities[keep], labels[keep], bins=7)
        assert np.linalg.norm(whole.confusion - less.confusion) == pytest.approx(1.0)
        assert np.linalg.norm(whole.reliability - less.reliability) <= math.sqrt(3) + 1e-12
        assert (whole.reliability != less.reliability).any(axis=1).sum() == 1


def test_a_record_without_finite_probabilities_adds_no_more_than_another() -> None:
    probabilities = np.array([[0.4, 0.6], [np.nan, np.inf]])
    tables = tables_from_probabilities(probabilities, np.array([1, 1]), bins=4)
    assert tables.confusion.tolist() == [[0, 0], [1, 1]]
    assert tables.reliability[0].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("labels", "bins", "error"),
    [([0, 5], 5, DataError), ([-1, 0], 5, DataError), ([0], 5, DataError), ([0, 1], 0, ParameterError)],
)
def test_bad_answers_are_refused(labels: list[int], bins: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        tables_from_probabilities(np.full((2, 3), 1 / 3), np.array(labels), bins)


@pytest.mark.parametrize("metric", [accuracy, macro_f1, largest_class, calibration_error])
def test_noise_error_is_the_spread_over_noise_draws(metric) -> None:
    probabilities, labels = random_answers(4000, 5, seed=2)
    exact = tables_from_probabilities(probabilities, labels, bins=5)
    generator = np.random.default_rng(0)
    values, claimed = [], []
    for _ in range(600):
        noisy = EvaluationTables(
            exact.confusion + generator.normal(scale=5.0, size=exact.confusion.shape),
            exact.reliability + generator.normal(scale=5.0, size=exact.reliability.shape),
            confusion_noise=5.0,
            reliability_noise=5.0,
        )
        estimate = metric(noisy)
        values.append(estimate.value)
        claimed.append(estimate.noise_error)
    assert np.mean(claimed) == pytest.approx(np.std(values), rel=0.12)


@pytest.mark.parametrize("metric", [accuracy, macro_f1, largest_class, calibration_error])
def test_sampling_error_is_the_spread_over_held_out_sets(metric) -> None:
    values, claimed = [], []
    probabilities, labels = random_answers(60_000, 4, seed=5)
    for start in range(0, 60_000, 300):
        piece = slice(start, start + 300)
        estimate = metric(tables_from_probabilities(probabilities[piece], labels[piece], bins=5))
        values.append(estimate.value)
        claimed.append(estimate.sampling_error)
    assert np.mean(claimed) == pytest.approx(np.std(values), rel=0.2)


def test_noise_on_many_empty_cells_does_not_bias_the_accuracy() -> None:
    generator = np.random.default_rng(4)
    confusion = np.diag(np.full(30, 20.0))
    confusion[0, 1] = 150.0
    truth = 600 / 750
    values = [
        accuracy(
            EvaluationTables(confusion + generator.normal(scale=2.0, size=confusion.shape), RELIABILITY)
        ).value
        for _ in range(200)
    ]
    assert np.mean(values) == pytest.approx(truth, abs=0.02)
    clamped = np.maximum(confusion + generator.normal(scale=2.0, size=confusion.shape), 0)
    assert (
        accuracy(EvaluationTables(clamped, RELIABILITY)).value < truth - 0.2
    )  # what clamping cells would do


def test_with_many_classes_the_small_table_steadies_the_accuracy() -> None:
    probabilities, labels = random_answers(3000, 60, seed=6)
    exact = tables_from_probabilities(probabilities, labels, bins=10)
    generator = np.random.default_rng(1)
    values, claimed, alone = [], [], []
    for _ in range(300):
        noisy = EvaluationTables(
            exact.confusion + generator.normal(scale=10.0, size=exact.confusion.shape),
            exact.reliability + generator.normal(scale=10.0 * math.sqrt(3), size=exact.reliability.shape),
            10.0,
            10.0 * math.sqrt(3),
        )
        estimate = accuracy(noisy)
        values.append(estimate.value)
        claimed.append(estimate.noise_error)
        alone.append(np.trace(noisy.confusion) / noisy.confusion.sum())
    assert np.mean(claimed) == pytest.approx(np.std(values), rel=0.15)
    truth = accuracy(exact).value
    assert np.mean(values) == pytest.approx(truth, abs=0.01)
    # The matrix alone has 3600 noisy cells in its total: 600 records of noise in 3000.
    assert np.std(values) < 0.5 * np.std(alone)


def test_metrics_of_noisy_tables_stay_between_zero_and_one() -> None:
    generator = np.random.default_rng(9)
    for _ in range(100):
        confusion = np.diag([3.0, 2.0, 1.0]) + generator.normal(scale=4.0, size=(3, 3))
        reliability = generator.normal(loc=1.0, scale=4.0, size=(4, 3))
        if confusion.sum() <= 0 or reliability[:, 0].sum() <= 0:
            continue
        metrics = compute_metrics(EvaluationTables(confusion, reliability, 4.0, 4.0))
        estimates = (metrics.accuracy, metrics.macro_f1, metrics.largest_class, metrics.calibration_error)
        for estimate in (*estimates, *metrics.recall):
            assert 0 <= estimate.value <= 1
            assert math.isfinite(estimate.standard_error)


def test_a_number_of_records_must_stand_out_of_its_noise() -> None:
    needed = readable_records(3.0, classes=3, bins=2)
    for records, measurable in ((needed, True), (needed - 1, False), (-needed, False)):
        share = np.full((3, 3), records / 9)
        table = np.array([[records / 2, 0.0, 0.0]] * 2)
        tables = EvaluationTables(share, table, 3.0, 3.0 * math.sqrt(3))
        assert is_measurable(tables) is measurable
    assert is_measurable(EvaluationTables(HAND, RELIABILITY))
    assert not is_measurable(EvaluationTables(0 * HAND, 0 * RELIABILITY))


def test_the_noise_on_the_number_of_records_is_what_simulation_says() -> None:
    generator = np.random.default_rng(3)
    zero = EvaluationTables(np.zeros((3, 3)), np.zeros((4, 3)), 2.0, 2.0 * math.sqrt(3))
    totals = []
    for _ in range(4000):
        noisy = EvaluationTables(
            generator.normal(scale=2.0, size=(3, 3)),
            generator.normal(scale=2.0 * math.sqrt(3), size=(4, 3)),
            2.0,
            2.0 * math.sqrt(3),
        )
        totals.append(_total(noisy)[0])
    assert np.std(totals) == pytest.approx(total_noise(zero), rel=0.05)


def test_tables_without_records_have_no_metrics() -> None:
    with pytest.raises(DataError, match="no records"):
        accuracy(EvaluationTables(np.array([[-1.0, 0.0], [0.0, 0.5]]), RELIABILITY))


@pytest.mark.parametrize(
    "change",
    [
        {"confusion": np.zeros((2, 3))},
        {"reliability": np.zeros((4, 2))},
        {"confusion": np.full((2, 2), np.nan)},
        {"confusion_noise": -1.0},
        {"reliability_noise": math.inf},
    ],
)
def test_unusable_tables_are_refused(change: dict[str, object]) -> None:
    with pytest.raises((DataError, ParameterError)):
        EvaluationTables(**{"confusion": HAND, "reliability": RELIABILITY, **change})  # type: ignore[arg-type]


def test_tables_survive_json() -> None:
    import json

    tables = EvaluationTables(HAND, RELIABILITY, 2.0, 3.0)
    back = EvaluationTables.from_json(json.loads(json.dumps(tables.to_json(), allow_nan=False)))
    assert np.array_equal(back.confusion, HAND)
    assert np.array_equal(back.reliability, RELIABILITY)
    assert (back.confusion_noise, back.reliability_noise, back.is_exact) == (2.0, 3.0, False)
    with pytest.raises(DataError, match="run the evaluation pipeline"):
        EvaluationTables.from_json({"confusion": [[1.0]]})


def test_gain_kept_by_hand_and_its_error_by_simulation() -> None:
    private, reference, floor = Estimate(0.5, 0.01), Estimate(0.7, 0.01), Estimate(0.2, 0.005)
    kept = gain_kept(private, reference, floor)
    assert kept is not None
    assert kept.value == pytest.approx(0.6)
    generator = np.random.default_rng(0)
    p, r, f = (generator.normal(e.value, e.sampling_error, 20_000) for e in (private, reference, floor))
    assert kept.sampling_error == pytest.approx(np.std((p - f) / (r - f)), rel=0.05)
    assert gain_kept(private, floor, floor) is None
