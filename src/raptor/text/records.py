"""Typed, validated records, and what there is to say about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raptor.text.checks import (
    check_classes,
    check_texts,
    check_unlabelled,
    count_repeats,
    remark_classes,
    remark_users,
)
from raptor.text.collect import Collected
from raptor.text.columns import Columns
from raptor.text.labels import Meaning, interpret
from raptor.text.problems import Findings, Place, RecordError
from raptor.text.report import DataReport
from raptor.text.sources import Source, open_source
from raptor.text.splits import SPLITS, TEST, TRAIN, UNLABELLED, VALIDATION, draw_held_out, draw_users

NO_LABEL = -1
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("text_pair", pa.string()),
        ("label", pa.int64()),
        ("split", pa.string()),
        ("user", pa.string()),
        ("completion", pa.string()),
    ]
)
IMAGE = "image"


@dataclass(frozen=True)
class Records:
    """Records of a source.

    Args:
        table: columns `text`, `text_pair` (null where records have one text), `label` (null where there is
            none), `split` (train, validation, test or unlabelled), `user` and `completion` (null where not asked for);
            and, where asked for, `image` (encoded bytes, null where a record has none).
        label_names: class names; `label` is an index into them. None where texts are continued: there `label` is 0 of
            records that are used, and null of others.
        held_out: the split that models are measured on, None when there is none.
        report: counts and warnings. Private, like the table.
    """

    table: pa.Table
    label_names: tuple[str, ...]
    held_out: str | None
    report: DataReport


@dataclass(frozen=True)
class Rules:
    """What records must keep to.

    Args:
        encoding: of text files without a byte order mark.
        held_out_fraction: probability of a training record to be held out where the source names no labelled
            validation or test split; None draws nothing.
        max_classes: more are taken for a wrong column.
        limit: records taken of the embedded docstrings.
        label_names: the classes of a model that exists; None takes them from training.
        split_key: private key of the draw of held-out records; None draws anew.
    """

    encoding: str = "utf-8"
    held_out_fraction: float | None = None
    max_classes: int = 1000
    limit: int | None = None
    label_names: tuple[str, ...] | None = None
    split_key: bytes | None = None


def read_records(source: str, columns: Columns, rules: Rules = Rules()) -> Records:
    """Read and validate the records of a source.

    Classes and their numbers come from the training split alone. Records without a label may stand in the
    test and the unlabelled split only.

    Raises:
        ParameterError: columns or encoding are unusable.
        RecordError: something cannot be read, or cannot be used; with the place and what to do.
    """
    findings = Findings()
    collected = Collected(columns, findings)
    opened = open_source(source, rules.limit)
    for part in opened.parts:
        before = len(collected.texts)
        for batch in part.read(columns, rules.encoding, findings):
            collected.add(batch, part.split)
        if len(collected.texts) == before:
            findings.remark(f"{part.name} holds no records.")
    return _Assembly(opened, collected, columns, rules, findings).records()


class _Assembly:
    """Validation of all records taken together."""

    def __init__(
        self, source: Source, collected: Collected, columns: Columns, rules: Rules, findings: Findings
    ) -> None:
        self.source = source
        self.columns = columns
        self.rules = rules
        self.findings = findings
        self.collected = collected
        if not collected.texts:
            raise RecordError(
                "there are no records.",
                place=source.parts[0].name,
                advice="Give a header and records below it.",
            )
        self.splits = np.concatenate(collected.splits)
        self.hashes = np.concatenate(collected.hashes)
        self.numbers = np.concatenate(collected.numbers)
        self.codes = np.concatenate(collected.codes)

    def records(self) -> Records:
        images = self.collected.images
        if images and all(part.null_count == len(part) for part in images):
            raise RecordError(
                "no record has an image.",
                place=self.source.parts[0].name,
                column=self.columns.image,
                advice="Check which column holds the images.",
            )
        if self.columns.label is not None or self.columns.completion is not None:
            check_texts(self.hashes, self.source.parts[0].name)
        labels, names, held_out = self._learnt()
        users = self._users()
        if users is not None:
            remark_users(users.dictionary.to_pylist(), self.findings)
        repeats = count_repeats(
            self.hashes,
            labels,
            self.splits,
            self.findings,
            None if users is None else users.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        )
        report = DataReport.of(
            kind=self.source.kind,
            names=names,
            labels=labels,
            splits=self.splits,
            given=self._splits_given(),
            held_out=held_out,
            users=None if users is None else len(users.dictionary),
            repeats=repeats,
            warnings=tuple(self.findings.messages()),
        )
        return Records(self._table(labels), names, held_out, report)

    def place(self, row: int) -> Place:
        """Where a record came from."""
        start = 0
        for file, unit, size in self.collected.origins:
            if row < start + size:
                return Place(file, int(self.numbers[row]), unit)
            start += size
        raise IndexError(row)

    def _learnt(self) -> tuple[NDArray[np.int64], tuple[str, ...], str | None]:
        """Class of each record (-1 for none), class names, held-out split."""
        if self.columns.completion is not None:
            return self._completions()
        return self._labels() if self.columns.label is not None else self._no_labels()

    def _completions(self) -> tuple[NDArray[np.int64], tuple[str, ...], str | None]:
        """One nameless class of all records that are trained on, or that have a completion to be measured on."""
        answered = np.concatenate(
            [np.asarray(pc.not_equal(part, ""), dtype=bool) for part in self.collected.completions]
        )
        self._require_training()
        self._hold_out(np.where(answered, 0, NO_LABEL))
        training = self.splits == SPLITS.index(TRAIN)
        if not (training & answered).any():
            raise RecordError(
                "no training record has a completion.",
                place=self.source.parts[0].name,
                column=self.columns.completion,
                advice="Check which column is the completion.",
            )
        used = (training | answered) & (self.splits != SPLITS.index(UNLABELLED))
        labels = np.where(used, 0, NO_LABEL).astype(np.int64)
        return labels, (), self._held_out(labels)

    def _labels(self) -> tuple[NDArray[np.int64], tuple[str, ...], str | None]:
        """Class of each record (-1 for none), class names, held-out split."""
        column = self.columns.label or ""
        meaning = self._meaning(column)
        # Classes numbered in their order; the last place, reached by -1, stands for no label.
        numbers = {name: index for index, name in enumerate(meaning.order)}
        by_code = [numbers[name] if name is not None else NO_LABEL for name in meaning.names]
        classes = np.asarray(by_code, dtype=np.int64)[self.codes]
        self._require_training()
        check_unlabelled(classes, self.splits, column, self.place)
        self._hold_out(classes)
        known = self._known_classes(classes, meaning)
        renumber = np.full(len(meaning.order) + 1, NO_LABEL, dtype=np.int64)
        for index, name in enumerate(meaning.order):
            renumber[index] = known.index(name) if name in known else NO_LABEL
        labels = renumber[classes]
        self._refuse_unknown(classes, labels, column)
        check_classes(labels, self.splits, known, self.rules, self.source.parts[0].name, column)
        held_out = self._held_out(labels)
        learnt = self.rules.label_names is None
        remark_classes(labels, self.splits, known, held_out, self.findings, learnt)
        return labels, known, held_out

    def _meaning(self, column: str) -> Meaning:
        collected = self.collected
        listed = collected.class_names
        if len(listed) > 1:
            raise RecordError(
                "files of the source name their classes differently.",
                place=self.source.parts[0].name,
                column=column,
                advice="Write all of them with the same list of class names, or with names as labels.",
            )
        return interpret(list(collected.values), collected.first, column, next(iter(listed)), self.findings)

    def _no_labels(self) -> tuple[NDArray[np.int64], tuple[str, ...], None]:
        return np.full(len(self.splits), NO_LABEL, dtype=np.int64), self.rules.label_names or (), None

    def _require_training(self) -> None:
        if self.rules.label_names is None and not (self.splits == SPLITS.index(TRAIN)).any():
            raise RecordError(
                "no record is in the training split.",
                place=self.source.parts[0].name,
                column=self.columns.split,
                advice="Name the training records 'train', or give no split column.",
            )

    def _held_out(self, labels: NDArray[np.int64]) -> str | None:
        for split in (VALIDATION, TEST):
            if ((self.splits == SPLITS.index(split)) & (labels != NO_LABEL)).any():
                return split
        return None

    def _hold_out(self, classes: NDArray[np.int64]) -> None:
        """Draw the held-out records where the source names none."""
        fraction = self.rules.held_out_fraction
        if fraction is None or self._held_out(classes) is not None:
            return
        users = self._users()
        if users is None:
            drawn = draw_held_out(len(self.splits), fraction, self.rules.split_key)
        else:
            # All records of a user go to one side, else models would be measured on people they have seen.
            sides = draw_users(users.dictionary.to_pylist(), fraction, self.rules.split_key)
            drawn = sides[users.indices.to_numpy(zero_copy_only=False)]
        training = self.splits == SPLITS.index(TRAIN)
        self.splits[training & drawn] = SPLITS.index(VALIDATION)
        for split, side in ((VALIDATION, "held-out set"), (TRAIN, "training set")):
            if not (self.splits == SPLITS.index(split)).any():
                raise RecordError(
                    f"the draw left the {side} empty.",
                    place=self.source.parts[0].name,
                    advice="Give more records, another ingestion.held_out_fraction, or a split column.",
                )

    def _known_classes(self, classes: NDArray[np.int64], meaning: Meaning) -> tuple[str, ...]:
        if self.rules.label_names is not None:
            return self.rules.label_names
        trained = classes[(self.splits == SPLITS.index(TRAIN)) & (classes != NO_LABEL)]
        return tuple(meaning.order[index] for index in np.unique(trained))

    def _refuse_unknown(self, classes: NDArray[np.int64], labels: NDArray[np.int64], column: str) -> None:
        """A class that training lacks cannot be predicted, so a score would be wrong without an error."""
        unknown = np.flatnonzero((classes != NO_LABEL) & (labels == NO_LABEL))
        if not len(unknown):
            return
        row = int(unknown[0])
        drawn = self.rules.held_out_fraction is not None and not self._splits_given()
        advice = "Correct the label, add training records of the class, or remove the record."
        if drawn:
            advice = (
                "The draw of held-out records left none for training: give the class more records, merge it "
                "with another, or give a split column."
            )
        raise RecordError(
            "no training record has this label.",
            place=self.place(row),
            column=column,
            advice=advice,
            value=str(list(self.collected.values)[int(self.codes[row])]),
        )

    def _splits_given(self) -> bool:
        return self.columns.split is not None or any(part.split for part in self.source.parts)

    def _users(self) -> pa.DictionaryArray | None:
        """The user of each record; None where not asked for."""
        if not self.collected.users:
            return None
        return pa.chunked_array(self.collected.users).combine_chunks().dictionary_encode()

    def _table(self, labels: NDArray[np.int64]) -> pa.Table:
        rows = len(labels)
        names = pa.DictionaryArray.from_arrays(pa.array(self.splits), pa.array(SPLITS)).dictionary_decode()
        absent = pa.chunked_array([pa.nulls(rows, pa.string())])
        columns: Sequence[pa.ChunkedArray | pa.Array] = [
            pa.chunked_array(self.collected.texts),
            pa.chunked_array(self.collected.pairs) if self.collected.pairs else absent,
            pa.array(labels, mask=labels == NO_LABEL),
            names,
            pa.chunked_array(self.collected.users) if self.collected.users else absent,
            pa.chunked_array(self.collected.completions) if self.collected.completions else absent,
        ]
        table = pa.table(columns, schema=SCHEMA)
        if not self.collected.images:
            return table
        return table.append_column(IMAGE, pa.chunked_array(self.collected.images))
