"""Public corpora: kinds of files, the fixed sample, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raptor.errors import DataError
from raptor.pipelines.base_model.nodes import obtain_public_corpus
from raptor.pipelines.selection.config import SelectionConfig

TEXTS = ["one two", "three, four", 'five "six"', "seven eight nine"]


def read(path: Path | str, records: int = 4000) -> list[str]:
    table = obtain_public_corpus(SelectionConfig(corpus=str(path), corpus_records=records))
    assert table.column_names == ["text"]
    return table["text"].to_pylist()


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_a_text_file_has_one_record_a_line(tmp_path: Path) -> None:
    assert read(write(tmp_path / "c.txt", "one two\n\n  \nthree, four\r\nfünf")) == [
        "one two",
        "three, four",
        "fünf",
    ]


def test_a_packed_text_file(tmp_path: Path) -> None:
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"one\ttwo\nthree\n"))
    assert read(tmp_path / "c.txt.gz") == ["one\ttwo", "three"]


def test_json_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text, "other": 1}) for text in TEXTS] + ['{"text": null}', '{"text": " "}']
    assert read(write(tmp_path / "c.jsonl", "\n".join(lines))) == TEXTS


def test_csv(tmp_path: Path) -> None:
    assert read(write(tmp_path / "c.csv", 'id,text\n1,one two\n2,"three, four"\n3,\n')) == TEXTS[:2]


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [*TEXTS, None], "id": range(5)}), tmp_path / "c.parquet")
    assert read(tmp_path / "c.parquet") == TEXTS


def test_the_sample_is_fixed_and_keeps_the_order(tmp_path: Path) -> None:
    numbers = [str(number) for number in range(1000)]
    path = write(tmp_path / "c.txt", "\n".join(numbers))
    sample = read(path, 100)
    assert sample == read(path, 100)
    assert len(set(sample)) == 100
    assert sample == sorted(sample, key=int)
    assert int(sample[-1]) > 900
    assert read(path, 1000) == numbers


@pytest.mark.parametrize(
    ("name", "content"),
    [("c.txt", " \n\n"), ("c.txt", ""), ("c.csv", "text\n"), ("c.jsonl", '{"text": ""}\n')],
)
def test_a_corpus_without_text_is_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(DataError, match=r"empty|no records"):
        read(write(tmp_path / name, content))


def test_an_empty_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"empty|no records"):
        read(tmp_path / "c.parquet")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"c\.csv.*'text'.*'Text'"):
        read(write(tmp_path / "c.csv", "id,Text\n1,one\n"))


def test_a_column_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"c\.jsonl, line 2.*text"):
        read(write(tmp_path / "c.jsonl", '{"text": "one"}\n{"text": ["two"]}\n'))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"selection\.corpus: .*nowhere\.txt"):
        read(tmp_path / "nowhere.txt")


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"line 2.*not utf-8"):
        read(tmp_path / "c.txt")


def test_the_embedded_corpus_is_text_and_fixed() -> None:
    texts = read("embedded", 200)
    assert len(set(texts)) == 200
    assert all(len(text.split()) >= 8 for text in texts)
    assert texts == read("embedded", 200)


def test_a_shared_corpus(shared_dir: Path) -> None:
    texts = read(shared_dir / "data" / "public_corpus" / "public_corpus.parquet", 500)
    assert len(texts) == 500
