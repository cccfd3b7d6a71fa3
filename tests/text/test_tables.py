"""Parquet and Arrow as other programs leave them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from raptor.errors import RaptorError
from raptor.text.problems import RecordError
from tests.text.reading import read, texts, warned

TEXTS = pa.array(["a", "b", "c"])


def parquet(folder: Path, columns: dict, metadata: dict | None = None) -> Path:
    table = pa.table(columns)
    path = folder / "a.parquet"
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)
    return path


LABELS = {
    "integers": (pa.array([1, 0, 1], pa.int8()), ("0", "1"), [1, 0, 1]),
    "floats that are whole": (pa.array([1.0, 0.0, 1.0]), ("0", "1"), [1, 0, 1]),
    "decimals": (pa.array([Decimal("1.0"), Decimal("0.0"), Decimal("1.0")]), ("0", "1"), [1, 0, 1]),
    "truth values": (pa.array([True, False, True]), ("false", "true"), [1, 0, 1]),
    "names": (pa.array(["x", "m", "x"], pa.large_string()), ("m", "x"), [1, 0, 1]),
    "views of names": (pa.array(["x", "m", "x"], pa.string_view()), ("m", "x"), [1, 0, 1]),
    "bytes": (pa.array([b"x", b"m", b"x"]), ("m", "x"), [1, 0, 1]),
    "a dictionary of numbers": (pa.array([10, 9, 10]).dictionary_encode(), ("9", "10"), [1, 0, 1]),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_of_every_type(tmp_path: Path, case: str) -> None:
    column, names, expected = LABELS[case]
    records = read(parquet(tmp_path, {"text": TEXTS, "label": column}))
    assert records.label_names == names
    assert records.table["label"].to_pylist() == expected


BAD = {
    "a missing float": (TEXTS, pa.array([1.0, 0.0, None]), "record 3, column 'label': .*no label"),
    "NaN": (TEXTS, pa.array([1.0, 0.0, float("nan")]), "record 3, column 'label': .*no label"),
    "a real number": (TEXTS, pa.array([1.0, 0.5, 0.0]), "record 2, column 'label': .*not a whole number"),
    "infinity": (TEXTS, pa.array([1.0, float("inf"), 0.0]), "record 2, column 'label': .*not a whole number"),
    "lists": (TEXTS, pa.array([[1], [0], [1]]), "column 'label': the column holds list"),
    "dates": (TEXTS, pa.array([1, 2, 3], pa.date32()), "column 'label': the column holds date"),
    "numbers for text": (pa.array([1, 2, 3]), pa.array([1, 0, 1]), "column 'text': the column holds int64"),
    "structs for text": (
        pa.array([{"q": 1}] * 3),
        pa.array([1, 0, 1]),
        "column 'text': the column holds struct",
    ),
    "bytes that are no text": (
        pa.array([b"a", b"\xe9", b"c"]),
        pa.array([1, 0, 1]),
        "record 2, column 'text': the bytes",
    ),
    "only nulls": (pa.nulls(3), pa.array([1, 0, 1]), "all records have the same text"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_columns_stop_with_record_and_column(tmp_path: Path, case: str) -> None:
    text, label, message = BAD[case]
    with pytest.raises(RecordError, match=message):
        read(parquet(tmp_path, {"text": text, "label": label}))


def test_strings_that_are_not_utf8_stop(tmp_path: Path) -> None:
    """A writer that did not check its bytes; the type alone says string."""
    spoilt = pa.array([b"a", b"\xe9", b"c"]).view(pa.string())
    with pytest.raises(RecordError, match="record 2, column 'text': the bytes are not utf-8"):
        read(parquet(tmp_path, {"text": spoilt, "label": pa.array([1, 0, 1])}))


def test_bytes_are_text_in_the_encoding_given(tmp_path: Path) -> None:
    column = pa.array(["é".encode("cp1252"), b"b", b"c"])
    path = parquet(tmp_path, {"text": column, "label": pa.array([1, 0, 1])})
    assert texts(read(path, encoding="cp1252"))[0] == "é"


def test_null_is_a_missing_text(tmp_path: Path) -> None:
    records = read(parquet(tmp_path, {"text": pa.array(["a", None, ""]), "label": pa.array([1, 0, 1])}))
    assert texts(records) == ["a", "", ""]
    assert warned(records, "without text: 2", "records 2, 3")


def test_names_that_the_file_keeps_stay_in_its_order(tmp_path: Path) -> None:
    columns = {"text": TEXTS, "label": pa.array([0, 1, -1]), "split": ["train", "train", "test"]}
    records = read(parquet(tmp_path, columns, {"label_names": '["zebra", "ant", "unused"]'}), split="split")
    assert records.label_names == ("zebra", "ant")
    assert records.table["label"].to_pylist() == [0, 1, None]


def test_a_label_beyond_the_names_stops(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"text": TEXTS, "label": pa.array([0, 1, 2])}, {"label_names": '["x", "y"]'})
    with pytest.raises(RecordError, match="record 3: the label is outside 0 to 1"):
        read(path)


def test_broken_names_are_no_names(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"text": TEXTS, "label": pa.array([0, 1, 1])}, {"label_names": "not JSON"})
    assert read(path).label_names == ("0", "1")


def test_a_column_twice_stops(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([TEXTS, TEXTS, pa.array([1, 0, 1])], ["text", "text", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(RecordError, match="column 'text': there are 2 columns"):
        read(tmp_path / "a.parquet")


def test_content_goes_before_the_name(tmp_path: Path) -> None:
    parquet(tmp_path, {"text": TEXTS, "label": pa.array([1, 0, 1])}).rename(tmp_path / "a.csv")
    assert texts(read(tmp_path / "a.csv")) == ["a", "b", "c"]


def test_a_file_cut_off_stops_without_its_content(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"text": TEXTS, "label": pa.array([1, 0, 1])})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError, match="it is not a whole Parquet file"):
        read(path)


def test_a_data_frame_with_an_index_and_categories(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": pd.Categorical(["x", "m", "x"], ["x", "m"])})
    frame.iloc[[2, 0, 1]].to_parquet(tmp_path / "a.parquet")
    records = read(tmp_path / "a.parquet")
    assert (texts(records), records.label_names) == (["c", "a", "b"], ("m", "x"))
    assert records.table["label"].to_pylist() == [1, 1, 0]


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files_and_streams(tmp_path: Path, stream: bool) -> None:
    table = pa.table({"text": TEXTS, "label": [1, 0, 1]})
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    assert texts(read(tmp_path / "a.arrow")) == ["a", "b", "c"]


def test_feather(tmp_path: Path) -> None:
    pyarrow.feather.write_feather(pa.table({"text": TEXTS, "label": [1, 0, 1]}), tmp_path / "a.feather")
    assert texts(read(tmp_path / "a.feather")) == ["a", "b", "c"]


def test_a_saved_data_set_keeps_its_class_names(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["x", "a"])}
    )
    held = datasets.Dataset.from_dict({"text": ["p", "q", "r"], "label": [0, 1, 0]}, features=features)
    held.save_to_disk(tmp_path / "one", num_shards=2)
    records = read(tmp_path / "one")
    assert (texts(records), records.label_names) == (["p", "q", "r"], ("x", "a"))


def test_saved_splits_are_splits(tmp_path: Path) -> None:
    def part(texts: list[str], labels: list[int]) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"text": texts, "label": labels})

    saved = {
        "train": part(["p", "q"], [0, 1]),
        "validation_matched": part(["r"], [1]),
        "test": part(["s"], [-1]),
    }
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "all")
    records = read(tmp_path / "all")
    assert records.report.splits == {"train": 2, "validation": 1, "test": 1}
    assert records.report.unlabelled == 1


def test_a_filtered_data_set_is_read_as_filtered(tmp_path: Path) -> None:
    held = datasets.Dataset.from_dict({"text": list("abcdef"), "label": [0, 1] * 3})
    held.filter(lambda row: row["text"] != "c").save_to_disk(tmp_path / "some")
    assert texts(read(tmp_path / "some")) == list("abdef")


def test_a_damaged_arrow_file_stops_and_does_no_harm(tmp_path: Path) -> None:
    """Each byte of a small file changed in turn: the reading ends with records or with a message, never otherwise."""
    table = pa.table({"text": ["a b", "c", "d e f", "g"] * 3, "label": ["x", "y", "x", "y"] * 3})
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    whole = bytearray(path.read_bytes())
    stopped = 0
    for at in range(0, len(whole), 3):
        spoilt = bytearray(whole)
        spoilt[at] ^= 0xA5
        path.write_bytes(spoilt)
        try:
            records = read(path)
        except RaptorError:
            stopped += 1
        else:
            assert len(records.table) == records.report.rows
    assert stopped > 50
