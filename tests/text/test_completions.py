"""Prompts and completions: read by their columns, cut by public lengths, tokenised apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from raptor.errors import ModelError, ParameterError
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.ingestion.encoding import load_tokenizer
from raptor.text.columns import Columns
from raptor.text.completions import Lengths, Prompted, encode_prompted, prompt_texts, ready
from raptor.text.problems import RecordError
from raptor.text.records import Records, Rules, read_records
from tests.generation.world import save_tokenizer

COLUMNS = Columns("ask", None, completion="answer")
BOS, EOS = 1, 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return ready(load_tokenizer(folder))


def encode(tokenizer: Any, prompt: str, completion: str, lengths: Lengths) -> Prompted:
    return encode_prompted(tokenizer, [prompt], [completion], lengths)


def letters(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.convert_tokens_to_ids(list(text))
    return ids


def test_a_record_is_its_prompt_its_completion_and_an_end_mark(tokenizer) -> None:
    made = encode(tokenizer, "abc", "xy", Lengths(8, 8))
    assert made.ids == [[BOS, *letters(tokenizer, "abcxy"), EOS]]
    assert made.prompts == [4]
    assert (made.cut_prompts, made.cut_completions) == (0, 0)


def test_a_long_prompt_loses_its_beginning_and_keeps_its_first_mark(tokenizer) -> None:
    made = encode(tokenizer, "abcdef", "x", Lengths(4, 4))
    assert made.ids == [[BOS, *letters(tokenizer, "def"), *letters(tokenizer, "x"), EOS]]
    assert made.prompts == [4]
    assert made.cut_prompts == 1


def test_a_long_completion_loses_its_end_and_with_it_the_mark(tokenizer) -> None:
    made = encode(tokenizer, "a", "uvwxyz", Lengths(4, 3))
    assert made.ids == [[BOS, *letters(tokenizer, "auvw")]]
    assert made.cut_completions == 1
    whole = encode(tokenizer, "a", "uvw", Lengths(4, 4))
    assert whole.ids[0][-1] == EOS
    assert whole.cut_completions == 0


def test_an_empty_completion_has_no_token_at_all(tokenizer) -> None:
    made = encode(tokenizer, "abc", "", Lengths(8, 8))
    assert made.ids == [[BOS, *letters(tokenizer, "abc")]]
    assert made.prompts == [len(made.ids[0])]


def test_a_prompt_becomes_the_same_with_and_without_its_completion(tokenizer) -> None:
    alone = encode(tokenizer, "abc", "", Lengths(6, 6)).ids[0]
    assert encode(tokenizer, "abc", "def", Lengths(6, 6)).ids[0][: len(alone)] == alone


def test_an_empty_prompt_still_has_a_token_before_the_completion(tokenizer) -> None:
    made = encode(tokenizer, "", "x", Lengths(6, 6))
    assert made.prompts == [1]


def test_two_columns_stand_on_lines_of_their_own() -> None:
    assert prompt_texts(["do", "do"], ["this", "  "]) == ["do\nthis", "do"]
    assert prompt_texts(["do"], None) == ["do"]


@pytest.mark.parametrize(
    ("options", "message"), [({"eos": None}, "no end mark"), ({"ending": True}, "behind every text")]
)
def test_a_tokenizer_that_cannot_end_a_completion_is_refused(tmp_path: Path, options, message) -> None:
    save_tokenizer(tmp_path, **options)
    with pytest.raises(ModelError, match=message):
        ready(load_tokenizer(tmp_path))


def test_lengths_follow_from_the_parameters() -> None:
    assert IngestionConfig().lengths is None
    assert IngestionConfig(completion="b", max_length=33).lengths == Lengths(17, 16)
    assert IngestionConfig(completion="b", max_length=33, completion_length=3).lengths == Lengths(30, 3)
    assert IngestionConfig(completion="b").columns == Columns("text", None, completion="b")
    with pytest.raises(ValidationError, match="no token for the prompt"):
        IngestionConfig(completion="b", max_length=8, completion_length=8)
    with pytest.raises(ValidationError, match="would change nothing"):
        IngestionConfig(completion_length=8)


ROWS = [
    {"ask": "one", "answer": "1"},
    {"ask": "two", "answer": " "},
    {"ask": "three", "answer": None},
    {"ask": "four", "answer": "4"},
]


def read(folder: Path, kind: str, rows: list[dict[str, Any]] = ROWS, **columns: Any) -> Records:
    place = folder / f"asked.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), place)
    elif kind == "jsonl":
        place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        keys = list(rows[0])
        lines = [",".join(keys), *(",".join(str(row[key] or "") for key in keys) for row in rows)]
        place.write_text("\n".join(lines) + "\n")
    return read_records(str(place), Columns("ask", None, completion="answer", **columns), Rules())


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_completions_are_read_and_blank_ones_are_none(tmp_path: Path, kind: str) -> None:
    records = read(tmp_path, kind)
    assert records.table["completion"].to_pylist() == ["1", "", "", "4"]
    assert records.table["label"].to_pylist() == [0, 0, 0, 0]
    assert records.label_names == ()
    assert any("without a completion" in warning for warning in records.report.warnings)
    assert records.report.labels == {}


def test_a_json_record_may_lack_its_completion(tmp_path: Path) -> None:
    records = read(tmp_path, "jsonl", [{"ask": "a", "answer": "1"}, {"ask": "b"}])
    assert records.table["completion"].to_pylist() == ["1", ""]


def test_a_completion_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not text"):
        read(tmp_path, "parquet", [{"ask": "a", "answer": 1}])


def test_no_completion_in_training_is_a_wrong_column(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no training record has a completion"):
        read(tmp_path, "csv", [{"ask": "a", "answer": ""}, {"ask": "b", "answer": ""}])


def test_only_records_with_a_completion_are_held_out(tmp_path: Path) -> None:
    rows = [
        {"ask": "a", "answer": "1", "part": "train"},
        {"ask": "b", "answer": "", "part": "train"},
        {"ask": "c", "answer": "", "part": "test"},
        {"ask": "d", "answer": "4", "part": "unlabelled"},
    ]
    records = read(tmp_path, "csv", rows, split="part")
    assert records.held_out is None
    assert records.table["label"].to_pylist() == [0, 0, None, None]
    rows[2]["answer"] = "3"
    records = read(tmp_path, "csv", rows, split="part")
    assert records.held_out == "test"
    assert records.table["label"].to_pylist() == [0, 0, 0, None]


def test_the_same_prompt_with_another_completion_is_no_repeat(tmp_path: Path) -> None:
    rows = [{"ask": "a", "answer": "1"}, {"ask": "a", "answer": "2"}, {"ask": "a", "answer": "2"}]
    assert read(tmp_path, "csv", rows).report.repeats["in_training"] == 1


def test_a_column_has_one_role() -> None:
    with pytest.raises(ParameterError, match=r"ingestion\.completion and ingestion\.text"):
        Columns("a", None, completion="a")
