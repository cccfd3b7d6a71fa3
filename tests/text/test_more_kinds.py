"""Files as spreadsheets, databases, data frames and crashes leave them: read right, or stopped with the place."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import uuid
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from raptor.cli import cli
from raptor.errors import RaptorError
from raptor.text import files
from tests.text.reading import put, read, texts, warned

H = "text,label\n"
ROWS = H + "a,1\nb,0\n"
ABC = pa.array(["a", "b", "c"])


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def arrow(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_file(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.csv", ROWS)
    return buffer.getvalue()


def tarred(mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        entry = tarfile.TarInfo("a.csv")
        entry.size = len(ROWS)
        archive.addfile(entry, io.BytesIO(ROWS.encode()))
    return buffer.getvalue()


# File name, content, options, texts, class names of the records.
GOOD: dict[str, tuple[str, str | bytes, dict, list[str], list[str]]] = {
    "a Windows editor's Unicode": (
        "a.csv",
        b"\xff\xfe" + "text,label\r\né,1\r\nb,0\r\n".encode("utf-16-le"),
        {},
        ["é", "b"],
        ["1", "0"],
    ),
    "utf-32": ("a.csv", (H + "é,1\nb,0\n").encode("utf-32"), {}, ["é", "b"], ["1", "0"]),
    "a tsv in utf-16": ("a.tsv", "text\tlabel\nx\t1\ny\t0\n".encode("utf-16"), {}, ["x", "y"], ["1", "0"]),
    "line ends of two systems": ("a.csv", H + "a,1\r\nb,0\nc,1\r\n", {}, ["a", "b", "c"], ["1", "0", "1"]),
    "a header over two lines": (
        "a.csv",
        '"te\nxt",label\na,1\nb,0\n',
        {"text": "te\nxt"},
        ["a", "b"],
        ["1", "0"],
    ),
    "a comma after every field": ("a.csv", "text,label,\na,1,\nb,0,\n", {}, ["a", "b"], ["1", "0"]),
    "thousands separators": (
        "a.csv",
        'text,label\na,"1,000"\nb,"2,000"\nc,"1,000"\n',
        {},
        ["a", "b", "c"],
        ["1,000", "2,000", "1,000"],
    ),
    "decimal commas": ("a.csv", "text;score;label\na;1,5;1\nb;2,5;0\n", {}, ["a", "b"], ["1", "0"]),
    "a number beyond 64 bits": (
        "a.csv",
        H + "a,12345678901234567890123\nb,1\nc,1\n",
        {},
        ["a", "b", "c"],
        ["12345678901234567890123", "1", "1"],
    ),
    "a number beyond 64 bits in JSON": (
        "a.jsonl",
        lines({"text": "a", "label": 10**30}, {"text": "b", "label": 1}, {"text": "c", "label": 1}),
        {},
        ["a", "b", "c"],
        [str(10**30), "1", "1"],
    ),
    "1, 1.0 and the word": (
        "a.jsonl",
        lines(*({"text": t, "label": v} for t, v in zip("abcd", (1, 1.0, "1", 0), strict=True))),
        {},
        list("abcd"),
        ["1", "1", "1", "0"],
    ),
    "percentages": ("a.csv", H + "a,50%\nb,20%\nc,50%\n", {}, ["a", "b", "c"], ["50%", "20%", "50%"]),
    "a hard space behind a label": (
        "a.csv",
        H + "a,x\u00a0\nb,x\nc,y\n",
        {},
        ["a", "b", "c"],
        ["x", "x", "y"],
    ),
    "a line break in a label": ("a.csv", H + 'a,"x\n"\nb,x\nc,y\n', {}, ["a", "b", "c"], ["x", "x", "y"]),
    "a separator line behind a mark": (
        "a.csv",
        "\ufeffsep=;\r\ntext;label\r\na;1\r\nb;0\r\n",
        {},
        ["a", "b"],
        ["1", "0"],
    ),
    "a separator of its own": ("a.csv", "sep=^\ntext^label\na, b^1\nc^0\n", {}, ["a, b", "c"], ["1", "0"]),
    "columns called by numbers": (
        "a.csv",
        "0,1\na,1\nb,0\n",
        {"text": "0", "label": "1"},
        ["a", "b"],
        ["1", "0"],
    ),
    "an index without a name": ("a.csv", ",text,label\n0,a,1\n1,b,0\n", {}, ["a", "b"], ["1", "0"]),
    "a mark as the whole text": ("a.csv", H + '"""",1\nb,0\n', {}, ['"', "b"], ["1", "0"]),
    "a mark as the whole text of a tsv": ("a.tsv", 'text\tlabel\n"\t1\nb\t0\n', {}, ['"', "b"], ["1", "0"]),
    "tabs as two letters": ("a.tsv", "text\tlabel\na\\tb\t1\nb\t0\n", {}, ["a\\tb", "b"], ["1", "0"]),
    "noncharacters": (
        "a.csv",
        H + "a\ufdd0\ufdd1b,1\nc\re,0\n",
        {},
        ["a\ufdd0\ufdd1b", "c\re"],
        ["1", "0"],
    ),
    "bzip2": ("a.csv.bz2", bz2.compress(ROWS.encode()), {}, ["a", "b"], ["1", "0"]),
    "xz": ("a.csv.xz", lzma.compress(ROWS.encode()), {}, ["a", "b"], ["1", "0"]),
    "packed pieces one behind the other": (
        "a.csv.gz",
        gzip.compress((H + "a,1\n").encode()) + gzip.compress(b"b,0\n"),
        {},
        ["a", "b"],
        ["1", "0"],
    ),
    "called packed and is not": ("a.csv.gz", ROWS, {}, ["a", "b"], ["1", "0"]),
    "an ending in capitals": ("A.CSV", ROWS, {}, ["a", "b"], ["1", "0"]),
    "a zero character in JSON": (
        "a.jsonl",
        lines({"text": "a\0b", "label": 1}, {"text": "b", "label": 0}),
        {},
        ["a\0b", "b"],
        ["1", "0"],
    ),
    "nested values beside the columns": (
        "a.jsonl",
        lines(
            {"meta": {"text": "no", "tags": [1, [2]]}, "text": "a", "label": 1},
            {"text": "b", "meta": None, "label": 0},
        ),
        {},
        ["a", "b"],
        ["1", "0"],
    ),
    "a dictionary of texts": (
        "a.parquet",
        parquet(text=ABC.dictionary_encode(), label=[1, 0, 1]),
        {},
        ["a", "b", "c"],
        ["1", "0", "1"],
    ),
    "a nested column with a text inside": (
        "a.parquet",
        parquet(d=[{"text": "no"}] * 3, text=ABC, label=[1, 0, 1]),
        {},
        ["a", "b", "c"],
        ["1", "0", "1"],
    ),
    "a column with a dot in its name": (
        "a.parquet",
        parquet(**{"d.text": ABC, "label": [1, 0, 1]}),
        {"text": "d.text"},
        ["a", "b", "c"],
        ["1", "0", "1"],
    ),
    "bytes of one length": (
        "a.parquet",
        parquet(text=pa.array([b"a", b"b", b"c"], pa.binary(1)), label=[1, 0, 1]),
        {},
        ["a", "b", "c"],
        ["1", "0", "1"],
    ),
    "views of bytes": (
        "a.parquet",
        parquet(text=pa.array([b"a", b"b", b"c"], pa.binary_view()), label=[1, 0, 1]),
        {},
        ["a", "b", "c"],
        ["1", "0", "1"],
    ),
    "unsigned beyond 63 bits": (
        "a.parquet",
        parquet(text=ABC, label=pa.array([2**63 + 1, 0, 0], pa.uint64())),
        {},
        ["a", "b", "c"],
        [str(2**63 + 1), "0", "0"],
    ),
    "half precision": (
        "a.parquet",
        parquet(text=ABC, label=pa.array([1, 0, 1], pa.float16())),
        {},
        ["a", "b", "c"],
        ["1", "0", "1"],
    ),
}

