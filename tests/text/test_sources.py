"""Files, folders and names that are neither."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raptor.errors import DataError, ParameterError
from raptor.text import hub, records, sources
from raptor.text.columns import Columns
from raptor.text.problems import RecordError
from raptor.text.records import Rules, read_records
from raptor.text.sources import check_source
from tests.text.reading import put, read, texts, warned

CSV = "text,label\na,1\nb,0\n"


def test_a_missing_file_names_the_closest(tmp_path: Path) -> None:
    put(tmp_path, "Reviews_2024.csv", CSV)
    with pytest.raises(RecordError, match=r"no such file or folder. The closest is .*Reviews_2024\.csv"):
        read(tmp_path / "reviews-2024.csv")


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"There is no folder .*nowhere"):
        read(tmp_path / "nowhere" / "a.csv")


def test_a_web_address_is_no_source() -> None:
    with pytest.raises(RecordError, match="Download the file"):
        read_records("https://example.org/a.csv", Columns("text", "label"))


def test_no_permission_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.csv", CSV)
    path.chmod(0)
    if os.access(path, os.R_OK):
        # The superuser may read everything, so the system's refusal is played.
        real = Path.open

        def refuse(self: Path, *arguments: object, **options: object) -> object:
            if self == path:
                raise PermissionError(13, "Permission denied")
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RecordError, match=r"a\.csv: no permission to read it"):
        read(path)


def test_something_else_than_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(RecordError, match="not a regular file"):
        read(tmp_path / "a.csv")


def test_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(RecordError, match=r"not a regular file|no such file"):
        read(tmp_path / "a.csv")


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "text,label\n" + "a,1\nb,0\n" * 20_000)
    part = sources.open_source(str(path)).parts[0]
    batches = part.read(Columns("text", "label"), "utf-8", records.Findings())
    next(batches)
    with path.open("a") as file:
        file.write("c,1\n")
    with pytest.raises(RecordError, match="the file changed while it was read"):
        list(batches)


def test_a_folder_of_one_kind_is_one_source(tmp_path: Path) -> None:
    put(tmp_path, "2023.csv", CSV)
    put(tmp_path, "2024.csv", "label,text\n1,c\n")
    for name in ("README.md", ".DS_Store", "_SUCCESS", "datasheet.json", "LICENSE"):
        put(tmp_path, name, "paper")
    assert texts(read(tmp_path)) == ["a", "b", "c"]


def test_a_folder_of_splits_by_name(tmp_path: Path) -> None:
    put(tmp_path, "train-00000-of-00001.csv", CSV)
    put(tmp_path, "dev.csv", "text,label\nc,1\n")
    put(tmp_path, "test.csv", "text,label\nd,-1\n")
    assert read(tmp_path).report.splits == {"train": 2, "validation": 1, "test": 1}


FOLDERS = {
    "mixed kinds": (
        {"a.csv": CSV, "b.jsonl": '{"text": "c", "label": 1}'},
        "mixes kinds of files: a.csv is csv, b.jsonl",
    ),
    "a folder inside": ({"a.csv": CSV, "more/b.csv": CSV}, "the folder holds a folder, more"),
    "nothing": ({"README.md": "x"}, "holds no files of records"),
    "a kind that is not read": ({"a.csv": CSV, "b.pickle": "x"}, r"b\.pickle: files ending in '\.pickle'"),
    "some named after splits": (
        {"train.csv": CSV, "extra.csv": CSV},
        "train.csv is named after a split, but extra.csv",
    ),
    "an empty file": ({"a.csv": CSV, "b.csv": ""}, r"b\.csv: the file is empty"),
    "another header": ({"a.csv": CSV, "b.csv": "texts,label\nc,1\n"}, r"b\.csv: there is no column 'text'"),
    "a label that training lacks": (
        {"train.csv": CSV, "test.csv": "text,label\nc,2\n"},
        r"test\.csv, line 2, column 'label': no training record has this label",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_that_are_no_source(tmp_path: Path, case: str) -> None:
    content, message = FOLDERS[case]
    for name, text in content.items():
        put(tmp_path, name, text)
    with pytest.raises(RecordError, match=message):
        read(tmp_path)


def test_a_part_without_records_is_said(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", CSV)
    put(tmp_path, "test.csv", "text,label\n")
    assert warned(read(tmp_path), "test.csv holds no records")


def test_files_that_name_their_classes_differently(tmp_path: Path) -> None:
    for name, order in (("train", '["x", "y"]'), ("test", '["y", "x"]')):
        table = pa.table({"text": ["a", "b"], "label": [0, 1]}).replace_schema_metadata(
            {"label_names": order}
        )
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(RecordError, match="name their classes differently"):
        read(tmp_path)


def test_a_hub_data_set_is_taken_split_by_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(source: str, near: str | None) -> list[tuple[str, pa.Table]]:
        assert source == "somebody/some_set:small"
        made = pa.table({"text": ["a", "b"], "label": [0, 1]})
        return [
            ("train", made),
            ("validation_matched", made),
            ("unsupervised", pa.table({"text": ["z"], "label": [-1]})),
        ]

    monkeypatch.setattr(sources, "hub_parts", parts)
    found = read_records("somebody/some_set:small", Columns("text", "label"))
    assert found.report.splits == {"train": 2, "validation": 2, "unlabelled": 1}
    assert found.report.repeats["shared"] == 2


def test_a_hub_that_cannot_be_reached_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "reviews_2.csv", CSV)
    monkeypatch.setattr(hub, "_reachable", lambda endpoint: False)
    with pytest.raises(DataError, match=r"hub cannot be reached.*similar name is reviews_2\.csv") as caught:
        read_records("reviews_2", Columns("text", "label"))
    assert caught.value.__suppress_context__


def test_hub_names_are_not_taken_for_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in ("folder/sub/name", "./name", "name.csv", "a b"):
        with pytest.raises(RecordError, match="no such file or folder"):
            read_records(source, Columns("text", "label"))


def test_roles_need_columns_of_their_own() -> None:
    for columns in (
        {"text": "a", "label": "a"},
        {"text": "a+b", "label": "b"},
        {"text": "a+a", "label": "c"},
        {"text": ("a",), "label": "b", "user": "b"},
    ):
        with pytest.raises(ParameterError, match="both name the column"):
            Columns(**columns)
    for text in ("", ("a", "b", "c"), "+"):
        with pytest.raises(ParameterError, match=r"ingestion\.text"):
            Columns(text, "label")


def test_an_unknown_encoding_is_named(tmp_path: Path) -> None:
    for name in ("utf-99", "base64"):
        with pytest.raises(ParameterError, match=f"ingestion.encoding is '{name}'"):
            read_records(str(put(tmp_path, "a.csv", CSV)), Columns("text", "label"), Rules(encoding=name))


EARLY = {
    "csv": ("a.csv", "body,label\nx,1\n"),
    "another separator": ("a.csv", "body;label\nx;1\n"),
    "tsv": ("a.tsv", 'body\tlabel\n"x\t1\n'),
    "json lines": ("a.jsonl", '{"body": "x", "label": 1}\nnot read\n'),
    "json": ("a.json", '[{"body": "x", "label": 1}, not read'),
}


@pytest.mark.parametrize("case", EARLY)
def test_columns_are_checked_before_records_are_read(tmp_path: Path, case: str) -> None:
    source = str(put(tmp_path, *EARLY[case]))
    check_source(source, Columns("body", "label"), "utf-8")
    with pytest.raises(RecordError, match=r"there is no column 'bodi'\. The closest is 'body'"):
        check_source(source, Columns("bodi", "label"), "utf-8")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "saved"])
def test_columns_of_tables_are_checked_by_the_schema(tmp_path: Path, kind: str) -> None:
    import datasets
    from pyarrow import feather

    table = pa.table({"body": ["x"], "label": [1.5], "many": [[1]]})
    if kind == "saved":
        datasets.Dataset(table).save_to_disk(str(tmp_path / kind))
    else:
        write = {"parquet": pq.write_table, "arrow": feather.write_feather}[kind]
        write(table, str(tmp_path / kind))
    check_source(str(tmp_path / kind), Columns("body", "label"), "utf-8")
    with pytest.raises(RecordError, match="there is no column 'labell'"):
        check_source(str(tmp_path / kind), Columns("body", "labell"), "utf-8")
    with pytest.raises(RecordError, match="column 'many': the column holds"):
        check_source(str(tmp_path / kind), Columns("many", "label"), "utf-8")


def test_what_is_not_there_is_refused_early_and_a_hub_name_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file"):
        check_source(str(tmp_path / "a.csv"), Columns("text", "label"), "utf-8")
    check_source("owner/name", Columns("text", "label"), "utf-8")
    check_source("embedded", Columns("text", "label"), "utf-8")
    with pytest.raises(RecordError, match="there is no column 'txt'"):
        check_source("embedded", Columns("txt", "label"), "utf-8")
