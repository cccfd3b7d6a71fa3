"""Accuracy, macro F1, recall, largest class and calibration error, with their standard errors.

Everything is a ratio of sums over the two tables of `EvaluationTables`. Of noisy tables the *sums* are
clamped to zero, not the cells: a cell-wise clamp would push every empty cell of a large matrix up by 0.4
standard deviations, and the total, a sum of K^2 cells, would be far too large. Cells are clamped where they
are shown. Both tables know how many records there are and how many were classified correctly; the two
answers are averaged with the weights that leave the least noise.

Two standard errors are told apart, both by the delta method on the gradient of a metric over the cells:
* sampling: another held-out set of the same size (cells are multinomial counts);
* noise: another draw of the noise on the same tables (zero when the tables are exact).

Where the noise leaves too little of the number of records, a ratio to it says nothing, and its error neither:
`is_measurable` decides that from the noisy tables and the public noise, so the decision is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from raptor.errors import DataError
from raptor.reporting.tables import CONFUSION_SENSITIVITY, RELIABILITY_SENSITIVITY, EvaluationTables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# A number of records below this many deviations of its own noise is no number to divide by: the accuracy would be
# off by half of its range.
READABLE = 4.0


@dataclass(frozen=True)
class Estimate:
    """A metric in [0, 1] with the standard errors of sampling and of the noise."""

    value: float
    sampling_error: float = 0.0
    noise_error: float = 0.0

    @property
    def standard_error(self) -> float:
        """Both errors together."""
        return hypot(self.sampling_error, self.noise_error)

    def to_json(self) -> dict[str, float]:
        """Plain numbers."""
        return {
            "value": self.value,
            "standard_error": self.standard_error,
            "sampling_error": self.sampling_error,
            "noise_error": self.noise_error,
        }


@dataclass(frozen=True)
class Metrics:
    """All metrics of one model; `recall` has one entry per class."""

    records: float
    accuracy: Estimate
    macro_f1: Estimate
    largest_class: Estimate
    calibration_error: Estimate
    recall: tuple[Estimate, ...]

    def to_json(self) -> dict[str, Any]:
        """Flat numbers for the scalars, so that a tracker shows them by name, and a list for the recall."""
        flat: dict[str, Any] = {}
        for name, estimate in (
            ("accuracy", self.accuracy),
            ("macro_f1", self.macro_f1),
            ("expected_calibration_error", self.calibration_error),
        ):
            flat[name] = estimate.value
            flat[f"{name}_standard_error"] = estimate.standard_error
            flat[f"{name}_noise_error"] = estimate.noise_error
        flat["recall"] = [estimate.to_json() for estimate in self.recall]
        return flat


def is_measurable(tables: EvaluationTables) -> bool:
    """Whether the noisy number of records stands out of its noise, so that ratios to it mean something."""
    total, _ = _total(tables)
    return total > max(READABLE * total_noise(tables), 0.0)


def total_noise(tables: EvaluationTables) -> float:
    """Standard deviation of the noise on the number of records that both tables give together."""
    classes, bins = len(tables.confusion), len(tables.reliability)
    return _total_noise(classes, bins, tables.confusion_noise, tables.reliability_noise)


def readable_records(noise_multiplier: float, classes: int, bins: int) -> int:
    """The fewest held-out records that are measurable, on average, under this noise; public facts alone."""
    confusion, reliability = (
        noise_multiplier * sensitivity for sensitivity in (CONFUSION_SENSITIVITY, RELIABILITY_SENSITIVITY)
    )
    return ceil(READABLE * _total_noise(classes, bins, confusion, reliability))


def compute_metrics(tables: EvaluationTables) -> Metrics:
    """All metrics of one model, whose tables must be measurable."""
    return Metrics(
        records=_sums(tables).total,
        accuracy=accuracy(tables),
        macro_f1=macro_f1(tables),
        largest_class=largest_class(tables),
        calibration_error=calibration_error(tables),
        recall=recall(tables),
    )


@dataclass(frozen=True)
class _Sums:
    """Records and correct answers from both tables, with the variances that the noise leaves on them.

    share: weight of the confusion matrix in `total`.
    """

    total: float
    correct: float
    share: float
    total_variance: float
    correct_variance: float
    covariance: float


def _sums(tables: EvaluationTables) -> _Sums:
    cells, rows = len(tables.confusion), len(tables.reliability)
    matrix, table = tables.confusion_noise**2, tables.reliability_noise**2
    right = _weight(cells * matrix, rows * table)
    correct = tables.reliability[:, 2].sum()
    total, share = _total(tables)
    if total <= 0:
        raise DataError("These evaluation tables hold no records: ask is_measurable before a metric of them.")
    return _Sums(
        total=total,
        correct=right * float(np.trace(tables.confusion)) + (1 - right) * float(correct),
        share=share,
        total_variance=share**2 * cells**2 * matrix + (1 - share) ** 2 * rows * table,
        correct_variance=right**2 * cells * matrix + (1 - right) ** 2 * rows * table,
        # The diagonal is part of the total of the matrix; columns of the other table have noise of their own.
        covariance=share * right * cells * matrix,
    )


def _total(tables: EvaluationTables) -> tuple[float, float]:
    """The number of records that both tables give together, and the share of the confusion matrix in it."""
    cells, rows = len(tables.confusion), len(tables.reliability)
    share = _weight((cells * tables.confusion_noise) ** 2, rows * tables.reliability_noise**2)
    count = float(tables.reliability[:, 0].sum())
    return share * float(tables.confusion.sum()) + (1 - share) * count, share


def _total_noise(classes: int, bins: int, confusion: float, reliability: float) -> float:
    matrix, table = (classes * confusion) ** 2, bins * reliability**2
    share = _weight(matrix, table)
    return sqrt(share**2 * matrix + (1 - share) ** 2 * table)


def _weight(own: float, other: float) -> float:
    """Weight of the first of two unbiased numbers with these variances; all of it when both are exact."""
    return other / (own + other) if own + other > 0 else 1.0


def accuracy(tables: EvaluationTables) -> Estimate:
    """Share of the records that were classified correctly."""
    sums = _sums(tables)
    return _share(sums.correct, sums.correct_variance, sums.covariance, sums)


def _share(part: float, variance: float, covariance: float, sums: _Sums) -> Estimate:
    """A part of the records, with the noise on the part, on the total, and what the two have in common."""
    value = _ratio(part, sums.total)
    noise = variance + value**2 * sums.total_variance - 2 * value * covariance
    return Estimate(value, sqrt(value * (1 - value) / sums.total), sqrt(max(noise, 0.0)) / sums.total)


def recall(tables: EvaluationTables) -> tuple[Estimate, ...]:
    """Per class, the share of its records that were found; 0 for a class without records."""
    confusion = tables.confusion
    found = []
    for index, row in enumerate(confusion):
        size = max(float(row.sum()), 0.0)
        value = _ratio(float(row[index]), size)
        gradient = np.zeros_like(confusion)
        if size > 0:
            gradient[index] = -value / size
            gradient[index, index] += 1 / size
        found.append(_estimate(value, gradient, tables))
    return tuple(found)


def macro_f1(tables: EvaluationTables) -> Estimate:
    """Mean over the classes of 2 TP / (records of the class + answers of the class); 0 for an empty class."""
    confusion = tables.confusion
    classes = len(confusion)
    sizes = confusion.sum(axis=1) + confusion.sum(axis=0)
    f1 = np.array([_ratio(2 * float(confusion[k, k]), float(sizes[k])) for k in range(classes)])
    inverse = np.array([1 / size if size > 0 else 0.0 for size in sizes])
    slope = f1 * inverse
    gradient = (np.diag(2 * inverse) - slope[:, None] - slope[None, :]) / classes
    return _estimate(float(f1.mean()), gradient, tables)


def largest_class(tables: EvaluationTables) -> Estimate:
    """Share of the class with the largest row sum: the accuracy of always answering it."""
    sums = _sums(tables)
    rows = tables.confusion.sum(axis=1)
    variance = len(rows) * tables.confusion_noise**2
    return _share(float(rows.max()), variance, sums.share * variance, sums)


def calibration_error(tables: EvaluationTables) -> Estimate:
    """Expected calibration error: the mean over the records of |confidence - accuracy| of their bin.

    Equal to sum over bins of |sum of confidences - number correct| over the number of records. The sampling
    error takes every confidence at the mean of its bin. Noise biases the absolute values upwards, by at most
    0.8 standard deviations of the difference per bin; the noise error shows the scale.
    """
    count, confidence, correct = tables.reliability.T
    sums = _sums(tables)
    total = sums.total
    gap = confidence - correct
    value = _ratio(float(np.abs(gap).sum()), total)
    sign = np.sign(gap)
    by_count, by_confidence, by_correct = np.full_like(gap, -value / total), sign / total, -sign / total

    size = np.maximum(count, 0.0)
    right = np.clip(correct, 0.0, size)
    mean = np.divide(np.clip(confidence, 0.0, size), size, out=np.zeros_like(size), where=size > 0)
    wrong_effect = by_count + by_confidence * mean
    variance = (right * (wrong_effect + by_correct) ** 2 + (size - right) * wrong_effect**2).sum()
    gaps = 2 * len(gap) * tables.reliability_noise**2
    return Estimate(value, sqrt(float(variance)), sqrt(gaps + value**2 * sums.total_variance) / total)


def gain_kept(private: Estimate, reference: Estimate, floor: Estimate) -> Estimate | None:
    """(private - floor) / (reference - floor): how much of the gain without privacy is left.

    None when the reference does not beat the floor, as there is then no gain to keep. The errors take the
    three numbers as independent, which overstates them a little: all come from the same held-out records.
    """
    gain = reference.value - floor.value
    if gain <= 0:
        return None
    value = (private.value - floor.value) / gain
    slopes = (1 / gain, -value / gain, (value - 1) / gain)
    parts = (private, reference, floor)
    pairs = list(zip(slopes, parts, strict=True))
    sampling = hypot(*(slope * part.sampling_error for slope, part in pairs))
    noise = hypot(*(slope * part.noise_error for slope, part in pairs))
    return Estimate(value, sampling, noise)


def _ratio(part: float, whole: float) -> float:
    return min(max(part, 0.0) / whole, 1.0) if whole > 0 else 0.0


def _estimate(value: float, gradient: Array, tables: EvaluationTables) -> Estimate:
    counts = np.maximum(tables.confusion, 0.0)
    sampling = sqrt(float((counts * gradient**2).sum()))
    return Estimate(value, sampling, tables.confusion_noise * float(np.linalg.norm(gradient)))
