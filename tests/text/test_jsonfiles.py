"""JSON lines and arrays as they really look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.text import files
from raptor.text.problems import RecordError
from tests.text.reading import put, read, texts, warned

A, B = '{"text": "a", "label": 1}', '{"text": "b", "label": 0}'

GOOD: dict[str, tuple[str, str | bytes, list[str]]] = {
    "lines": ("a.jsonl", f"{A}\n{B}\n", ["a", "b"]),
    "lines in a file called json": ("a.json", f"{A}\n{B}\n", ["a", "b"]),
    "an array in a file called jsonl": ("a.jsonl", f"[{A},\n{B}]", ["a", "b"]),
    "an array with spaces": ("a.json", f"\ufeff \n[ {A} ,\r\n\t{B} ]\n\n", ["a", "b"]),
    "a mark and Windows line ends": ("a.jsonl", f"\ufeff{A}\r\n\r\n{B}\r\n", ["a", "b"]),
    "utf-16": ("a.jsonl", f"{A}\n{B}\n".encode("utf-16"), ["a", "b"]),
    "a tab as it stands": ("a.jsonl", f'{{"text": "a\tc", "label": 1}}\n{B}\n', ["a\tc", "b"]),
    "no line end at the end": ("a.jsonl", f"{A}\n{B}", ["a", "b"]),
    "keys in another order": ("a.jsonl", f'{A}\n{{"label": 0, "more": [1], "text": "b"}}\n', ["a", "b"]),
    "a label as number and as string": (
        "a.jsonl",
        f'{{"text": "a", "label": "1"}}\n{B}\n{A}',
        ["a", "b", "a"],
    ),
    "a whole number with a point": ("a.jsonl", f'{{"text": "a", "label": 1.0}}\n{B}\n', ["a", "b"]),
    "emoji in halves": ("a.jsonl", f'{{"text": "\\ud83d\\ude00", "label": 1}}\n{B}\n', ["😀", "b"]),
}

BAD: dict[str, tuple[str, str, str]] = {
    "a line cut off": ("a.jsonl", f'{A}\n{{"text": "b", "lab', "line 2: this is not valid JSON"),
    "two objects on a line": ("a.jsonl", f"{A}{B}\n", "line 1: .*Put each object on its own line"),
    "an object over several lines": ("a.jsonl", '{\n"text": "a"\n}\n', "line 1: .*must stand in an array"),
    "a key twice": (
        "a.jsonl",
        f'{A}\n{{"text": "b", "text": "c", "label": 0}}',
        "line 2: an object names a key twice",
    ),
    "no object": ("a.jsonl", f'{A}\n"b"\n', "line 2: the record is not an object"),
    "a list a line": ("a.jsonl", '["a", 1]\n["b", 0]\n', "record 1: the record is not an object"),
    "a text that is a number": (
        "a.jsonl",
        f'{A}\n{{"text": 5, "label": 0}}',
        "line 2, column 'text': .*a number",
    ),
    "a text that is a list": (
        "a.jsonl",
        f'{A}\n{{"text": ["b"], "label": 0}}',
        "line 2, column 'text': .*a list",
    ),
    "a text that is true": (
        "a.jsonl",
        f'{A}\n{{"text": true, "label": 0}}',
        "line 2, column 'text': .*true or false",
    ),
    "a label that is a list": (
        "a.jsonl",
        f'{A}\n{{"text": "b", "label": [0]}}',
        "line 2, column 'label': .*list",
    ),
    "a label that is no whole number": (
        "a.jsonl",
        f'{A}\n{{"text": "b", "label": 0.5}}',
        "line 2, column 'label': .*real",
    ),
    "NaN for a label": (
        "a.jsonl",
        f'{A}\n{{"text": "b", "label": NaN}}',
        "line 2, column 'label': .*no label",
    ),
    "null for a label": (
        "a.jsonl",
        f'{A}\n{{"text": "b", "label": null}}',
        "line 2, column 'label': .*no label",
    ),
    "a label missing": ("a.jsonl", f'{{"text": "b"}}\n{A}\n{B}', "line 1, column 'label': .*no label"),
    "a text missing": (
        "a.jsonl",
        f'{A}\n{{"txt": "b", "label": 0}}',
        "line 2: there is no column 'text'. .*'txt'",
    ),
    "a label of another name": (
        "a.jsonl",
        '{"text": "a", "Label": 1}\n',
        "no record has a key 'label'. .*'Label'",
    ),
    "columns, not records": (
        "a.json",
        '{"text": ["a", "b"], "label": [1, 0]}',
        "line 1, column 'text': .*a list",
    ),
    "records inside an object": ("a.json", f'{{"data": [{A}, {B}]}}', "line 1: there is no column 'text'"),
    "an array cut in a record": ("a.json", f'[{A},\n{{"text": "b", "lab', "line 2: this is not valid JSON"),
    "an array cut after a record": ("a.json", f"[{A},\n{B}", "line 2: the array is not closed"),
    "a comma too many": ("a.json", f"[{A},\n{B},\n]", "line 3: a comma stands before the closing bracket"),
    "a comma missing": ("a.json", f"[{A}\n{B}]", "line 2: a comma is missing"),
    "something after the array": ("a.json", f"[{A},{B}]\n\n[]", "line 3: something follows"),
    "an array without records": ("a.json", "[ ]", "no records"),
    "nested without end": (
        "a.jsonl",
        '{"text": ' + "[" * 100_000 + "\n",
        "line 1: a value is nested too deep",
    ),
    "a number without end": (
        "a.jsonl",
        '{"text": "a", "label": ' + "1" * 5000 + "}",
        "line 1: .*thousands of digits",
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_can_be_read_is_read_right(tmp_path: Path, case: str) -> None:
    name, content, expected = GOOD[case]
    records = read(put(tmp_path, name, content))
    assert texts(records) == expected
    assert records.table["label"].to_pylist()[:2] == [1, 0]


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_stops_with_its_place(tmp_path: Path, case: str) -> None:
    name, content, message = BAD[case]
    with pytest.raises(RecordError, match=message):
        read(put(tmp_path, name, content))


def test_truth_values_are_classes_by_name(tmp_path: Path) -> None:
    lines = '{"text": "a", "label": true}\n{"text": "b", "label": false}\n{"text": "c", "label": 1}\n'
    records = read(put(tmp_path, "a.jsonl", lines))
    assert records.label_names == ("1", "false", "true")


def test_null_is_a_missing_text_and_the_word_is_not(tmp_path: Path) -> None:
    records = read(put(tmp_path, "a.jsonl", '{"text": null, "label": 1}\n{"text": "null", "label": 0}\n'))
    assert texts(records) == ["", "null"]
    assert warned(records, "without text: 1", "line 1")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=20), min_size=2, max_size=12, unique=True),
    st.integers(min_value=2, max_value=40),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_an_array_comes_back_wherever_the_blocks_are_cut(
    tmp_path_factory: pytest.TempPathFactory, held: list[str], block: int, indent: int | None, escape: bool
) -> None:
    """The reader decodes in blocks; none of the places where one ends may change a record."""
    records = [{"text": text, "label": number % 2} for number, text in enumerate(held)]
    content = json.dumps(records, indent=indent, ensure_ascii=escape)
    path = put(tmp_path_factory.mktemp("json"), "a.json", content.encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        found = texts(read(path))
    assert found == [text.lstrip("\ufeff") for text in held]
