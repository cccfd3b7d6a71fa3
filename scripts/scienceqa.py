"""ScienceQA as records for `kedro run --env scienceqa-vl2`: question with choices, image, and the letter of the answer.

    python scripts/scienceqa.py --out data/01_raw/scienceqa.parquet

The data set (Lu et al., arXiv 2209.09513) is read from the hub, or from a folder of its Parquet files. Half of the
questions have no image; they are kept, as questions without one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAME = "derek-thomas/ScienceQA"
SPLITS = ("train", "validation", "test")
LETTERS = "ABCDEFGH"


def question(row: Mapping[str, Any]) -> str:
    """Hint, question and choices as one text."""
    choices = [f"({LETTERS[number]}) {choice}" for number, choice in enumerate(row["choices"])]
    return " ".join(
        part.strip() for part in (row.get("hint") or "", row["question"], *choices) if part.strip()
    )


def records(rows: Sequence[Mapping[str, Any]], split: str) -> pa.Table:
    """Records of one split; an image is encoded bytes, or bytes beside a path, or missing."""
    images = [row["image"].get("bytes") if isinstance(row["image"], dict) else row["image"] for row in rows]
    return pa.table(
        {
            "question": pa.array([question(row) for row in rows], pa.string()),
            "image": pa.array(images, pa.large_binary()),
            "answer": pa.array([LETTERS[int(row["answer"])] for row in rows], pa.string()),
            "split": pa.array([split] * len(rows), pa.string()),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", default=NAME, help="hub name, or a folder with the same Parquet files")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    from datasets import Image, load_dataset

    tables = []
    for split in SPLITS:
        try:
            found = load_dataset(given.source, split=split)
        except (OSError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            sys.exit(
                f"Error: --source {given.source!r} gave no split {split!r} ({reason}). It is read from the hub, which "
                "needs a network, or from a folder of the same Parquet files."
            )
        tables.append(records(found.cast_column("image", Image(decode=False)).to_list(), split))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(tables), given.out, row_group_size=500)
    print(f"{given.out}: {sum(map(len, tables)):,} questions")


if __name__ == "__main__":
    main()
