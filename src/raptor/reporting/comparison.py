"""From the tables of every method to `evaluation_metrics`: released numbers, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raptor.errors import DataError
from raptor.reporting.methods import LARGEST, METHODS, NONPRIVATE, RAPTOR
from raptor.reporting.metrics import Estimate, Metrics, compute_metrics, gain_kept
from raptor.reporting.tables import EvaluationTables

EXACT = (
    "The records were declared public: the held-out ones are evaluated exactly, and baselines are trained on the "
    "others without protection. That costs no privacy budget."
)
NOISED = (
    "The held-out records are private: each evaluation table was released once, with Gaussian noise, and charged "
    "to the same ledger as the training."
)


@dataclass(frozen=True)
class Comparison:
    """The evaluation as the report and the figures need it; read back from `evaluation_metrics`.

    tables: per model, the (possibly noisy) tables; `raptor` is always there.
    accuracies: per method, the largest class included when it was asked for.
    floor: accuracy of always answering the largest class.
    kept: share of the gain over the floor that training without privacy reaches; None without that baseline.
    """

    records_are_public: bool
    tables: Mapping[str, EvaluationTables]
    metrics: Mapping[str, Metrics]
    accuracies: Mapping[str, Estimate]
    floor: Estimate
    kept: Estimate | None


def compare(
    tables: Mapping[str, EvaluationTables], baselines: Sequence[str], records_are_public: bool
) -> Comparison:
    """Metrics of all methods. The largest class comes from the row sums of the private model's matrix.

    Raises:
        DataError: the private model's tables are missing, or noise left no records in a table.
    """
    if RAPTOR not in tables:
        raise DataError("The tables of the private model are missing; run the evaluation pipeline again.")
    metrics = {name: compute_metrics(tables[name]) for name in METHODS if name in tables}
    floor = metrics[RAPTOR].largest_class
    accuracies = {name: value.accuracy for name, value in metrics.items()}
    if LARGEST in baselines:
        accuracies[LARGEST] = floor
    kept = None
    if NONPRIVATE in metrics:
        kept = gain_kept(metrics[RAPTOR].accuracy, metrics[NONPRIVATE].accuracy, floor)
    return Comparison(records_are_public, dict(tables), metrics, accuracies, floor, kept)


def metrics_to_json(comparison: Comparison) -> dict[str, Any]:
    """`evaluation_metrics`: scalars by method, `gain_kept`, and the tables that all of it was computed from."""
    methods: dict[str, Any] = {name: value.to_json() for name, value in comparison.metrics.items()}
    if LARGEST in comparison.accuracies:
        floor = comparison.floor
        methods[LARGEST] = {
            "accuracy": floor.value,
            "accuracy_standard_error": floor.standard_error,
            "accuracy_noise_error": floor.noise_error,
        }
    result: dict[str, Any] = {
        "records_are_public": comparison.records_are_public,
        "evaluation": EXACT if comparison.records_are_public else NOISED,
        "records": comparison.metrics[RAPTOR].records,
        "methods": methods,
        "tables": {name: value.to_json() for name, value in comparison.tables.items()},
    }
    if comparison.kept is not None:
        result["gain_kept"] = comparison.kept.value
        result["gain_kept_standard_error"] = comparison.kept.standard_error
    return result


def comparison_from_json(value: Mapping[str, Any]) -> Comparison:
    """Read `evaluation_metrics` back; everything is computed from its tables again.

    Raises:
        DataError: the file is not one that `metrics_to_json` made.
    """
    try:
        tables = {name: EvaluationTables.from_json(item) for name, item in value["tables"].items()}
        return compare(tables, list(value["methods"]), bool(value["records_are_public"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"evaluation_metrics lacks {error}; delete it and run the evaluation pipeline again."
        ) from error
