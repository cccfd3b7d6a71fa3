"""Datasets give back what they were given, and never leave a half-written or stray copy."""

from __future__ import annotations

import errno
import math
import re
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DatasetError

from raptor.cli_run import _for_the_user
from raptor.datasets import (
    ArrowDataset,
    FigureDataset,
    JSONDataset,
    JSONLinesDataset,
    ParquetDataset,
    PretrainedDirectory,
    PrivateKey,
    ReleaseJournalStore,
    TextDataset,
)
from raptor.errors import DataError


class Directory:
    """Something that saves itself as a model directory, or fails on the way."""

    def __init__(self, name: str, fails: bool = False) -> None:
        self.name, self.fails = name, fails

    def save_to(self, directory: Path) -> None:
        (directory / "config.json").write_text(self.name)
        if self.fails:
            raise OSError("disk full")
        (directory / f"{self.name}.bin").write_text(self.name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, "é\u2028"]}, [], "text", {"n": {"m": True}}])
def test_json_round_trip(tmp_path: Path, value: Any) -> None:
    dataset = JSONDataset(filepath=str(tmp_path / "deep" / "value.json"))
    assert not dataset.exists()
    dataset.save(value)
    assert dataset.exists()
    assert dataset.load() == value
    assert names(tmp_path / "deep") == ["value.json"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, object()])
def test_json_refuses_what_is_not_json_and_keeps_the_old_file(tmp_path: Path, bad: Any) -> None:
    for dataset in (
        JSONDataset(filepath=str(tmp_path / "a")),
        JSONLinesDataset(filepath=str(tmp_path / "b")),
    ):
        dataset.save([{"old": 1}])
        with pytest.raises(DatasetError) as caught:
            dataset.save([{"good": 1}, {"bad": bad}])
        assert isinstance(caught.value.__cause__, DataError)
        assert dataset.load() == [{"old": 1}]
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', "{", ""])
def test_json_load_refuses_what_others_cannot_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "value.json").write_text(text)
    with pytest.raises(DatasetError, match="not valid JSON"):
        JSONDataset(filepath=str(tmp_path / "value.json")).load()


def test_what_is_not_there_yet_is_told_as_such(tmp_path: Path) -> None:
    for kind in (
        JSONDataset,
        JSONLinesDataset,
        TextDataset,
        FigureDataset,
        ArrowDataset,
        PretrainedDirectory,
    ):
        with pytest.raises(DatasetError, match="is not there yet") as caught:
            kind(filepath=str(tmp_path / "nothing")).load()
        assert isinstance(caught.value.__cause__, DataError)


def test_json_lines_round_trip_with_odd_separators(tmp_path: Path) -> None:
    rows = [{"text": "one\u2028two\x85three"}, {"text": "a\nb"}, {}]
    dataset = JSONLinesDataset(filepath=str(tmp_path / "rows.jsonl"))
    dataset.save(iter(rows))
    assert dataset.load() == rows
    dataset.save([])
    assert dataset.load() == []


def test_json_lines_name_the_broken_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(DatasetError, match="line 2"):
        JSONLinesDataset(filepath=str(tmp_path / "rows.jsonl")).load()


def test_text_and_figure(tmp_path: Path) -> None:
    text = TextDataset(filepath=str(tmp_path / "report.html"))
    text.save("<p>é</p>\n")
    assert text.load() == "<p>é</p>\n"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.plot([1, 2])
    picture = FigureDataset(filepath=str(tmp_path / "figure.png"), dpi=50)
    picture.save(figure)
    assert picture.load().startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []
    assert names(tmp_path) == ["figure.png", "report.html"]


def test_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    dataset = PretrainedDirectory(filepath=str(tmp_path / "model"))
    assert not dataset.exists()
    dataset.save(Directory("first"))
    dataset.save(Directory("second"))
    assert dataset.load() == tmp_path / "model"
    assert names(tmp_path / "model") == ["config.json", "second.bin"]
    assert names(tmp_path) == ["model"]


