"""`raptor predict`: as many rows as records, in their order, or nothing at all."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from raptor import prediction
from raptor.cli import cli
from raptor.errors import ParameterError
from tests.export.world import NAMES, save_model
from tests.text.reading import put


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tuned")


@pytest.fixture(scope="module")
def pair_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("pairs") / "tuned", text="subject+body")


def predict(model: Path, source: Path, output: Path, *more: str) -> Result:
    return CliRunner().invoke(
        cli, ["predict", "--model", str(model), "--input", str(source), "--output", str(output), *more]
    )


def read_csv(path: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


ROWS = ["a b c", "", "z" * 3, "a b c", "x, y\nz"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with (tmp_path / "in.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([number, text] for number, text in enumerate(ROWS))])
    return tmp_path / "in.csv"


def test_every_record_gets_a_row_in_its_place(model: Path, source: Path, tmp_path: Path) -> None:
    result = predict(model, source, tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    rows = read_csv(tmp_path / "out.csv")
    assert [row["row"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0]["label"] == rows[3]["label"]
    for row in rows:
        shares = {name: float(row[f"p({name})"]) for name in NAMES}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert max(shares, key=lambda name: shares[name]) == row["label"]
    assert "records without text: 1" in result.output
    assert len({row["label"] for row in rows}) > 1


def test_all_kinds_of_output_say_the_same(model: Path, source: Path, tmp_path: Path) -> None:
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        assert predict(model, source, tmp_path / f"out.{ending}").exit_code == 0
    rows = read_csv(tmp_path / "out.csv")
    assert read_csv(tmp_path / "out.tsv", "\t") == rows
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    for row, line, typed in zip(rows, lines, table, strict=True):
        assert (
            (int(row["row"]), row["label"]) == (line["row"], line["label"]) == (typed["row"], typed["label"])
        )
        for name in NAMES:
            assert (
                float(row[f"p({name})"])
                == line["probabilities"][name]
                == pytest.approx(typed[f"p({name})"], rel=1e-5)
            )


def test_chunks_change_nothing(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(model, source, tmp_path / "a.csv")
    monkeypatch.setattr(prediction, "CHUNK", 2)
    monkeypatch.setattr(prediction, "BATCH", 1)
    predict(model, source, tmp_path / "b.csv")
    one, other = read_csv(tmp_path / "a.csv"), read_csv(tmp_path / "b.csv")
    assert [row["label"] for row in one] == [row["label"] for row in other]
    for left, right in zip(one, other, strict=True):
        assert float(left[f"p({NAMES[0]})"]) == pytest.approx(float(right[f"p({NAMES[0]})"]), abs=1e-4)


def test_the_columns_of_training_are_the_default(pair_model: Path, tmp_path: Path) -> None:
    source = put(tmp_path, "in.jsonl", '{"subject": "a b", "body": "c"}\n{"subject": "a b", "body": "z q"}\n')
    assert predict(pair_model, source, tmp_path / "out.csv").exit_code == 0
    first, second = read_csv(tmp_path / "out.csv")
    assert first[f"p({NAMES[0]})"] != second[f"p({NAMES[0]})"]


def test_a_column_of_another_name_is_given(model: Path, tmp_path: Path) -> None:
    source = put(tmp_path, "in.csv", "message\na b\nc\n")
    result = predict(model, source, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "there is no column 'text'" in result.output
    assert predict(model, source, tmp_path / "out.csv", "--text", "message").exit_code == 0


def test_one_text_and_equal_texts_are_no_errors(model: Path, tmp_path: Path) -> None:
    for content in ("text\na\n", "text\na\na\na\n"):
        assert predict(model, put(tmp_path, "in.csv", content), tmp_path / "out.csv").exit_code == 0
    assert len(read_csv(tmp_path / "out.csv")) == 3


def test_a_broken_record_stops_with_its_line_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    source = put(tmp_path, "in.csv", "id,text\n1,a\n2,b,c\n")
    result = predict(model, source, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "line 3: the record has 3 fields" in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["in.csv"]


def test_an_output_that_cannot_be_is_refused_first(model: Path, source: Path, tmp_path: Path) -> None:
    for output, message in (
        (tmp_path / "out.xlsx", "ends in .xlsx"),
        (tmp_path / "out", "ends in nothing"),
        (tmp_path / "no" / "out.csv", "which is not there"),
        (source, "is the input"),
        (model / "out.csv", "lies in the model"),
        (tmp_path / f"{'x' * 300}.csv", "cannot be the name of a file"),
        (Path("/dev/null/out.csv"), "which is not there"),
    ):
        result = predict(model, source, output)
        assert result.exit_code == 1
        assert message in result.output
    assert source.read_text(encoding="utf-8").startswith("id,text")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.csv").write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prediction.os, "fsync", full)
    result = predict(model, source, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert (tmp_path / "out.csv").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_a_directory_that_is_no_tuned_model_is_refused(model: Path, source: Path, tmp_path: Path) -> None:
    result = predict(model.parent / "base", source, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "a base model, not a tuned classifier" in result.output


def test_names_that_do_not_fit_the_head_are_refused(model: Path, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    config["id2label"].pop("2")
    config["label2id"].pop(NAMES[2])
    (other / "config.json").write_text(json.dumps(config))
    result = predict(other, source, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "names for 2" in result.output


def test_nothing_is_written_into_the_folder_that_is_read(model: Path, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_bytes(source.read_bytes())
    for name in ("a.csv", "c.csv"):
        result = predict(model, folder, folder / name)
        assert result.exit_code == 1
        assert "lies in the input" in result.output
    assert (folder / "a.csv").read_bytes() == source.read_bytes()


def test_what_is_no_file_is_not_replaced(model: Path, source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.csv")
    result = predict(model, source, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "is there and is no file" in result.output


def answers(names: tuple[str, ...], output: Path) -> str:
    """What is written of one record whose likeliest class is the first."""
    shares = np.full((1, len(names)), 0.5 / max(len(names) - 1, 1))
    shares[0, 0] = 0.5
    prediction.write_predictions([prediction.Prediction(1, np.array([0]), shares)], names, output)
    return output.read_text(encoding="utf-8")


def test_the_last_ending_decides(tmp_path: Path) -> None:
    assert answers(("a", "b"), tmp_path / "a.tsv.csv").startswith("row,label,")
    assert answers(("a", "b"), tmp_path / "a.csv.TSV").startswith("row\tlabel\t")


def test_names_of_classes_come_back_as_they_are(tmp_path: Path) -> None:
    names = ('say "no", please', "b, c", "=1+1", "d'e", "f|g")
    assert answers(names, tmp_path / "a.tsv").splitlines()[1].split("\t")[1] == names[0]
    answers(names, tmp_path / "a.csv")
    assert read_csv(tmp_path / "a.csv")[0]["label"] == names[0]
    answers(("a\nb", "c\td"), tmp_path / "b.csv")
    assert read_csv(tmp_path / "b.csv")[0]["label"] == "a\nb"
    for name in ("a\nb", "a\tb", "a\rb"):
        with pytest.raises(ParameterError, match="which TSV cannot hold"):
            answers((name, "c"), tmp_path / "b.tsv")
    assert not (tmp_path / "b.tsv").exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", None, "not a readable model config"),
        ("config.json", {"id2label": ["a", "b", "c"]}, "not a readable model config"),
        ("config.json", {"id2label": {"0": "a", "1": "a", "2": "b"}}, "different names for 2"),
        ("config.json", {"text_columns": 5}, "names no columns"),
        ("config.json", {"text_columns": [1]}, "names no columns"),
        ("config.json", {"text_columns": None}, "names no columns"),
        ("tokenizer.json", {"added_tokens": 1, "model": {}}, "no usable tokenizer"),
        ("tokenizer_config.json", {"model_max_length": 10**30}, "no number of tokens"),
        ("tokenizer_config.json", {"model_max_length": "a"}, "no usable tokenizer|no number of tokens"),
        ("tokenizer_config.json", {"model_max_length": 0}, "no number of tokens"),
    ],
)
def test_an_edited_model_is_refused_in_words(
    model: Path, source: Path, tmp_path: Path, name: str, change: dict[str, Any] | None, message: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    kept = json.loads((other / name).read_text(encoding="utf-8"))
    (other / name).write_text("null" if change is None else json.dumps({**kept, **change}), encoding="utf-8")
    result = predict(other, source, tmp_path / "out.csv")
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert re.search(message, result.output)
    assert not (tmp_path / "out.csv").exists()
