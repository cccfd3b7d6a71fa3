"""What `evaluation_metrics` says of the methods together."""

from __future__ import annotations

import json

import numpy as np
import pytest

from raptor.errors import DataError
from raptor.reporting.comparison import compare, comparison_from_json, metrics_to_json
from raptor.reporting.tables import EvaluationTables

RELIABILITY = np.array([[50.0, 20.0, 18.0], [50.0, 40.0, 41.0]])


def tables(right: float, noise: float = 0.0) -> EvaluationTables:
    """Two classes of 60 and 40 records, each found with probability `right`."""
    confusion = np.array([[60 * right, 60 * (1 - right)], [40 * (1 - right), 40 * right]])
    return EvaluationTables(confusion, RELIABILITY, noise, noise)


ALL = ("largest_class", "base_model", "nonprivate", "monolithic")
FOUR = {
    "raptor": tables(0.8),
    "nonprivate": tables(0.9),
    "monolithic": tables(0.7),
    "base_model": tables(0.5),
}


def test_gain_kept_is_taken_over_the_largest_class() -> None:
    value = metrics_to_json(compare(FOUR, ALL, True))
    assert value["gain_kept"] == pytest.approx((0.8 - 0.6) / (0.9 - 0.6))
    assert value["methods"]["largest_class"]["accuracy"] == pytest.approx(0.6)
    assert value["methods"]["raptor"]["accuracy"] == pytest.approx(0.8)
    assert set(value["methods"]) == {"raptor", *ALL}
    assert value["records"] == 100


def test_without_the_reference_there_is_no_gain_kept() -> None:
    noisy = {"raptor": tables(0.8, 2.0), "base_model": tables(0.5, 2.0)}
    value = metrics_to_json(compare(noisy, ("largest_class", "base_model"), False))
    assert "gain_kept" not in value
    assert value["methods"]["raptor"]["accuracy_noise_error"] > 0
    assert value["records_are_public"] is False
    assert "Gaussian noise" in value["evaluation"]


def test_the_floor_is_known_even_if_it_was_not_asked_for() -> None:
    comparison = compare({"raptor": tables(0.8)}, (), False)
    assert comparison.floor.value == pytest.approx(0.6)
    assert set(metrics_to_json(comparison)["methods"]) == {"raptor"}


def test_metrics_survive_the_file() -> None:
    comparison = compare(FOUR, ALL, True)
    back = comparison_from_json(json.loads(json.dumps(metrics_to_json(comparison), allow_nan=False)))
    assert back.accuracies == comparison.accuracies
    assert back.kept == comparison.kept


def test_a_file_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match="run the evaluation pipeline"):
        comparison_from_json({"methods": {}})
    with pytest.raises(DataError, match="private model"):
        compare({"nonprivate": tables(0.9)}, (), True)
