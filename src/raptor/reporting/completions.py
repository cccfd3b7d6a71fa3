"""The evaluation of a model that continues texts: one table a model, and what follows from it.

Exact and noisy evaluation share one path, as with classes: the noise, if there is any, goes onto the table, and
everything after it is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, hypot, isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from raptor.errors import DataError, ParameterError
from raptor.reporting.comparison import how_evaluated
from raptor.reporting.methods import METHODS, RAPTOR
from raptor.reporting.metrics import READABLE, Estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

TASK = "completions"
COLUMNS = ("records", "exact", "loss", "squared_loss")
# Most that one record adds to a table, in L2 norm: four numbers in [0, 1].
SENSITIVITY = 2.0


@dataclass(frozen=True, eq=False)
class CompletionTable:
    """What one model did on the held-out records that have a completion.

    sums: (4,) float64: the number of records; of those whose whole completion it gives; the sum of their losses over
        `loss_bound`; the sum of the squares of these.
    loss_bound: nats a token, up to which the loss of a record counts.
    noise: standard deviation of the Gaussian noise on every sum; 0 if exact.
    """

    sums: NDArray[np.float64]
    loss_bound: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.sums.shape != (len(COLUMNS),) or not np.isfinite(self.sums).all():
            raise DataError("A table of completions is not four finite numbers; evaluate the model again.")
        if not (
            isfinite(self.loss_bound) and self.loss_bound > 0 and isfinite(self.noise) and self.noise >= 0
        ):
            raise ParameterError("A table of completions needs a loss bound above 0 and noise of at least 0.")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        named = dict(zip(COLUMNS, self.sums.tolist(), strict=True))
        return {**named, "loss_bound": self.loss_bound, "noise": self.noise}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CompletionTable:
        """Inverse of `to_json`; DataError when a number is missing."""
        try:
            sums = np.array([float(value[name]) for name in COLUMNS])
            return cls(sums, float(value["loss_bound"]), float(value["noise"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"The stored evaluation table is unusable ({error}). Delete the file and run the evaluation pipeline "
                "again."
            ) from error


def table_of(
    losses: NDArray[np.float64],
    exact: NDArray[np.bool_],
    counted: NDArray[np.bool_],
    loss_bound: float,
) -> CompletionTable:
    """The exact, private table of a model's answers.

    One record moves it by at most `SENSITIVITY` when it is added or removed: its loss is cut at the public bound, and
    one that is no number counts as the bound, since an error would tell that there is such a record.

    Args:
        losses: (records,) mean loss of each record's completion tokens, in nats.
        exact: (records,) whether greedy decoding gives the very completion.
        counted: (records,) whether the record has a completion at all; others add nothing.
    """
    shares = np.nan_to_num(losses / loss_bound, nan=1.0, posinf=1.0, neginf=0.0).clip(0.0, 1.0)
    rows = np.stack([np.ones_like(shares), exact, shares, shares**2], axis=1) * counted[:, None]
    return CompletionTable(rows.sum(axis=0), loss_bound)


def readable_completions(noise_multiplier: float) -> int:
    """The fewest held-out records that are measurable, on average, under this noise; public facts alone."""
    return ceil(READABLE * noise_multiplier * SENSITIVITY)


@dataclass(frozen=True)
class CompletionMetrics:
    """All metrics of one model.

    exact_match: share of the records whose completion greedy decoding gives token for token, end mark included.
    loss: mean over records of the mean loss of a record's tokens, each cut at the bound, in nats.
    """

    records: float
    exact_match: Estimate
    loss: Estimate

    @property
    def perplexity(self) -> float:
        """e to the mean loss: every record weighs the same, however long its completion."""
        return exp(self.loss.value)

    @property
    def perplexity_range(self) -> tuple[float, float]:
        """The perplexity at two standard errors of the loss below and above."""
        error = 2 * self.loss.standard_error
        return exp(max(self.loss.value - error, 0.0)), exp(self.loss.value + error)

    def to_json(self) -> dict[str, float]:
        """Flat numbers, so that a tracker shows them by name."""
        low, high = self.perplexity_range
        flat = {"perplexity": self.perplexity, "perplexity_low": low, "perplexity_high": high}
        for name, estimate in (("exact_match", self.exact_match), ("loss", self.loss)):
            flat[name] = estimate.value
            flat[f"{name}_standard_error"] = estimate.standard_error
            flat[f"{name}_noise_error"] = estimate.noise_error
        return flat


def compute(table: CompletionTable) -> CompletionMetrics:
    """Metrics of one model, whose table must be measurable.

    Shares are ratios of sums; their errors are by the delta method, sampling and noise apart.
    """
    records, right, loss, squares = (float(value) for value in table.sums)
    if records <= 0:
        raise DataError("This evaluation table holds no records: ask is_measurable before a metric of it.")

    def estimate(total: float, spread: float | None, scale: float) -> Estimate:
        share = min(max(total / records, 0.0), 1.0)
        variance = share * (1 - share) if spread is None else max(spread / records - share**2, 0.0)
        return Estimate(
            scale * share, scale * sqrt(variance / records), scale * table.noise * hypot(1, share) / records
        )

    return CompletionMetrics(records, estimate(right, None, 1.0), estimate(loss, squares, table.loss_bound))


@dataclass(frozen=True)
class CompletionComparison:
    """The evaluation as report and figures need it; read back from `evaluation_metrics`.

    tables: per model; `raptor` is always there.
    baselines: the methods that were asked for beside the private model.
    metrics: per model; empty when the held-out records are lost in the noise.
    """

    records_are_public: bool
    tables: Mapping[str, CompletionTable]
    baselines: tuple[str, ...]
    metrics: Mapping[str, CompletionMetrics]

    @property
    def is_measurable(self) -> bool:
        """Whether anything can be told from the noise."""
        return bool(self.metrics)

    @property
    def total_noise(self) -> float:
        """Standard deviation of the noise on the number of held-out records."""
        return self.tables[RAPTOR].noise

    @property
    def summary(self) -> str:
        """See `how_evaluated`."""
        return how_evaluated(self.records_are_public, self.is_measurable)


def compare_completions(
    tables: Mapping[str, CompletionTable], baselines: Sequence[str], records_are_public: bool
) -> CompletionComparison:
    """Metrics of all methods.

    Raises:
        DataError: the private model's table is missing.
    """
    if RAPTOR not in tables:
        raise DataError("The table of the private model is missing; run the evaluation pipeline again.")
    measurable = all(table.sums[0] > max(READABLE * table.noise, 0.0) for table in tables.values())
    metrics = {name: compute(tables[name]) for name in METHODS if name in tables} if measurable else {}
    asked = tuple(name for name in METHODS if name in baselines)
    return CompletionComparison(records_are_public, dict(tables), asked, metrics)


def completions_to_json(comparison: CompletionComparison) -> dict[str, Any]:
    """`evaluation_metrics`: scalars by method, and the tables that all of it was computed from.

    What cannot be measured is null; the noise that hides it stands beside it.
    """
    own = comparison.tables[RAPTOR]
    names = compute(CompletionTable(np.ones(len(COLUMNS)), 1.0)).to_json()
    return {
        "task": TASK,
        "records_are_public": comparison.records_are_public,
        "evaluation": comparison.summary,
        "measurable": comparison.is_measurable,
        "noise_deviation": {"records": own.noise, "exact": own.noise, "loss": own.noise * own.loss_bound},
        "loss_bound": own.loss_bound,
        "records": comparison.metrics[RAPTOR].records if comparison.is_measurable else None,
        "methods": {
            name: comparison.metrics[name].to_json()
            if comparison.is_measurable
            else dict.fromkeys(names, None)
            for name in comparison.tables
        },
        "tables": {name: table.to_json() for name, table in comparison.tables.items()},
    }


def completions_from_json(value: Mapping[str, Any]) -> CompletionComparison:
    """Read `evaluation_metrics` back; everything is computed from its tables again.

    Raises:
        DataError: the file is not one that `completions_to_json` made.
    """
    try:
        tables = {name: CompletionTable.from_json(item) for name, item in value["tables"].items()}
        baselines = [name for name in value["methods"] if name != RAPTOR]
        return compare_completions(tables, baselines, bool(value["records_are_public"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"evaluation_metrics lacks {error}; delete it and run the evaluation pipeline again."
        ) from error
