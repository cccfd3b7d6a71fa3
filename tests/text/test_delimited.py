"""CSV and TSV as they really look."""

from __future__ import annotations

import csv
import gzip
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.text.problems import RecordError
from tests.text.reading import put, read, texts, warned

H = "text,label\n"

GOOD: dict[str, tuple[str, str | bytes, dict, list[str]]] = {
    "semicolons": ("a.csv", "text;label\nhello, you;1\nbye;0\n", {}, ["hello, you", "bye"]),
    "separator line of a spreadsheet": ("a.csv", "sep=;\ntext;label\na, b;1\nc;0\n", {}, ["a, b", "c"]),
    "tabs in a csv": ("a.csv", "text\tlabel\na, b\t1\nc\t0\n", {}, ["a, b", "c"]),
    "commas in a tsv": ("a.tsv", 'text,label\n"a, b",1\nc,0\n', {}, ["a, b", "c"]),
    "vertical bars": ("a.psv", "text|label\na, b|1\nc|0\n", {}, ["a, b", "c"]),
    "tabs in a txt": ("a.txt", 'text\tlabel\n"a\t1\nc\t0\n', {}, ['"a', "c"]),
    "utf-16 with a mark": ("a.csv", (H + "é,1\nb,0\n").encode("utf-16"), {}, ["é", "b"]),
    "utf-16 big-endian": ("a.csv", b"\xfe\xff" + (H + "é,1\nb,0\n").encode("utf-16-be"), {}, ["é", "b"]),
    "utf-16 named": ("a.csv", (H + "é,1\nb,0\n").encode("utf-16-le"), {"encoding": "utf-16-le"}, ["é", "b"]),
    "shift-jis": ("a.csv", (H + "表,1\nソ,0\n").encode("shift_jis"), {"encoding": "shift_jis"}, ["表", "ソ"]),
    "a mark against the encoding given": (
        "a.csv",
        b"\xef\xbb\xbf" + (H + "é,1\nb,0\n").encode(),
        {"encoding": "cp1252"},
        ["é", "b"],
    ),
    "joined files with two marks": ("a.csv", "\ufefftext,label\na,1\n\ufeffb,0\n", {}, ["a", "b"]),
    "inches": ("a.csv", H + "6' 2\" tall,1\nb,0\n", {}, ["6' 2\" tall", "b"]),
    "space before the quotation mark": (
        "a.csv",
        '"text", "label"\n"a, b", "1"\n"c", "0"\n',
        {},
        ["a, b", "c"],
    ),
    "unquoted carriage return": ("a.csv", H + "a\rb,1\nc,0\n", {}, ["a\rb", "c"]),
    "carriage return in a tsv": ("a.tsv", "text\tlabel\r\na\rb\t1\r\nc\t0\r\n", {}, ["a\rb", "c"]),
    "old Macintosh": ("a.csv", "text,label\ra,1\rc,0\r", {}, ["a", "c"]),
    "no line end at the end": ("a.csv", H + "a,1\nc,0", {}, ["a", "c"]),
    "end mark of DOS": ("a.csv", H + "a,1\nc,0\n\x1a", {}, ["a", "c"]),
    "a quoted tsv": ("a.tsv", 'text\tlabel\n"say ""hi"""\t1\nc\t0\n', {}, ['say "hi"', "c"]),
    "a tsv all quoted": ("a.tsv", '"text"\t"label"\n"a\tb"\t"1"\n"c"\t"0"\n', {}, ["a\tb", "c"]),
    "a tsv with one loose mark": (
        "a.tsv",
        'text\tlabel\n"say ""hi"""\t1\n"c\t0\n',
        {},
        ['"say ""hi"""', '"c'],
    ),
    "a quoted tsv with a line break": ("a.tsv", 'text\tlabel\n"a\nc"\t1\nd\t0\n', {}, ["a\nc", "d"]),
    "a tsv whose loose marks look like a pair": (
        "a.tsv",
        'text\tlabel\n"W\t1\nb\t0\nWhy?"\t1\nok\t1\n',
        {},
        ['"W', "b", 'Why?"', "ok"],
    ),
    "line separators of Unicode": (
        "a.csv",
        H + "a\u2028b\u0085c\x0bd,1\ne,0\n",
        {},
        ["a\u2028b\u0085c\x0bd", "e"],
    ),
    "gzip": ("a.csv.gz", gzip.compress((H + "a,1\nb,0\n").encode()), {}, ["a", "b"]),
    "gzip in disguise": ("a.csv", gzip.compress((H + "a,1\nb,0\n").encode()), {}, ["a", "b"]),
    "a column called a+b": ("a.csv", "a+b,label\nx,1\ny,0\n", {"text": "a+b"}, ["x", "y"]),
    "other columns repeated": ("a.csv", "id,text,label,id\n1,a,1,1\n2,b,0,2\n", {}, ["a", "b"]),
    "missing words": ("a.csv", H + "NULL,1\n#N/A,0\n-inf,1\n", {}, ["NULL", "#N/A", "-inf"]),
    "zero characters": ("a.csv", H + "a\0b,1\nc,0\n", {}, ["a\0b", "c"]),
    "formulas": ("a.csv", H + "=1+1,1\n@x,0\n", {}, ["=1+1", "@x"]),
    "a very long text": ("a.csv", H + "x" * 200_000 + ",1\nb,0\n", {}, ["x" * 200_000, "b"]),
}

