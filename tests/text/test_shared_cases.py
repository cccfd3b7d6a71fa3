"""Troubles that users reported in public: every shared case behaves as its sheet says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raptor.text.problems import RecordError
from tests.text.reading import read, texts, warned

FILES = (
    "bom_header.csv",
    "stray_quotes.tsv",
    "quoted_newlines.csv",
    "latin1.csv",
    "label_minus_one.csv",
    "string_labels_train.csv",
    "string_labels_validation.csv",
    "null_words.csv",
    "line_separators.jsonl",
    "lone_surrogate.jsonl",
    "one_of_a_kind.csv",
    "dictionary_label.parquet",
)


@pytest.fixture(scope="session")
def cases(shared_dir: Path) -> Path:
    return shared_dir / "cases" / "inputs"


@pytest.fixture(scope="session")
def expected(cases: Path) -> dict[str, dict]:
    return {case["file"]: case["expected"] for case in json.loads((cases / "expected.json").read_text())}


def options(case: dict, name: str) -> dict:
    """How a person would call the tool for a case."""
    chosen: dict = {}
    if name == "stray_quotes.tsv":
        chosen["text"] = "sentence1+sentence2"
    if "split_rows" in case:
        chosen["split"] = "split"
    if "rows_as_cp1252" in case:
        chosen["encoding"] = "cp1252"
    return chosen


def test_every_shared_case_is_tried(expected: dict[str, dict]) -> None:
    assert sorted(expected) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_rows_and_labels_are_read_right(cases: Path, expected: dict[str, dict], name: str) -> None:
    case = expected[name]
    records = read(cases / name, **options(case, name))
    report = records.report
    assert report.rows == case.get("rows", case.get("rows_as_cp1252"))
    assert len(records.table) == report.rows
    if "labels" in case:
        assert report.labels == case["labels"]
    if "label_names" in case:
        assert list(records.label_names) == case["label_names"]
    if "classes" in case:
        assert report.classes == case["classes"]
        assert report.splits == case["split_rows"]
        assert report.unlabelled == case["unlabelled"]
    if "texts" in case:
        assert texts(records) == case["texts"]
    for key, value in case.items():
        if key.startswith("row_"):
            row = int(key.split("_")[1])
            assert texts(records)[row] == value


def test_no_mark_or_carriage_return_is_left_of_a_spreadsheet(cases: Path) -> None:
    held = texts(read(cases / "bom_header.csv"))
    assert not any("\ufeff" in text or "\r" in text for text in held)


def test_quotation_marks_of_a_tsv_stay_text(cases: Path) -> None:
    records = read(cases / "stray_quotes.tsv", text="sentence1+sentence2")
    assert records.table["text_pair"].to_pylist()[3] == '"Less is more" was said by whom?'


def test_breaks_inside_quotation_marks_belong_to_the_text(cases: Path) -> None:
    assert texts(read(cases / "quoted_newlines.csv")) == [
        "First line.\nSecond line, same record.",
        'She said "fine" and left.',
        "A carriage\rreturn inside.",
        "Windows\r\nbreak inside.",
        "\n\nTwo empty lines before this.",
    ]


def test_a_wrong_encoding_stops_with_line_encoding_and_way_out(cases: Path) -> None:
    with pytest.raises(
        RecordError, match=r"latin1\.csv, line 2: the bytes are not utf-8.*ingestion\.encoding"
    ):
        read(cases / "latin1.csv")
    # Latin-1 knows every byte, and makes control characters of quotation marks.
    assert warned(read(cases / "latin1.csv", encoding="latin-1"), "cp1252", "line 5")


def test_no_label_in_training_names_the_row(cases: Path) -> None:
    with pytest.raises(RecordError, match=r"line 10, column 'label': the record has no label"):
        read(cases / "label_minus_one.csv")


def test_validation_takes_the_numbering_of_training(cases: Path, expected: dict[str, dict]) -> None:
    names = read(cases / "string_labels_train.csv").label_names
    case = expected["string_labels_validation.csv"]
    records = read(cases / "string_labels_validation.csv", label_names=names)
    assert records.table["label"].to_pylist() == case["label_ids_with_training_names"]
    assert warned(records, "absent", *case["absent"])


def test_the_pair_of_files_is_one_source(cases: Path, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        source = cases / f"string_labels_{name}.csv"
        (tmp_path / source.name).write_bytes(source.read_bytes())
    records = read(tmp_path)
    assert records.label_names == ("billing", "card", "loan")
    assert records.report.splits == {"train": 8, "validation": 3}
    assert records.table["label"].to_pylist()[-3:] == [1, 2, 1]
    assert warned(records, "absent", "validation", "'billing'")


def test_an_empty_text_is_named_by_its_line(cases: Path, expected: dict[str, dict]) -> None:
    records = read(cases / "null_words.csv")
    [line] = expected["null_words.csv"]["empty_lines"]
    assert warned(records, "without text: 1", f"line {line}")


def test_half_a_surrogate_pair_is_replaced_and_named(cases: Path, expected: dict[str, dict]) -> None:
    records = read(cases / "lone_surrogate.jsonl")
    assert texts(records)[2] == "cut off \ufffd"
    assert warned(records, "surrogate", f"line {expected['lone_surrogate.jsonl']['bad_line']}")


def test_a_class_of_one_is_named_with_its_count(cases: Path) -> None:
    assert warned(read(cases / "one_of_a_kind.csv"), "'urgent' has 1")


def test_a_dictionary_column_gives_names_in_order(cases: Path) -> None:
    records = read(cases / "dictionary_label.parquet")
    assert records.label_names == ("bad", "good")
    assert records.table["label"].to_pylist() == [0, 1, 0, 0, 1, 0, 1, 0]