# File name, content, options, message.
STOPS: dict[str, tuple[str, str | bytes, dict, str]] = {
    "the text is the label": ("a.csv", ROWS, {"label": "text"}, "both name the column 'text'"),
    "line ends of an old Macintosh, then others": (
        "a.csv",
        "text,label\ra,1\rb,0\nc,1\n",
        {},
        "end all lines of the file in the same way",
    ),
    "single quotation marks": ("a.csv", H + "'a, b',1\nc,0\n", {}, "line 2: the record has 3 fields"),
    "a comma behind some records": ("a.csv", H + "a,1,\nb,0\n", {}, "line 2: the record has 3 fields"),
    "a line cut off by a crash": ("a.csv", H + 'a,1\n"b,0', {}, "line 3: .*is not closed"),
    "a tail of zero bytes": ("a.csv", ROWS.encode() + bytes(50), {}, "line 4: a block of zero bytes"),
    "a line of zero bytes": (
        "a.csv",
        (H + "a,1\n").encode() + bytes(50) + b"\nb,0\n",
        {},
        "line 3: a block of zero bytes",
    ),
    "zero bytes between JSON lines": (
        "a.jsonl",
        lines({"text": "a", "label": 1}).encode() + bytes(20) + b"\n",
        {},
        "line 2: a block of zero bytes",
    ),
    "a separator that is not known": ("a.csv", "text^label\na^1\nb^0\n", {}, "The header is one field"),
    "spaces between columns": ("a.csv", "text label\na 1\nb 0\n", {}, "The header is one field"),
    "lines wholly in quotation marks": ("a.csv", '"text,label"\n"a,1"\n"b,0"\n', {}, "The header is one field"),
    "a title above the header": ("a.csv", "My report,\n,\n" + ROWS, {}, "no column 'text'"),
    "no header": ("a.csv", "good film,1\nbad film,0\n", {}, "named by the first line"),
    "another case": ("a.csv", "text,LABEL\na,1\nb,0\n", {}, "The closest is 'LABEL'"),
    "an underscore": ("a.csv", "text_,label\na,1\nb,0\n", {}, "The closest is 'text_'"),
    "the same letters, composed otherwise": (
        "a.csv",
        "texte\u0301,label\na,1\nb,0\n",
        {"text": "texté"},
        r"'texte\\u0301' in full: it looks the same",
    ),
    "an invisible mark in the header": ("a.csv", "\u200btext,label\na,1\nb,0\n", {}, r"closest is '\\u200btext'"),
    "a header that is not UTF-8": (
        "a.csv",
        "texte,étiquette\na,1\n".encode("latin-1"),
        {"text": "texte", "label": "étiquette"},
        "line 1: the bytes are not utf-8",
    ),
    "minus one for a class": ("a.csv", H + "a,1\nb,-1\nc,1\n", {}, "line 3, column 'label': .*cannot be called -1"),
    "exponents": ("a.csv", H + "a,1e0\nb,0e0\nc,1e0\n", {}, "line 2, column 'label': .*real number"),
    "minus zero": ("a.csv", H + "a,-0\nb,1\nc,0\n", {}, "line 2, column 'label': the label is negative"),
    "a field of 17 million characters": (
        "a.csv",
        H + "x" * ((1 << 24) + 1) + ",1\n",
        {},
        "line 2: a field has more than 16,777,216 characters",
    ),
    "an archive": ("a.csv.zip", zipped(), {}, "a zip archive"),
    "an archive in disguise": ("a.csv", zipped(), {}, "a zip archive"),
    "a packed tar archive": ("a.tar.gz", tarred(), {}, "a tar archive"),
    "a packed tar archive in disguise": ("a.csv.gz", tarred(), {}, "a tar archive"),
    "a tar archive": ("a.csv", tarred("w"), {}, "a tar archive"),
    "packed twice": ("a.csv.gz", gzip.compress(gzip.compress(ROWS.encode())), {}, "packed twice"),
    "garbage behind what is packed": ("a.csv.gz", gzip.compress(ROWS.encode()) + b"x", {}, "broken or cut off"),
    "packed zeros": ("a.csv.gz", gzip.compress(bytes(1_000_000)), {}, "the file is empty"),
    "zstandard": ("a.csv.zst", b"\x28\xb5\x2f\xfd\x00\x00", {}, "packed with zstandard"),
    "Parquet packed once more": (
        "a.parquet.gz",
        gzip.compress(parquet(text=ABC, label=[1, 0, 1])),
        {},
        "the Parquet file is packed",
    ),
    "no ending": ("records", ROWS, {}, "has no ending"),
    "XML": ("a.csv", "<?xml version='1.0'?><a/>", {}, "an XML document"),
    "a text processor's file": ("a.csv", "{\\rtf1 hello}", {}, "of a text processor"),
    "a message of a server": ("a.json", '{"message": "Not Found"}', {}, "line 1: there is no column 'text'"),
    "a comment in JSON": ("a.jsonl", "# made today\n" + lines({"text": "a", "label": 1}), {}, "line 1: .*not valid"),
    "Python instead of JSON": ("a.jsonl", "{'text': 'a', 'label': 1}\n", {}, "line 1: this is not valid JSON"),
    "commas behind JSON lines": (
        "a.jsonl",
        '{"text": "a", "label": 1},\n{"text": "b", "label": 0}\n',
        {},
        "line 1: .*Remove the comma at the end",
    ),
    "columns of a data frame": (
        "a.json",
        '{"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 0}}',
        {},
        "line 1, column 'text': the text is an object",
    ),
    "NaN for a text": ("a.jsonl", '{"text": NaN, "label": 1}\n', {}, "line 1, column 'text': .*a number"),
    "infinity for a label": ("a.jsonl", '{"text": "a", "label": 1e400}\n', {}, "line 1, column 'label': .*real"),
    "an object for a label": (
        "a.jsonl",
        lines({"text": "a", "label": {"id": 1}}),
        {},
        "line 1, column 'label': the label is a dict",
    ),
    "a list of texts": (
        "a.parquet",
        parquet(text=[["a"], ["b"], ["c"]], label=[1, 0, 1]),
        {},
        "column 'text': the column holds list",
    ),
    "half a decimal": (
        "a.parquet",
        parquet(text=ABC, label=pa.array([Decimal("1.5"), Decimal("0.0"), Decimal("1.0")])),
        {},
        "record 1, column 'label': the value is not a whole number",
    ),
    "a column of nulls for labels": (
        "a.parquet",
        parquet(text=ABC, label=pa.nulls(3)),
        {},
        "record 1, column 'label': the record has no label",
    ),
    "a null in a dictionary": (
        "a.parquet",
        parquet(text=ABC, label=pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), ["y", "x"])),
        {},
        "record 2, column 'label': the record has no label",
    ),
    "a null among a dictionary's values": (
        "a.arrow",
        arrow(text=ABC, label=pa.DictionaryArray.from_arrays([1, 0, 1], [None, "x"])),
        {},
        "record 2, column 'label': the record has no label",
    ),
    "no rows": (
        "a.parquet",
        parquet(text=pa.array([], pa.string()), label=pa.array([], pa.int64())),
        {},
        "there are no records",
    ),
    "Parquet cut off": ("a.parquet", parquet(text=ABC, label=[1, 0, 1])[:-20], {}, "not a whole Parquet file"),
    "times for users": (
        "a.parquet",
        parquet(text=ABC, label=[1, 0, 1], u=pa.array([1, 2, 3], pa.timestamp("s"))),
        {"user": "u"},
        "column 'u': the column holds timestamp",
    ),
    "a user who is missing": ("a.csv", "text,label,u\na,1,x\nb,0, \n", {"user": "u"}, "line 3, column 'u': the user"),
    "a user called nan": ("a.csv", "text,label,u\na,1,x\nb,0,nan\n", {"user": "u"}, "line 3, column 'u': the user"),
    "a user called NULL": ("a.csv", "text,label,u\na,1,NULL\nb,0,x\n", {"user": "u"}, "line 2, column 'u': the user"),
    "a user of null": (
        "a.jsonl",
        lines({"text": "a", "label": 1, "u": "x"}, {"text": "b", "label": 0, "u": None}),
        {"user": "u"},
        "line 2, column 'u': the user",
    ),
    "a user without a key": (
        "a.jsonl",
        lines({"text": "a", "label": 1, "u": "x"}, {"text": "b", "label": 0}),
        {"user": "u"},
        "line 2, column 'u': the user",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_what_can_be_read_is_read_right(tmp_path: Path, case: str) -> None:
    name, content, options, expected, labels = GOOD[case]
    records = read(put(tmp_path, name, content), **options)
    assert texts(records) == expected
    assert [records.label_names[label] for label in records.table["label"].to_pylist()] == labels


@pytest.mark.parametrize("case", STOPS)
def test_what_cannot_stops_with_its_place_and_without_its_value(tmp_path: Path, case: str) -> None:
    name, content, options, message = STOPS[case]
    with pytest.raises(RaptorError, match=message) as caught:
        read(put(tmp_path, name, content), **options)
    told = str(caught.value).replace(str(tmp_path), "")
    assert len(told) < 500
    assert "good film" not in told
    assert "Not Found" not in told


@pytest.mark.parametrize("codec", ["utf-8", "utf-16", "utf-32", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_encodings_and_line_ends_in_every_combination(
    tmp_path: Path, codec: str, end: str, kind: str
) -> None:
    mark = "," if kind == "csv" else "\t"
    content = end.join([mark.join(row) for row in (("text", "label"), ("é", "1"), ("b £", "0"))]) + end
    options = {"encoding": codec} if codec == "cp1252" else {}
    assert texts(read(put(tmp_path, f"a.{kind}", content.encode(codec)), **options)) == ["é", "b £"]


def test_users_by_number_and_by_word_are_one(tmp_path: Path) -> None:
    records = [
        {"text": t, "label": n % 2, "u": u} for n, (t, u) in enumerate(zip("abc", (1, "1", 1.0), strict=True))
    ]
    assert read(put(tmp_path, "a.jsonl", lines(*records)), user="u").report.users == 1


def test_users_by_key_of_a_database(tmp_path: Path) -> None:
    keys = [uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, uuid.UUID(int=1).bytes]
    path = put(tmp_path, "a.parquet", parquet(text=ABC, label=[1, 0, 1], u=pa.array(keys, pa.uuid())))
    assert read(path, user="u").table["user"].to_pylist()[::2] == [str(uuid.UUID(int=1))] * 2


def test_one_person_under_two_names_is_suspected(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "text,label,u\na,1,Bob\nb,0,bob\nc,1,007\nd,0,7\ne,1,8\n")
    records = read(path, user="u")
    assert records.report.users == 5
    assert warned(records, "may be one person", ": 2", "'Bob', 'bob'")


def test_texts_of_several_users_are_counted(tmp_path: Path) -> None:
    records = read(put(tmp_path, "a.csv", "text,label,u\na,1,x\na,1,y\na,1,y\nb,0,x\n"), user="u")
    assert records.report.repeats["between_users"] == 1
    assert warned(records, "1 texts of training stand with several users")


def test_a_class_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", H + "a,\x1b[31mred\nb,blue\nc,blue\n")
    result = CliRunner().invoke(cli, ["inspect", str(path), "--text", "text", "--label", "label"])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert r"\x1b[31mred" in result.output


def test_a_large_number_costs_no_memory(tmp_path: Path) -> None:
    """Once, every smaller number was made to see whether a swallowed line holds one of them."""
    records = read(put(tmp_path, "a.csv", H + '"a\nb",9999999999999\nc,1\nd,1\n'))
    assert records.label_names == ("1", "9999999999999")


def test_a_disk_that_cannot_be_read_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.csv", ROWS)

    def broken(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "open_bytes", broken)
    with pytest.raises(RaptorError, match=r"a\.csv: it cannot be read \(Input/output error\)"):
        read(path)


@pytest.mark.parametrize("name", [b"\xe9t\xe9.csv", b"a\nb.csv", b"\x1b[31m.csv"])
def test_names_of_files_are_told_in_one_line_of_utf8(tmp_path: Path, name: bytes) -> None:
    place = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118
    path = Path(os.fsdecode(place))
    path.write_bytes((H + "a,1\nb,0\n,1\n").encode())
    (warning,) = [text for text in read(path).report.warnings if "without text" in text]
    path.write_bytes((H + "a,1\nb\n").encode())
    with pytest.raises(RaptorError) as caught:
        read(path)
    for told in (warning, str(caught.value)):
        assert told.encode("utf-8").decode().isprintable()
        assert "line " in told
