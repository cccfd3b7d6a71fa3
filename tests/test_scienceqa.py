"""The script that makes records of ScienceQA, on made-up questions in its form."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.text.reading import read
from tests.text.test_images import picture

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "scienceqa.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("scienceqa", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_questions_become_records_that_ingestion_reads(tmp_path: Path) -> None:
    script = load()
    rows = [
        {
            "question": f"Which of these floats, case {number}?",
            "hint": "Look at the picture." if number % 2 else "",
            "choices": ["a cork", "a stone", "a nail"][: 2 + number % 2],
            "answer": number % 2,
            "image": {"bytes": picture(number), "path": None} if number % 3 else None,
        }
        for number in range(12)
    ]
    place = tmp_path / "records.parquet"
    tables = [script.records(rows[:9], "train"), script.records(rows[9:], "test")]
    pq.write_table(pa.concat_tables(tables), place)
    found = read(place, text="question", label="answer", image="image", split="split")
    assert found.label_names == ("A", "B")
    assert found.table["image"].null_count == 4
    assert found.table["text"][1].as_py() == (
        "Look at the picture. Which of these floats, case 1? (A) a cork (B) a stone (C) a nail"
    )
    assert found.table["text"][2].as_py() == "Which of these floats, case 2? (A) a cork (B) a stone"
