"""What there is to say about a set of records. As private as the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raptor.text.splits import SPLITS


@dataclass(frozen=True)
class DataReport:
    """Counts and warnings.

    Args:
        rows: records of all splits.
        kind: kind of the source.
        classes: number of classes.
        labels: class name -> labelled records, over all splits.
        splits: split -> records; empty where the source names no splits and none were drawn.
        labels_by_split: split -> class name -> records.
        unlabelled: records without a label.
        held_out: the split that models are measured on.
        users: distinct users, None where not asked for.
        repeats: see `raptor.text.checks.count_repeats`.
        warnings: one sentence each.
    """

    rows: int
    kind: str
    classes: int
    labels: dict[str, int]
    splits: dict[str, int]
    labels_by_split: dict[str, dict[str, int]]
    unlabelled: int
    held_out: str | None
    users: int | None
    repeats: dict[str, int]
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        *,
        kind: str,
        names: Sequence[str],
        labels: NDArray[np.int64],
        splits: NDArray[np.int8],
        given: bool,
        held_out: str | None,
        users: int | None,
        repeats: dict[str, int],
        warnings: tuple[str, ...],
    ) -> Self:
        """Count. `labels` are -1 where there is none; `splits` index `SPLITS`."""
        by_split: dict[str, dict[str, int]] = {}
        rows: dict[str, int] = {}
        for index, split in enumerate(SPLITS):
            inside = labels[splits == index]
            if len(inside):
                rows[split] = len(inside)
                by_split[split] = _count(inside, names)
        known = given or held_out is not None
        return cls(
            rows=len(labels),
            kind=kind,
            classes=len(names),
            labels=_count(labels, names),
            splits=rows if known else {},
            labels_by_split=by_split if known else {},
            unlabelled=int((labels < 0).sum()),
            held_out=held_out,
            users=users,
            repeats=repeats,
            warnings=warnings,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}


def _count(labels: NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    if not names:
        return {}
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}