def test_directory_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    dataset = PretrainedDirectory(filepath=str(tmp_path / "model"))
    with pytest.raises(DatasetError):
        dataset.save(Directory("first", fails=True))
    assert names(tmp_path) == []
    dataset.save(Directory("first"))
    with pytest.raises(DatasetError):
        dataset.save(Directory("second", fails=True))
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["config.json", "first.bin"]


def test_leftovers_of_a_killed_run_do_not_matter(tmp_path: Path) -> None:
    for leftover in ("model.partial", "model.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "config.json").write_text("stale")
    dataset = PretrainedDirectory(filepath=str(tmp_path / "model"))
    assert not dataset.exists()
    dataset.save(Directory("first"))
    dataset.save(Directory("second"))
    assert names(tmp_path) == ["model"]
    assert "second.bin" in names(tmp_path / "model")


def test_directory_without_config_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    dataset = PretrainedDirectory(filepath=str(tmp_path / "model"))
    assert not dataset.exists()
    with pytest.raises(DatasetError, match=r"no config\.json"):
        dataset.load()


def test_arrow_takes_tables_and_saves_over_its_own_source(tmp_path: Path) -> None:
    import pyarrow as pa

    dataset = ArrowDataset(filepath=str(tmp_path / "table"))
    dataset.save(pa.table({"ids": [[1, 2], [], [3]], "label": [0, 1, 0]}))
    assert dataset.exists()
    loaded = dataset.load()
    assert loaded["ids"][:] == [[1, 2], [], [3]]
    dataset.save(loaded.select([2]))
    assert dataset.load()["ids"][:] == [[3]]
    assert names(tmp_path) == ["table"]


def test_journals_folder_is_made_on_load_and_never_saved(tmp_path: Path) -> None:
    store = ReleaseJournalStore(filepath=str(tmp_path / "journals"))
    assert store.load().is_dir()
    assert store.exists()
    with pytest.raises(DatasetError, match="while it runs"):
        store.save("anything")


def test_a_key_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    key = PrivateKey(filepath=str(tmp_path / "private" / "key"))
    first = key.load()
    assert len(first) == 32
    assert key.load() == first
    assert (tmp_path / "private" / "key").stat().st_mode & 0o777 == 0o600
    assert PrivateKey(filepath=str(tmp_path / "other")).load() != first
    (tmp_path / "private" / "key").write_bytes(first[:5])
    with pytest.raises(DatasetError, match="does not hold a key"):
        key.load()
    with pytest.raises(DatasetError, match="never written"):
        key.save("anything")


def test_describe_shows_the_place_and_metadata_is_kept() -> None:
    dataset = JSONDataset(filepath="data/a.json", metadata={"privacy": "public"})
    assert dataset.metadata == {"privacy": "public"}
    assert "data/a.json" in str(dataset)


def test_rows_of_a_parquet_file_come_back(tmp_path: Path) -> None:
    dataset = ParquetDataset(filepath=str(tmp_path / "rows.parquet"))
    rows = [{"name": "a", "value": 0.5}, {"name": "b", "value": 1.0}]
    dataset.save(rows)
    assert dataset.load() == rows
    assert names(tmp_path) == ["rows.parquet"]
    (tmp_path / "rows.parquet").write_bytes(b"nothing")
    with pytest.raises(DatasetError, match="not a Parquet file"):
        dataset.load()


def test_a_full_disk_is_one_message_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    dataset = TextDataset(filepath=str(tmp_path / "a.txt"))
    dataset.save("old")
    monkeypatch.setattr("raptor.datasets.atomic.os.fsync", full)
    with pytest.raises(DatasetError) as caught:
        dataset.save("new")
    assert isinstance(caught.value.__cause__, DataError)
    assert re.search(
        r"a\.txt cannot be written \(No space left on device\)", _for_the_user(caught.value) or ""
    )
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert dataset.load() == "old"


def test_a_full_disk_elsewhere_is_one_message() -> None:
    failed = RuntimeError("a node failed")
    failed.__cause__ = OSError(errno.ENOSPC, "No space left on device", "journal.jsonl")
    assert "The disk is full: there was no room for journal.jsonl" in (_for_the_user(failed) or "")