BAD: dict[str, tuple[str, str | bytes, str]] = {
    "a short line": ("a.csv", H + "a,1\nb\nc,0\n", "line 3: the record has 1 fields where the header has 2"),
    "a long line": ("a.csv", H + "a,1\nb, and c,1\n", "line 3: the record has 3 fields"),
    "an index without a name": ("a.csv", "text,label\n0,a,1\n1,b,0\n", "line 2: the record has 3 fields"),
    "a tsv that can be read in two ways": (
        "a.tsv",
        'text\tlabel\nd\t0\n"a\tb\nc"\t1\ne\t1\n',
        "line 3: the quotation mark may be text",
    ),
    "a tsv line too long": ("a.tsv", "text\tlabel\na\tb\t1\n", "line 2: the record has 3 fields.*no tab"),
    "a quotation mark never closed": ("a.csv", H + 'a,1\n"Winter,0\nb,1\n', "line 3: .*is not closed"),
    "marks inside not doubled": (
        "a.csv",
        H + 'a,1\n"He said "fine", so",0\n',
        "line 3: a quoted field goes on",
    ),
    "marks escaped by backslashes": ("a.csv", H + '"say \\"hi\\"",0\n', "line 2: a quoted field goes on"),
    "lines swallowed, numbers": (
        "a.csv",
        H + 'a,1\n"Winter,0\nb,1\nWhy?",1\nok,0\n',
        "line 3: .*closes on line 5",
    ),
    "lines swallowed, names": ("a.csv", H + '"Winter,bad\nb,good\nWhy?",bad\nok,good\n', "line 2: .*line 4"),
    "lines swallowed, label first": ("a.csv", 'label,text\n0,"W\n1,bad\n0,Why?"\n1,c\n', "line 2: .*line 4"),
    "lines swallowed, one of them broken": (
        "a.csv",
        H + '"W,0\nb, and c,1\nWhy?",1\nok,0\n',
        "line 2: .*line 4",
    ),
    "lines of a tsv swallowed": (
        "a.tsv",
        'text\tlabel\n"W\t0\nb\tc\t1\nWhy?"\t1\nok\t0\n',
        "line 2: .*line 4",
    ),
    "a tsv with a mark and a long line": (
        "a.tsv",
        'text\tlabel\n"W\t0\nb\tc\t1\nok\t0\n',
        "line 3: .*3 fields",
    ),
    "lines swallowed, doubled mark": ("a.csv", H + '"W,0\nb,1\nHe ""hi",1\nok,0\n', "line 2: .*line 4"),
    "a header in the middle": ("a.csv", H + "a,1\ntext,label\nb,0\n", "line 3: the header stands here again"),
    "a column twice": ("a.csv", "text,label,text\na,1,b\n", "column 'text': there are 2 columns"),
    "other case": ("a.csv", "Text,label\na,1\nb,0\n", "no column 'text'. The closest is 'Text'"),
    "spaces in names": ("a.csv", " text ,label\na,1\nb,0\n", "no column 'text'. The closest is ' text '"),
    "nothing similar": ("a.csv", "q,w\na,1\nb,0\n", "no column 'text'. No name is similar"),
    "no bytes": ("a.csv", "", "the file is empty"),
    "blank lines alone": ("a.csv", "\n \n", "the file is empty"),
    "a mark alone": ("a.csv", b"\xef\xbb\xbf", "the file is empty"),
    "a header alone": ("a.csv", H, "there are no records"),
    "a bad byte far down": (
        "a.csv",
        (H + "a,1\nb,0\n" * 200_000).encode() + b"\xff,1\n",
        "line 400002: .*not utf-8",
    ),
    "utf-16 without a mark": ("a.csv", (H + "é,1\nb,0\n").encode("utf-16-le"), "probably UTF-16"),
    "utf-16 cut": ("a.csv", (H + "é,1\nb,0\n").encode("utf-16")[:-1], "line 3: the bytes are not utf-16"),
    "a workbook": ("a.csv", b"PK\x03\x04rest", "an Excel workbook"),
    "a pointer of Git LFS": ("a.csv", "version https://git-lfs.github.com/spec/v1\noid x\n", "git lfs pull"),
    "a web page": ("a.csv", "<!DOCTYPE html>\n<html></html>", "a web page"),
    "gzip cut off": (
        "a.csv.gz",
        gzip.compress(os.urandom(50_000).hex().encode() + b"\n")[:-2000],
        "broken or cut off",
    ),
    "a kind that is not read": ("a.dat", "x", "files ending in '.dat' are not read"),
    "a csv called parquet": ("a.parquet", H + "a,1\n", "not a parquet file"),
    "label marked by space and quotation": (
        "a.csv",
        H + 'a, "1"\nb, "0"\n',
        "line 2, column 'label': .*a quotation mark",
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_can_be_read_is_read_right(tmp_path: Path, case: str) -> None:
    name, content, options, expected = GOOD[case]
    records = read(put(tmp_path, name, content), **options)
    assert texts(records) == expected
    assert records.table["label"].to_pylist()[:2] == [1, 0]


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_stops_with_its_place(tmp_path: Path, case: str) -> None:
    name, content, message = BAD[case]
    with pytest.raises(RecordError, match=message) as caught:
        read(put(tmp_path, name, content))
    assert str(tmp_path / name) in str(caught.value)


def test_left_out_lines_are_counted_and_named(tmp_path: Path) -> None:
    records = read(put(tmp_path, "a.csv", H + "a,1\n\n   \n,\nb,0\n\n\n"))
    assert texts(records) == ["a", "b"]
    assert warned(records, "nothing in them", ": 3", "lines 3, 4, 5")


def test_texts_of_several_lines_are_no_swallowed_records(tmp_path: Path) -> None:
    letters = "Dear all,\nI agree, fully\n\nYours, Jo"
    records = read(put(tmp_path, "a.csv", f'text,label\n"{letters}",good\nb,bad\n'))
    assert texts(records)[0] == letters
    assert (
        records.report.warnings == read(put(tmp_path, "b.csv", "text,label\nx,good\nb,bad\n")).report.warnings
    )


def test_one_suspicious_line_is_a_warning(tmp_path: Path) -> None:
    records = read(put(tmp_path, "a.csv", H + '"I want to say\nwell, 1\nthat is all",1\nb,0\n'))
    assert texts(records)[0].count("\n") == 2
    assert warned(records, "reads almost like a record", "line 2")


def test_dates_and_lists_in_texts_are_no_swallowed_records(tmp_path: Path) -> None:
    held = ["Order of May 3, 2024\nThanks", "Food, good\nService, bad\n", "1, 2\n3"]
    rows = "".join(f'"{text}",{label}\n' for text, label in zip(held, ("good", "bad", "good"), strict=True))
    assert texts(read(put(tmp_path, "a.csv", H + rows))) == held
    assert (
        texts(read(put(tmp_path, "b.csv", H + rows.replace(",good\n", ",1\n").replace(",bad\n", ",0\n"))))
        == held
    )


def test_wrong_letters_are_suspected(tmp_path: Path) -> None:
    assert warned(read(put(tmp_path, "a.csv", H + "é,1\nb,0\n"), encoding="cp1252"), "also valid UTF-8")


def test_values_stand_in_the_terminal_message_alone(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", H + "a,1\nb,my secret 0.5\nc,nan\n")
    with pytest.raises(RecordError) as caught:
        read(path)
    assert "nan" not in str(caught.value).replace("ingestion", "")
    assert caught.value.terminal.endswith("Found: 'nan'.")
    assert "nan" not in repr(caught.value)


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(cells, min_size=2, max_size=12, unique=True), st.sampled_from([",", ";", "\t", "|"]))
def test_what_a_csv_writer_wrote_comes_back(
    tmp_path_factory: pytest.TempPathFactory, held: list[str], mark: str
) -> None:
    """Any text survives, whatever quotation marks, separators and line ends it holds."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=mark, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["text", "label"])
    writer.writerows([text, f"class {number % 2}"] for number, text in enumerate(held))
    path = put(tmp_path_factory.mktemp("csv"), "a.csv", buffer.getvalue())
    found = texts(read(path))
    assert [text.lstrip("\ufeff") for text in held] == found


@settings(max_examples=100, deadline=None)
@given(st.lists(cells, min_size=2, max_size=8), st.booleans())
def test_an_unquoted_tsv_comes_back_or_stops(
    tmp_path_factory: pytest.TempPathFactory, held: list[str], windows: bool
) -> None:
    """Never fewer rows, never a shifted column: a line break or tab in a text stops the reading."""
    end = "\r\n" if windows else "\n"
    lines = [f"{number % 2}\t{text}{end}" for number, text in enumerate(held)]
    path = put(tmp_path_factory.mktemp("tsv"), "a.tsv", f"label\ttext{end}" + "".join(lines))
    broken = any(mark in text for text in held for mark in "\n\t")
    marked = any('"' in text for text in held)
    try:
        found = texts(read(path))
    except RecordError:
        # With marks, both readings of a file may hold together.
        assert broken or marked or len(set(held)) == 1
        return
    if not marked:
        assert len(found) == sum(bool(line.strip(" \t\r\x1a")) for line in "".join(lines).split("\n"))
    if not broken and not marked:
        assert found == [text.lstrip("\ufeff").removesuffix("\r" if not windows else "") for text in held]


words = st.lists(st.sampled_from(["good", "bad", "6", "film", "so", "it's", "2024"]), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(words.map(" ".join), st.sampled_from(["0", "1", "good"])), min_size=4, max_size=9),
    st.lists(st.integers(0, 400), min_size=1, max_size=3),
    st.sampled_from([",", "\t"]),
    st.booleans(),
)
def test_stray_quotation_marks_never_lose_a_record(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    places: list[int],
    mark: str,
    label_first: bool,
) -> None:
    """Marks put anywhere into an unquoted file: each record comes back with its label, or the reading stops."""
    lines = [("text", "label"), *rows]
    content = "".join(mark.join(row[::-1] if label_first else row) + "\n" for row in lines)
    start = content.index("\n") + 1
    for place in places:
        at = start + place % (len(content) - start)
        content = content[:at] + '"' + content[at:]
    path = put(tmp_path_factory.mktemp("stray"), "a.tsv" if mark == "\t" else "a.csv", content)
    try:
        records = read(path)
    except RecordError:
        return
    found = [records.label_names[label].replace('"', "") for label in records.table["label"].to_pylist()]
    assert found == [label for _, label in rows]
