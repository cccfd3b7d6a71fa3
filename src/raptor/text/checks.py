"""Checks and warnings that need all records at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor.text.problems import Findings, Place, RecordError, shorten
from raptor.text.splits import SPLITS, TEST, TRAIN, UNLABELLED, VALIDATION

if TYPE_CHECKING:
    from raptor.text.records import Rules

NO_LABEL = -1
# Fewer records than this of a class are worth a warning.
RARE = 5
SHOWN_CLASSES = 10


def check_texts(hashes: NDArray[np.int64], source: str) -> None:
    """Refuse records that all have the same text.

    Raises:
        RecordError: they do, and there are at least two.
    """
    if len(hashes) > 1 and bool((hashes == hashes[0]).all()):
        raise RecordError(
            "all records have the same text.", place=source, advice="Check which column is the text."
        )


def check_unlabelled(
    classes: NDArray[np.int64],
    splits: NDArray[np.int8],
    column: str,
    place: Callable[[int], Place],
) -> None:
    """Refuse records without a label where one is needed.

    Raises:
        RecordError: the first record of the training or validation split that has none.
    """
    needed = np.isin(splits, [SPLITS.index(TRAIN), SPLITS.index(VALIDATION)])
    missing = np.flatnonzero(needed & (classes == NO_LABEL))
    if len(missing):
        raise RecordError(
            "the record has no label (an empty cell, null or -1).",
            place=place(int(missing[0])),
            column=column,
            advice="Give it one, or name its split 'test' or 'unlabelled'. A class cannot be called -1.",
        )


def check_classes(
    labels: NDArray[np.int64],
    splits: NDArray[np.int8],
    names: Sequence[str],
    rules: Rules,
    source: str,
    column: str,
) -> None:
    """Refuse label columns that are no classes: one alone, or far too many.

    Raises:
        RecordError: with what the column looks like.
    """
    if rules.label_names is not None:
        return
    if len(names) < 2:
        raise RecordError(
            "all training records have the same label.",
            place=source,
            column=column,
            advice="A classifier needs at least two classes; check which column is the label.",
            value=names[0] if names else None,
        )
    records = int(((splits == SPLITS.index(TRAIN)) & (labels != NO_LABEL)).sum())
    if len(names) > rules.max_classes:
        raise RecordError(
            f"there are more than {rules.max_classes} classes.",
            place=source,
            column=column,
            advice="Check which column is the label; if it is right, raise ingestion.max_classes.",
            value=f"{len(names)} classes",
        )
    if len(names) > max(10, records / 2) or (len(names) == records and records > 4):
        raise RecordError(
            "most labels stand at one record only, as in a column of texts or record numbers.",
            place=source,
            column=column,
            advice="Check which column is the label.",
            value=f"{len(names)} classes for {records} training records",
        )


def remark_classes(
    labels: NDArray[np.int64],
    splits: NDArray[np.int8],
    names: Sequence[str],
    held_out: str | None,
    findings: Findings,
    learnt: bool,
) -> None:
    """Warn of rare classes, of classes that are absent, and of labels that are not used.

    Args:
        learnt: the classes were taken from these records; False when a model brought them.
    """
    if not learnt:
        absent = _absent(labels, names)
        if absent:
            findings.remark(f"Classes absent from the records: {_listed(absent)}.")
        return
    training = labels[splits == SPLITS.index(TRAIN)]
    counts = np.bincount(training[training != NO_LABEL], minlength=len(names))
    rare = [
        f"{shorten(name)} has {count}" for name, count in zip(names, counts, strict=True) if 0 < count < RARE
    ]
    if rare:
        findings.remark(
            f"Classes with very few training records: {_listed(rare)}. A private model will hardly learn them, "
            "and a random split may leave one side without them."
        )
    if held_out is not None:
        absent = _absent(labels[splits == SPLITS.index(held_out)], names)
        if absent:
            findings.remark(f"Classes absent from the {held_out} split: {_listed(absent)}.")
    if held_out == VALIDATION:
        unused = int(((splits == SPLITS.index(TEST)) & (labels != NO_LABEL)).sum())
        if unused:
            findings.remark(
                f"{unused} labelled test records are kept but not used: validation is the held-out set."
            )
    spare = int(((splits == SPLITS.index(UNLABELLED)) & (labels != NO_LABEL)).sum())
    if spare:
        findings.remark(f"{spare} records of the unlabelled split have a label, which is not used.")


def _absent(labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    met = set(labels.tolist())
    return [shorten(name) for index, name in enumerate(names) if index not in met]


def _listed(items: Sequence[str]) -> str:
    more = len(items) - SHOWN_CLASSES
    return ", ".join(items[:SHOWN_CLASSES]) + (f" and {more} more" if more > 0 else "")


def remark_users(names: Sequence[str], findings: Findings) -> None:
    """Warn of users that may be one person under several names: they differ by case, zeros or a `.0` alone."""
    alike: dict[str, set[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold()
        plain = re.sub(r"\s+", " ", plain)
        if re.fullmatch(r"[0-9]+(\.0+)?", plain):
            plain = plain.split(".")[0].lstrip("0") or "0"
        alike.setdefault(plain, set()).add(name)
    doubtful = [sorted(same) for same in alike.values() if len(same) > 1]
    if doubtful:
        shown = ", ".join(map(shorten, doubtful[0][:3]))
        findings.remark(
            f"Users who may be one person, as their names differ by case, spaces or zeros alone: {len(doubtful)} "
            f"(such as {shown}). Each counts as a user of their own."
        )


def count_repeats(
    hashes: NDArray[np.int64],
    labels: NDArray[np.int64],
    splits: NDArray[np.int8],
    findings: Findings,
    users: NDArray[np.int64] | None = None,
) -> dict[str, int]:
    """Count repeated texts; where the unit of privacy is a record, each repeat is a unit of its own.

    Args:
        users: number of each record's user, None where not asked for.

    Returns:
        `in_training`: training records whose text stands there before; `contradicting`: texts with several
        labels in training; `shared`: held-out (validation and test) records whose text is in training, too;
        `between_users`: texts of training that several users have, where users are known.
    """
    training = splits == SPLITS.index(TRAIN)
    texts, first = np.unique(hashes[training], return_index=True)
    repeated = int(training.sum()) - len(texts)
    # A text contradicts itself when one of its records differs in label from the first of them.
    of_first = labels[training][first][np.searchsorted(texts, hashes[training])]
    contradicting = len(np.unique(hashes[training][of_first != labels[training]]))
    held_out = np.isin(splits, [SPLITS.index(VALIDATION), SPLITS.index(TEST)])
    shared = int(np.isin(hashes[held_out], texts).sum())
    if repeated:
        findings.remark(
            f"{repeated} training records repeat the text of another one. With records as the unit of privacy, "
            "who stands behind several records is protected less."
        )
    if contradicting:
        findings.remark(f"{contradicting} texts stand in training with different labels.")
    if shared:
        findings.remark(f"{shared} validation or test records stand in training, too: scores will flatter.")
    counts = {"in_training": repeated, "contradicting": contradicting, "shared": shared}
    if users is not None:
        pairs = np.unique(np.stack([hashes[training], users[training]]), axis=1)
        counts["between_users"] = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
        if counts["between_users"]:
            findings.remark(
                f"{counts['between_users']} texts of training stand with several users. Each user is protected for "
                "their own records; what the text says of a person is in others' records, too."
            )
    return counts
