"""Real labelled sets: rows, classes and users are those of their sheets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.text.reading import read, warned

PAIRS = ("mrpc", "medical_question_pairs", "snli", "qnli")


@pytest.mark.parametrize("name", ["trec", "sms_spam", "mrpc", "banking77", "snli"])
def test_rows_and_classes_are_those_of_the_sheet(shared_dir: Path, name: str) -> None:
    folder = shared_dir / "data" / name
    sheet = json.loads((folder / "datasheet.json").read_text())
    records = read(folder, split="split", text="sentence1+sentence2" if name in PAIRS else "text")
    assert list(records.label_names) == sheet["label_names"]
    assert records.report.labels_by_split == sheet["label_counts"]
    # The sheet says that repeats were removed, inside a split and between splits.
    assert records.report.repeats == {"in_training": 0, "contradicting": 0, "shared": 0}
    assert records.table["text"].null_count == 0


def test_users_are_counted(shared_dir: Path) -> None:
    path = shared_dir / "data" / "medical_question_pairs" / "medical_question_pairs.parquet"
    records = read(path, text="sentence1+sentence2", split="split", user="user")
    assert records.report.users == 11
    assert not warned(records, "without text")
