"""The two tables that an evaluation is made of.

A model is judged by a confusion matrix and a reliability table alone. Exact and noisy evaluation then share
one path: the noise, if there is any, goes onto the tables, and everything after them is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from raptor.errors import DataError, ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

RELIABILITY_COLUMNS = ("count", "confidence", "correct")

# Most that one record adds to a table, in L2 norm: 1 to one cell; (1, confidence <= 1, correct <= 1) to one row.
CONFUSION_SENSITIVITY = 1.0
RELIABILITY_SENSITIVITY = sqrt(3)


@dataclass(frozen=True, eq=False)
class EvaluationTables:
    """What one model did on the held-out records.

    confusion: (K, K) float64, cell (i, j) counts the records of class i that were classified as j.
    reliability: (bins, 3) float64; per bin of confidence the number of records, the sum of their confidences
        and the number classified correctly.
    confusion_noise, reliability_noise: standard deviation of the Gaussian noise on every cell; 0 if exact.
    """

    confusion: NDArray[np.float64]
    reliability: NDArray[np.float64]
    confusion_noise: float = 0.0
    reliability_noise: float = 0.0

    def __post_init__(self) -> None:
        confusion, reliability = self.confusion, self.reliability
        columns = len(RELIABILITY_COLUMNS)
        if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or confusion.shape[0] < 1:
            raise DataError(f"The confusion matrix has the shape {confusion.shape}; it must be square.")
        if reliability.ndim != 2 or reliability.shape[1] != columns or reliability.shape[0] < 1:
            raise DataError(f"The reliability table has the shape {reliability.shape}; it must be (bins, 3).")
        if not (np.isfinite(confusion).all() and np.isfinite(reliability).all()):
            raise DataError("An evaluation table holds a value that is not finite; evaluate the model again.")
        for name, noise in (("confusion", self.confusion_noise), ("reliability", self.reliability_noise)):
            if not (isfinite(noise) and noise >= 0):
                raise ParameterError(f"The noise of the {name} table must be a number >= 0, not {noise!r}.")

    @property
    def is_exact(self) -> bool:
        """True when no noise was added to either table."""
        return self.confusion_noise == 0 and self.reliability_noise == 0

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {
            "confusion": self.confusion.tolist(),
            "reliability": self.reliability.tolist(),
            "confusion_noise": self.confusion_noise,
            "reliability_noise": self.reliability_noise,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EvaluationTables:
        """Inverse of `to_json`; DataError when a table is missing or of the wrong shape."""
        try:
            return cls(
                confusion=np.asarray(value["confusion"], dtype=np.float64),
                reliability=np.asarray(value["reliability"], dtype=np.float64),
                confusion_noise=float(value["confusion_noise"]),
                reliability_noise=float(value["reliability_noise"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"The stored evaluation tables are unusable ({error}). "
                "Delete the file and run the evaluation pipeline again."
            ) from error


def tables_from_probabilities(
    probabilities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], bins: int
) -> EvaluationTables:
    """Exact tables of a model's answers.

    probabilities: (N, K), rows sum to one. labels: (N,) in [0, K). bins: number of bins of equal width over
    [0, 1]; a confidence on an edge belongs to the bin above it, 1.0 to the last one.

    One record moves the confusion matrix by `CONFUSION_SENSITIVITY` and the reliability table by at most
    `RELIABILITY_SENSITIVITY` when it is added or removed.
    A record whose probabilities are not finite counts as class 0 at confidence 0: an error would tell that
    there is such a record.
    Raises DataError when shapes disagree or a label is out of range.
    """
    if bins < 1:
        raise ParameterError(f"evaluation.calibration_bins must be at least 1, not {bins}.")
    values = np.asarray(probabilities, dtype=np.float64)
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise DataError(f"Probabilities {values.shape} and labels {labels.shape} do not fit together.")
    values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0)
    classes = values.shape[1]
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise DataError(f"A held-out label is outside the {classes} classes of the model.")

    predicted = values.argmax(axis=1)
    # The bound on a record's contribution must hold for any model, also one whose softmax rounds above one.
    confidence = values.max(axis=1, initial=0.0).clip(0.0, 1.0)
    correct = (predicted == labels).astype(np.float64)
    confusion = np.zeros((classes, classes))
    np.add.at(confusion, (labels, predicted), 1.0)
    which = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    reliability = np.zeros((bins, len(RELIABILITY_COLUMNS)))
    np.add.at(reliability, which, np.stack([np.ones_like(confidence), confidence, correct], axis=1))
    return EvaluationTables(confusion, reliability)
