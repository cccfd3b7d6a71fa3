"""Synthetic records for the gate, and the parts of them that a check puts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from raptor.dp.records import IGNORED, Batch
from raptor.moe.families import SparseLayer, sparse_layers
from raptor.moe.images import CHANNELS, NEWLINE, SEPARATOR, TEXT, ImageInput, image_reader

# A fixed seed is right here: the records are made up and public, and a check must find the same in every run.
SEED = 0
# All different, so that no two records are cut to the same shape; one token alone; fewer records than tokens.
LENGTHS = (7, 1, 5, 3, 6, 4)
# Few different tokens, so that records repeat them and share them.
POOL = 9
# Of a model that takes images: tiles of each record. The first is copied often, and has none.
TILES = (0, 0, 1, 0, 2, 2)
# `EncodedRecords` fills up with zeros.
FILL = 0


def generator() -> torch.Generator:
    """Randomness of the gate; the global generators are left alone."""
    return torch.Generator().manual_seed(SEED)


def token_table(model: nn.Module) -> nn.Embedding | None:
    """The table that token ids are looked up in."""
    for module in model.modules():
        find = getattr(module, "get_input_embeddings", None)
        if find is not None and isinstance(table := find(), nn.Embedding):
            return table
    return next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)


def synthetic_batch(model: nn.Module, classes: int | None) -> Batch:
    """`LENGTHS` records of random tokens of the model's vocabulary, right-padded, with owners all zero.

    Among the tokens is the padding token, where the model has one: it is a token like any other when a tokenizer
    gives it, and its row of the table gets no gradient.

    Args:
        model: gives vocabulary and device.
        classes: labels are (records,) below it; with None they are the tokens themselves, (records, tokens).
    """
    table, random = token_table(model), generator()
    vocabulary = 2 if table is None else table.num_embeddings
    pool = torch.randint(0, vocabulary, (POOL,), generator=random)
    records, width = len(LENGTHS), max(LENGTHS)
    ids = pool[torch.randint(0, POOL, (records, width), generator=random)]
    if table is not None and table.padding_idx is not None:
        ids[0, 1] = ids[2, 0] = table.padding_idx
    mask = (torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.where(mask.bool(), ids, torch.full_like(ids, FILL))
    if classes is None:
        labels = ids.masked_fill(mask == 0, IGNORED)
    else:
        labels = torch.randint(0, classes, (records,), generator=random)
    device = next(model.parameters()).device
    owners = torch.zeros(records, dtype=torch.long)
    images = synthetic_images(model, random)
    return Batch(
        *(value.to(device) for value in (ids, mask, labels, owners)),
        images=None if images is None else images.to(device),
    )


def synthetic_images(model: nn.Module, random: torch.Generator) -> ImageInput | None:
    """Pictures of random pixels for `LENGTHS` records; None for a model of text alone.

    A picture's first token, its last one and what stands between its views are each in some record; the last token of
    a record is text.
    """
    reader = image_reader(model)
    if reader is None:
        return None
    tiles = torch.tensor(TILES)
    shape = (len(TILES), max(TILES), CHANNELS, reader.image_size, reader.image_size)
    pixels = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    pixels[torch.arange(max(TILES))[None] >= tiles[:, None]] = 0
    places = torch.full((len(LENGTHS), max(LENGTHS)), TEXT)
    for record, number in enumerate(TILES):
        last = number * reader.features_per_tile - 1
        order = (last, NEWLINE, 0, SEPARATOR, last // 2) if number else ()
        for token, place in enumerate(order[: LENGTHS[record] - 1]):
            places[record, token] = place
    return ImageInput(pixels, tiles, places)


def crowd(batch: Batch, copies: int) -> Batch:
    """Record 0, many copies of a record of one repeated token, record 0: all copies go to the same experts."""
    rows = torch.zeros(copies + 2, dtype=torch.long, device=batch.labels.device)
    ids = batch.input_ids[rows].clone()
    ids[1:-1] = batch.input_ids[0, :1]
    return Batch(
        ids,
        batch.attention_mask[rows],
        batch.labels[rows],
        batch.owners[rows],
        images=None if batch.images is None else batch.images[rows],
    )


def gather(batch: Batch, rows: Sequence[int], width: int) -> Batch:
    """The records at `rows`, in this order, filled up or cut to `width` tokens."""
    index = torch.tensor(rows, dtype=torch.long, device=batch.labels.device)
    labels = batch.labels[index]
    return Batch(
        _fit(batch.input_ids[index], width, FILL),
        _fit(batch.attention_mask[index], width, 0),
        labels if labels.ndim == 1 else _fit(labels, width, IGNORED),
        batch.owners[index],
        images=None if batch.images is None else batch.images[index].fit(width),
    )


def alone(batch: Batch, record: int) -> Batch:
    """One record without padding."""
    return gather(batch, [record], int(batch.attention_mask[record].sum()))


def _fit(value: Tensor, width: int, fill: int) -> Tensor:
    if width <= value.shape[1]:
        return value[:, :width]
    return nn.functional.pad(value, (0, width - value.shape[1]), value=fill)


def routing_of(run: Any, layers: Sequence[SparseLayer]) -> dict[int, Tensor]:
    """Chosen experts (tokens, k) of each layer, ascending, while `run()` passes one record through the model."""
    found: dict[int, Tensor] = {}

    def reader(layer: SparseLayer) -> Any:
        def read(_module: nn.Module, _inputs: Any, output: Any) -> None:
            found[layer.index] = layer.family.read_routing(output, 1).experts[0].sort(dim=-1).values

        return read

    handles = [layer.router.register_forward_hook(reader(layer)) for layer in layers]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def routings(model: nn.Module, loss: Any, batch: Batch) -> list[dict[int, Tensor]]:
    """`routing_of` for each record alone."""
    layers = sparse_layers(model)
    result = []
    for record in range(len(batch)):
        single = alone(batch, record)
        result.append(routing_of(lambda single=single: loss(model, single), layers))
    return result


def with_owners(batch: Batch, routes: Sequence[dict[int, Tensor]], layers: Sequence[int]) -> Batch:
    """The batch with the expert that most tokens go to as owner, for each record in each of the layers."""
    if not layers:
        return batch
    owners = torch.stack(
        [torch.stack([route[layer].flatten().mode().values for layer in layers]) for route in routes]
    )
    return replace(batch, owners=owners[:, 0] if len(layers) == 1 else owners)
