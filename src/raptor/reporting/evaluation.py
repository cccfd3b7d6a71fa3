"""`evaluation_metrics` of either task: made from tables, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raptor.reporting.comparison import Comparison, compare, comparison_from_json, metrics_to_json
from raptor.reporting.completions import (
    TASK,
    CompletionComparison,
    CompletionTable,
    compare_completions,
    completions_from_json,
    completions_to_json,
)
from raptor.reporting.tables import EvaluationTables


def evaluation_to_json(
    tables: Mapping[str, EvaluationTables | CompletionTable],
    baselines: Sequence[str],
    records_are_public: bool,
) -> dict[str, Any]:
    """Metrics of all methods by their tables, which are all of one kind.

    Raises:
        DataError: the private model's tables are missing.
    """
    completions = {name: table for name, table in tables.items() if isinstance(table, CompletionTable)}
    if completions:
        return completions_to_json(compare_completions(completions, baselines, records_are_public))
    classes = {name: table for name, table in tables.items() if isinstance(table, EvaluationTables)}
    return metrics_to_json(compare(classes, baselines, records_are_public))


def evaluation_from_json(value: Mapping[str, Any]) -> Comparison | CompletionComparison:
    """Read either kind back.

    Raises:
        DataError: the file is not one of these.
    """
    return completions_from_json(value) if value.get("task") == TASK else comparison_from_json(value)
