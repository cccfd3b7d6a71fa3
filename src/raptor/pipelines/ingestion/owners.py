"""The owner expert of each record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from raptor.dp.records import EncodedImages
from raptor.errors import ModelError
from raptor.moe.classifier import load_encoder
from raptor.moe.families import sparse_layers
from raptor.moe.ownership import assign_owners
from raptor.moe.precision import DoubleThroughout, in_double
from raptor.moe.routing import Vote, record_votes
from raptor.progress import track

BATCH = 256
"""Records of one forward pass."""


def record_owners(
    tokens: pa.ChunkedArray,
    base_model: Path,
    layers: Sequence[int],
    vote: Vote,
    *,
    users: NDArray[np.int64] | None = None,
    images: EncodedImages | None = None,
) -> pa.Table:
    """Owners of encoded records, or of users, in some sparse layers.

    Records of equal length share a forward pass, so no pass holds padding: the pass that decides a record's
    owner has a shape that does not depend on other records' lengths. Products are summed in another order when the
    number of records or of an expert's tokens in a pass is another, so passes are made in float64, where that moves a
    vote by some 1e-15, and votes are rounded to float32 before they are compared: equal ones stay equal, and others
    that this could turn are far rarer than any delta.

    Args:
        tokens: list<int32> of the token ids of each record, unpadded.
        base_model: directory of the base model.
        layers: indices of sparse layers.
        vote: how tokens vote.
        users: (records,) number of each record's user, from 0 without a gap. The votes of a user's records are added,
            in an order that only these records decide.
        images: of the records, which then pass through the model one by one.

    Returns:
        A table with an int64 column ``layer_<index>`` for each layer, a row for each record, or user.

    Raises:
        ModelError: the model has no such sparse layer.
    """
    encoder = load_encoder(base_model)
    in_double(encoder)
    known = [layer.index for layer in sparse_layers(encoder)]
    unknown = sorted(set(layers) - set(known))
    if unknown or not layers:
        raise ModelError(
            f"The layer plan names layers {unknown}, but the model's sparse layers are {known}. Run the "
            "selection stage again with this model."
        )
    flat = tokens.combine_chunks()
    starts = flat.offsets.to_numpy()[:-1].astype(np.int64)
    lengths = np.diff(flat.offsets.to_numpy()).astype(np.int64)
    values = flat.values.to_numpy()
    owners = {layer: np.empty(len(lengths), dtype=np.int64) for layer in layers}
    number = 0 if users is None or not len(users) else int(users.max()) + 1
    sums: dict[int, NDArray[np.float64]] = {}
    batches = _batches(lengths) if images is None else list(np.arange(len(lengths))[:, None])
    for rows in track(batches, "Routing records"):
        ids = torch.from_numpy(values[starts[rows][:, None] + np.arange(lengths[rows[0]])].astype(np.int64))
        pictures = None if images is None else images.take(torch.from_numpy(rows), ids.shape[1])
        with DoubleThroughout():
            votes = record_votes(
                encoder, ids, torch.ones_like(ids), vote=vote, batch_size=BATCH, images=pictures
            )
        for layer in layers:
            if users is None:
                owners[layer][rows] = assign_owners(votes[layer].float()).numpy()
            else:
                total = sums.setdefault(layer, np.zeros((number, votes[layer].shape[1])))
                np.add.at(total, users[rows], votes[layer].numpy())
    if users is not None:
        owners = {
            layer: assign_owners(torch.from_numpy(total).float()).numpy() for layer, total in sums.items()
        }
    return pa.table({f"layer_{layer}": owners[layer] for layer in layers})


def _batches(lengths: np.ndarray) -> list[np.ndarray]:
    """Row numbers of records of equal length, at most `BATCH` at a time."""
    order = np.argsort(lengths, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)
    return [group[at : at + BATCH] for group in groups for at in range(0, len(group), BATCH)]
