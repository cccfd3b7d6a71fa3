"""From the Arrow tables of ingestion to the tensors that training samples from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from raptor.accounting.types import Unit
from raptor.dp.records import EncodedRecords
from raptor.errors import DataError
from raptor.pipelines.images import encoded_images


def encoded_records(split: Any, owners: Any | None, layers: Sequence[int]) -> EncodedRecords:
    """Tensors of a split with the columns `input_ids` and `label`, and `prompt` where texts are continued.

    Args:
        split: `datasets.Dataset` of the split. Where it has a column `user`, a unit is a user with those records.
        owners: `datasets.Dataset` with one column a layer, in the order of the split, or of the users; None for a
            split that no expert step uses.
        layers: the protected layers, when owners are given.

    Raises:
        DataError: a column is missing, or the tables do not belong together.
    """
    tokens = _column(split, "input_ids", "split").combine_chunks()
    lengths = torch.from_numpy(np.diff(tokens.offsets.to_numpy()).astype(np.int64))
    width = max(int(lengths.max()), 1) if len(lengths) else 1
    ids = torch.zeros(len(lengths), width, dtype=torch.int32)
    ids[torch.arange(width)[None] < lengths[:, None]] = torch.from_numpy(
        tokens.flatten().to_numpy(zero_copy_only=False).astype(np.int32)
    )
    labels = torch.from_numpy(_column(split, "label", "split").to_numpy().astype(np.int64))
    groups = None
    if "user" in split.column_names:
        groups = user_groups(_column(split, "user", "split").to_numpy().astype(np.int64))
    if owners is None:
        owner = torch.zeros(len(labels) if groups is None else len(groups), dtype=torch.int64)
    else:
        columns = [
            torch.from_numpy(_column(owners, f"layer_{layer}", "owner partition").to_numpy().astype(np.int64))
            for layer in layers
        ]
        owner = columns[0] if len(columns) == 1 else torch.stack(columns, dim=1)
    prompts = None
    if "prompt" in split.column_names:
        prompts = torch.from_numpy(_column(split, "prompt", "split").to_numpy().astype(np.int64))
    return EncodedRecords(ids, lengths, labels, owner, groups, prompts, encoded_images(split))


def held_out_records(split: Any, unit: Unit) -> EncodedRecords:
    """Tensors of the held-out split, of which one unit moves a table by what one record moves it.

    Args:
        split: `datasets.Dataset`.
        unit: of the privacy plan.

    Raises:
        DataError: see `encoded_records`; or the split was read for another unit of privacy.
    """
    records = encoded_records(split, None, ())
    records.require_unit(unit, "held-out data", most=1)
    return records


def user_groups(users: NDArray[np.int64]) -> torch.Tensor:
    """(users, most records of one) int64 positions of each user's records, -1 behind the last one.

    Args:
        users: (records,) number of each record's user, from 0.
    """
    counts = np.bincount(users)
    order = np.argsort(users, kind="stable")
    starts = np.cumsum(counts) - counts
    groups = np.full((len(counts), int(counts.max(initial=1))), -1, dtype=np.int64)
    groups[users[order], np.arange(len(users)) - starts[users[order]]] = order
    return torch.from_numpy(groups)


def _column(table: Any, name: str, what: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise DataError(
            f"The {what} has no column {name!r}; it has {', '.join(table.column_names)}. It was made with other "
            "parameters: run the ingestion stage again."
        )
    # `flatten_indices` applies a selection that datasets keep beside the table.
    return (
        table.flatten_indices().data.column(name) if table._indices is not None else table.data.column(name)
    )
