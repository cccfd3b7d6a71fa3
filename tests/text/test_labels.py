"""Classes by name, by number, and no label."""

from __future__ import annotations

from pathlib import Path

import pytest

from raptor.text.problems import RecordError
from tests.text.reading import put, read, warned


def labelled(folder: Path, *labels: str, header: str = "text,label", tail: str = "") -> Path:
    rows = "".join(f"text {number},{label}{tail}\n" for number, label in enumerate(labels))
    return put(folder, "a.csv", f"{header}\n{rows}")


NAMES = {
    "numbers by size, not by alphabet": (["10", "9", "2"], ("2", "9", "10"), [2, 1, 0]),
    "numbers that do not start at 0": (["3", "7", "3"], ("3", "7"), [0, 1, 0]),
    "whole numbers with a point": (["1.0", "0.0", "1"], ("0", "1"), [1, 0, 1]),
    "codes with zeros are names": (["007", "7", "08"], ("007", "08", "7"), [0, 2, 1]),
    "names by alphabet": (["pear", "apple", "fig"], ("apple", "fig", "pear"), [2, 0, 1]),
    "spaces around names": (["spam ", " spam", "ham"], ("ham", "spam"), [1, 1, 0]),
    "invisible marks": (["spam\u200b", "spam", "ham"], ("ham", "spam"), [1, 1, 0]),
    "one name in two forms of Unicode": (["caf\u00e9", "cafe\u0301", "tea"], ("café", "tea"), [0, 0, 1]),
    "case counts": (["Spam", "spam", "ham"], ("Spam", "ham", "spam"), [0, 2, 1]),
    "numbers among names": (["1", "good", "1"], ("1", "good"), [0, 1, 0]),
    "a country": (["NA", "US", "US"], ("NA", "US"), [0, 1, 1]),
    "none of these": (["none", "some", "null"], ("none", "null", "some"), [0, 2, 1]),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_and_numbers(tmp_path: Path, case: str) -> None:
    labels, names, expected = NAMES[case]
    records = read(labelled(tmp_path, *labels))
    assert records.label_names == names
    assert records.table["label"].to_pylist() == expected


REFUSED = {
    "an empty cell": (["1", "", "0"], "line 3, column 'label': the record has no label"),
    "a space": (["1", "  ", "0"], "line 3, column 'label': the record has no label"),
    "-1": (["1", "-1", "0"], "line 3, column 'label': the record has no label"),
    "-1.0": (["1.0", "-1.0", "0.0"], "line 3, column 'label': the record has no label"),
    "-1 among names": (["good", "-1", "bad"], "line 3, column 'label': the record has no label"),
    "the index that losses ignore": (["1", "-100", "0"], "line 3, column 'label': the label is negative"),
    "nan": (["1", "nan", "0"], "line 3, column 'label': the label is a missing value"),
    "NaN among names": (["good", "NaN", "bad"], "line 3, column 'label': the label is a missing value"),
    "<NA>": (["good", "<NA>", "bad"], "line 3, column 'label': the label is a missing value"),
    "a null of MySQL": (["good", "\\N", "bad"], "line 3, column 'label': the label is a missing value"),
    "a measurement": (["1", "0.73", "0"], "line 3, column 'label': the label is a real number"),
    "a measurement in scientific notation": (
        ["1e-3", "2e-3", "5e-1"],
        "line 2, column 'label': .*real number",
    ),
    "one class": (["1", "1", "1"], "column 'label': all training records have the same label"),
    "every label its own": ([f"id{n}" for n in range(9)], "most labels stand at one record only"),
    "10,000 classes": ([f"c{n % 10_000}" for n in range(40_000)], "more than 1000 classes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_class_stops(tmp_path: Path, case: str) -> None:
    labels, message = REFUSED[case]
    with pytest.raises(RecordError, match=message):
        read(labelled(tmp_path, *labels))


def test_many_classes_are_a_choice(tmp_path: Path) -> None:
    path = labelled(tmp_path, *(f"c{n % 1100}" for n in range(5500)))
    assert read(path, max_classes=1100).report.classes == 1100


def test_doubtful_names_are_remarked(tmp_path: Path) -> None:
    assert warned(read(labelled(tmp_path, "NA", "US", "US")), "'NA'", "not as a missing value")
    assert warned(read(labelled(tmp_path, "Spam", "spam", "ham")), "case alone", "Spam, spam")
    assert warned(read(labelled(tmp_path, "spam", "spam ", "ham")), "'spam'", "2 ways")
    assert warned(read(labelled(tmp_path, "1", "good", "good")), "Some labels are numbers")


def test_no_label_is_for_test_and_unlabelled_alone(tmp_path: Path) -> None:
    header = "text,label,split"
    rows = "a,0,train\nb,1,train\nc,{0},{1}\n"
    for split in ("test", "unlabelled", "unsupervised"):
        for label in ("-1", ""):
            records = read(put(tmp_path, "a.csv", f"{header}\n{rows.format(label, split)}"), split="split")
            assert records.label_names == ("0", "1")
            assert records.table["label"].to_pylist() == [0, 1, None]
    for split in ("train", "validation"):
        with pytest.raises(RecordError, match="line 4, column 'label': the record has no label"):
            read(put(tmp_path, "a.csv", f"{header}\n{rows.format('-1', split)}"), split="split")


def test_classes_come_from_training_alone(tmp_path: Path) -> None:
    header = "text,label,split\na,x,train\nb,y,train\n"
    path = put(tmp_path, "a.csv", header + "c,y,dev\nd,z,test\n")
    with pytest.raises(
        RecordError, match="line 5, column 'label': no training record has this label"
    ) as caught:
        read(path, split="split")
    assert "z" not in str(caught.value).replace(str(path), "")
    assert caught.value.terminal.endswith("Found: 'z'.")
    records = read(put(tmp_path, "a.csv", header + "c,y,dev\n"), split="split")
    assert warned(records, "absent from the validation split", "'x'")
