"""Images in the encoded tables: written by ingestion, read where owners are decided and models trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raptor.dp.records import EncodedImages
from raptor.errors import DataError
from raptor.moe.images import CHANNELS, TEXT, ImageInput
from raptor.moe.vl2.tiling import ImageFormat, image_config
from raptor.text.images import cut, decode

TILES, COUNT, PLACES = "tiles", "tile_count", "places"
FIELDS = [(TILES, pa.large_binary()), (COUNT, pa.int64()), (PLACES, pa.list_(pa.int32()))]
IMAGE_TOKEN = "<image>"  # noqa: S105


def image_format(base_model: Path, tokenizer: Any, most: int | None) -> ImageFormat:
    """What a base model makes of an image.

    Raises:
        ParameterError: it reads no images, or divides them into more tiles than `most`.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(base_model, local_files_only=True, trust_remote_code=False)
    read = image_config(config)
    found = tokenizer.get_vocab().get(IMAGE_TOKEN)
    return ImageFormat.of(read, int(tokenizer.pad_token_id if found is None else found), most)


def with_image(
    ids: Sequence[int], data: bytes | None, form: ImageFormat, start: int | None
) -> dict[str, Any]:
    """The columns of one record: the token that begins every record, the image, the text.

    `IMAGE_TOKEN`s in the text are left out, since a record has one image at most.

    Args:
        ids: token ids of the text.
        data: encoded image, None for none.
        start: the token that begins a record, as the original puts it whatever its tokenizer does; None for none.
    """
    begin = [] if start is None else [start]
    text = [token for token in ids if token != form.token]
    text = text[1:] if text[:1] == begin else text
    tiles, number, places = b"", 0, list[int]()
    if data is not None:
        views, grid = cut(decode(data), form)
        tiles, number, places = views.tobytes(), len(views), form.places(*grid)
    if not (begin or places or text):
        text = [form.token]
    return {
        "input_ids": [*begin, *[form.token] * len(places), *text],
        TILES: tiles,
        COUNT: number,
        PLACES: [*[TEXT] * len(begin), *places, *[TEXT] * len(text)],
    }


def image_input(
    ids: Sequence[int], data: bytes | None, form: ImageFormat, start: int | None
) -> tuple[list[int], ImageInput]:
    """Token ids of one record, and what a model is given of its image; see `with_image`."""
    row = with_image(ids, data, form, start)
    shape = (1, row[COUNT] or 1, CHANNELS, form.size, form.size)
    pixels = torch.zeros(shape, dtype=torch.uint8)
    if row[COUNT]:
        pixels = torch.frombuffer(bytearray(row[TILES]), dtype=torch.uint8).view(shape)
    images = ImageInput(pixels, torch.tensor([row[COUNT]]), torch.tensor([row[PLACES]]))
    return row["input_ids"], images


def encoded_images(split: Any) -> EncodedImages | None:
    """The images of a split, `datasets.Dataset`; None where it was encoded without.

    Raises:
        DataError: the columns do not belong together.
    """
    if TILES not in split.column_names:
        return None
    table = (split.flatten_indices() if split._indices is not None else split).data.table
    counts = torch.from_numpy(table[COUNT].to_numpy().astype(np.int64))
    first = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    total = int(first[-1])
    content = table[TILES].combine_chunks()
    offsets = np.frombuffer(content.buffers()[1], dtype=np.int64)[
        content.offset : content.offset + len(content) + 1
    ]
    size = round(((int(offsets[-1]) - int(offsets[0])) / (CHANNELS * max(total, 1))) ** 0.5)
    if not np.array_equal(np.diff(offsets), counts.numpy() * (CHANNELS * size * size)):
        raise DataError(
            "Images and their numbers of tiles do not belong together. Run the ingestion stage again."
        )
    if total:
        values = np.frombuffer(content.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
        pixels = _tensor(values).view(total, CHANNELS, size, size)
    else:
        pixels = torch.zeros(0, CHANNELS, 1, 1, dtype=torch.uint8)
    listed = table[PLACES].combine_chunks()
    lengths = torch.from_numpy(np.diff(listed.offsets.to_numpy()).astype(np.int64))
    width = max(int(lengths.max()), 1) if len(lengths) else 1
    places = torch.full((len(lengths), width), TEXT, dtype=torch.int32)
    places[torch.arange(width)[None] < lengths[:, None]] = torch.from_numpy(
        listed.flatten().to_numpy(zero_copy_only=False).astype(np.int32)
    )
    return EncodedImages(pixels, first, places)


def _tensor(values: np.ndarray) -> torch.Tensor:
    """A view of values that may be mapped from a file: they are read and never written."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)
