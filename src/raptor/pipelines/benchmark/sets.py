"""A labelled set of the benchmark, ready to be sampled from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raptor.dp.records import EncodedRecords
from raptor.errors import DataError, ParameterError
from raptor.moe.routing import Vote
from raptor.pipelines.ingestion.encoding import encode_split, held_out_split, load_tokenizer
from raptor.pipelines.ingestion.owners import record_owners
from raptor.pipelines.training.records import encoded_records
from raptor.text.columns import Columns
from raptor.text.problems import RecordError
from raptor.text.records import read_records
from raptor.text.splits import TRAIN

logger = logging.getLogger(__name__)

PAIRS = ("sentence1", "sentence2")
# The records of a benchmark are public, so the part of them that is used is fixed for everybody.
SEED = 5


@dataclass(frozen=True)
class BenchmarkSet:
    """Encoded records of one set, and their owners in the layers that some method protects.

    Attributes:
        train: owners are zeros; `owned` puts those of a layer in.
        owners: layer -> (records,) int64.
    """

    name: str
    classes: int
    train: EncodedRecords
    test: EncodedRecords
    owners: dict[int, torch.Tensor]

    def owned(self, layers: Sequence[int]) -> EncodedRecords:
        """The training records with their owners in some layers."""
        columns = [self.owners[layer] for layer in layers]
        return replace(self.train, owners=columns[0] if len(columns) == 1 else torch.stack(columns, dim=1))

    def part(self, rows: torch.Tensor) -> BenchmarkSet:
        """The same with some of the training records only; owners are those of each record alone."""
        train = self.train
        return replace(
            self,
            train=EncodedRecords(
                train.input_ids[rows], train.lengths[rows], train.labels[rows], train.owners[rows]
            ),
            owners={layer: owners[rows] for layer, owners in self.owners.items()},
        )


def set_name(given: str) -> str:
    """How a set is called in results: its file's name without the ending."""
    return Path(given).name.removesuffix(".parquet")


def locate(folder: Path, name: str) -> Path:
    """The file of a set: a path of its own, `name.parquet`, or `name/name.parquet` in the folder.

    Raises:
        ParameterError: there is no such file.
    """
    tried = [Path(name), folder / f"{name}.parquet", folder / name / f"{name}.parquet"]
    for place in tried:
        if place.is_file():
            return place
    raise ParameterError(
        f"benchmark.sets has {name!r}, but there is none of {', '.join(map(str, tried))}. Give the folder of the "
        "sets as benchmark.folder, or the path of a Parquet file with the columns text (or sentence1 and sentence2), "
        "label and split."
    )


def load_set(
    place: Path,
    base_model: Path,
    layers: Sequence[int],
    *,
    max_length: int,
    train_records: int,
    test_records: int,
    vote: Vote,
) -> BenchmarkSet:
    """Read, cut, encode and route a set.

    Args:
        place: a Parquet file with `text`, or `sentence1` and `sentence2`, `label` and `split`.
        base_model: directory of model and tokenizer.
        layers: sparse layers whose owners are wanted.
        max_length: tokens of a record.
        train_records, test_records: at most so many of either split, drawn with a fixed seed.
        vote: how tokens vote for owners.

    Raises:
        DataError: the file cannot be read, or lacks a split.
    """
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(place).names
        text = "+".join(PAIRS) if set(PAIRS) <= set(names) else "text"
        records = read_records(str(place), Columns(text, "label", "split"))
    except RecordError as error:
        # A benchmark's records are public, so the message may show what was found.
        raise DataError(f"benchmark set {place}: {error.terminal}") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"benchmark set {place} is not a readable Parquet file: {error}") from error
    # Counts in them are of public records.
    for warning in records.report.warnings:
        logger.warning("Set %s: %s", set_name(place.name), warning)
    held_out = held_out_split(records.table)
    tokenizer = load_tokenizer(base_model)
    train = encode_split(_some(records.table, TRAIN, train_records), TRAIN, tokenizer, max_length)
    test = encode_split(_some(records.table, held_out, test_records), held_out, tokenizer, max_length)
    if not (train.num_rows and test.num_rows):
        raise DataError(
            f"benchmark set {place} has {train.num_rows} training and {test.num_rows} test records."
        )
    owners = record_owners(train["input_ids"], base_model, layers, vote)
    return BenchmarkSet(
        set_name(place.name),
        len(records.label_names),
        encoded_records(_Table(train), None, ()),
        encoded_records(_Table(test), None, ()),
        {layer: torch.tensor(owners[f"layer_{layer}"].to_numpy()) for layer in layers},
    )


def _some(table: pa.Table, split: str, records: int) -> pa.Table:
    """At most so many labelled records of a split, in their order."""
    rows = np.flatnonzero(
        pc.and_(pc.equal(table["split"], split), pc.is_valid(table["label"])).to_numpy(zero_copy_only=False)
    )
    if len(rows) > records:
        rows = np.sort(np.random.default_rng(SEED).choice(rows, size=records, replace=False))
    return table.take(pa.array(rows))


class _Table:
    """An Arrow table in the form that training reads, which is that of `datasets`."""

    _indices = None

    def __init__(self, table: pa.Table) -> None:
        self.data = table
        self.column_names = table.column_names
