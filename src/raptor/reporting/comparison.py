"""From the tables of every method to `evaluation_metrics`: released numbers, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raptor.errors import DataError
from raptor.reporting.methods import LARGEST, METHODS, NONPRIVATE, RAPTOR
from raptor.reporting.metrics import Estimate, Metrics, compute_metrics, gain_kept, is_measurable, total_noise
from raptor.reporting.tables import EvaluationTables

EXACT = (
    "The records were declared public: the held-out ones are evaluated exactly, and baselines are trained on the "
    "others without protection. That costs no privacy budget."
)
NOISED = (
    "The held-out records are private: each evaluation table was released once, with Gaussian noise, and charged "
    "to the same ledger as the training."
)
NOT_MEASURABLE = (
    "Accuracy is not measurable at this noise: there are too few held-out records to stand out of it. The model and "
    "its certificate stand. For an evaluation that can be read, raise ingestion.held_out_fraction or give a smaller "
    "evaluation.noise_multiplier, and train again, which spends a budget again."
)
_SCALARS = ("accuracy", "macro_f1", "expected_calibration_error")


def how_evaluated(records_are_public: bool, is_measurable: bool) -> str:
    """How the held-out records were evaluated, and whether that can be read."""
    how = EXACT if records_are_public else NOISED
    return how if is_measurable else f"{how} {NOT_MEASURABLE}"


@dataclass(frozen=True)
class Comparison:
    """The evaluation as the report and the figures need it; read back from `evaluation_metrics`.

    tables: per model, the (possibly noisy) tables; `raptor` is always there.
    baselines: the methods that were asked for beside the private model.
    metrics: per model; empty when the held-out records are lost in the noise, for all methods alike, as all of them
        answer the same records.
    accuracies: per method, the largest class included when it was asked for; empty when metrics are.
    floor: accuracy of always answering the largest class; None when metrics are empty.
    kept: share of the gain over the floor that training without privacy reaches; None without that baseline.
    """

    records_are_public: bool
    tables: Mapping[str, EvaluationTables]
    baselines: tuple[str, ...]
    metrics: Mapping[str, Metrics]
    accuracies: Mapping[str, Estimate]
    floor: Estimate | None
    kept: Estimate | None

    @property
    def is_measurable(self) -> bool:
        """Whether any accuracy can be told from the noise."""
        return bool(self.metrics)

    @property
    def total_noise(self) -> float:
        """Standard deviation of the noise on the number of held-out records."""
        return total_noise(self.tables[RAPTOR])

    @property
    def summary(self) -> str:
        """See `how_evaluated`."""
        return how_evaluated(self.records_are_public, self.is_measurable)


def compare(
    tables: Mapping[str, EvaluationTables], baselines: Sequence[str], records_are_public: bool
) -> Comparison:
    """Metrics of all methods. The largest class comes from the row sums of the private model's matrix.

    Raises:
        DataError: the private model's tables are missing.
    """
    if RAPTOR not in tables:
        raise DataError("The tables of the private model are missing; run the evaluation pipeline again.")
    asked = tuple(name for name in METHODS if name in baselines)
    if not all(is_measurable(value) for value in tables.values()):
        # Nothing may stop here: the budget is spent, and model and certificate are whole.
        return Comparison(records_are_public, dict(tables), asked, {}, {}, None, None)
    metrics = {name: compute_metrics(tables[name]) for name in METHODS if name in tables}
    floor = metrics[RAPTOR].largest_class
    accuracies = {name: value.accuracy for name, value in metrics.items()}
    if LARGEST in baselines:
        accuracies[LARGEST] = floor
    kept = None
    if NONPRIVATE in metrics:
        kept = gain_kept(metrics[RAPTOR].accuracy, metrics[NONPRIVATE].accuracy, floor)
    return Comparison(records_are_public, dict(tables), asked, metrics, accuracies, floor, kept)


def metrics_to_json(comparison: Comparison) -> dict[str, Any]:
    """`evaluation_metrics`: scalars by method, `gain_kept`, and the tables that all of it was computed from.

    What cannot be measured is null; the noise that hides it stands beside it.
    """
    own = comparison.tables[RAPTOR]
    result: dict[str, Any] = {
        "records_are_public": comparison.records_are_public,
        "evaluation": comparison.summary,
        "measurable": comparison.is_measurable,
        "noise_deviation": {
            "confusion_cell": own.confusion_noise,
            "reliability_cell": own.reliability_noise,
            "records": comparison.total_noise,
        },
        "records": comparison.metrics[RAPTOR].records if comparison.is_measurable else None,
        "methods": _methods(comparison),
        "tables": {name: value.to_json() for name, value in comparison.tables.items()},
    }
    if comparison.kept is not None:
        result["gain_kept"] = comparison.kept.value
        result["gain_kept_standard_error"] = comparison.kept.standard_error
    return result


def _methods(comparison: Comparison) -> dict[str, Any]:
    if not comparison.is_measurable:
        nothing = {
            f"{name}{part}": None for name in _SCALARS for part in ("", "_standard_error", "_noise_error")
        }
        models = {name: {**nothing, "recall": None} for name in METHODS if name in comparison.tables}
        floor = {name: None for name in nothing if name.startswith("accuracy")}
        return {**models, **({LARGEST: floor} if LARGEST in comparison.baselines else {})}
    methods: dict[str, Any] = {name: value.to_json() for name, value in comparison.metrics.items()}
    if (largest := comparison.accuracies.get(LARGEST)) is not None:
        methods[LARGEST] = {
            "accuracy": largest.value,
            "accuracy_standard_error": largest.standard_error,
            "accuracy_noise_error": largest.noise_error,
        }
    return methods


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
