"""Images of records: from what stands in a source to encoded bytes, and from these to tiles of pixels."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raptor.text.problems import Place, RecordError

if TYPE_CHECKING:
    from PIL.Image import Image

NO_IMAGE = "records without an image"
# Modes of Pillow with numbers beyond a byte.
DEEP = {"I", "F"}
# Read without another program and without fonts; the first picture of several counts.
KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# More pixels than any camera's: such a file is a mistake, or made to fill the memory.
MOST_PIXELS = 100_000_000
ADVICE = f"Images are {', '.join(KINDS[:-1])} or {KINDS[-1]}, as bytes or as the name of a file beside the records."
# What is left of a view that an image does not fill, and of odd colours: the middle of the range.
GREY = (127, 127, 127)


class Tiling(Protocol):
    """How a model divides an image; see `raptor.moe.vl2.tiling.ImageFormat`."""

    @property
    def size(self) -> int: ...

    def grid(self, width: int, height: int) -> tuple[int, int]: ...


def read_image(value: Any, place: Place, column: str) -> bytes | None:
    """The encoded image of a record, whole and decodable; None where there is none.

    Args:
        value: bytes; the name of a file, relative to that of the records; or both under `bytes` and `path`, as Hugging
            Face data sets have it.

    Raises:
        RecordError: it is neither, or no image that can be read. Without any content of the image.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        value = _file(value, place, column) if value.strip() else None
    if value is None or value == b"":
        return None
    if not isinstance(value, bytes):
        raise RecordError(
            "the image is neither bytes nor the name of a file.", place=place, column=column, advice=ADVICE
        )
    try:
        decode(value)
    except ValueError as error:
        # Without the cause, whose text may hold some of the content.
        raise RecordError(f"{error}", place=place, column=column, advice=ADVICE) from None
    return value


def _file(name: str, place: Place, column: str) -> bytes:
    if "://" in name:
        raise RecordError(
            "the image is a web address.",
            place=place,
            column=column,
            advice="Download the images and give the names of the files.",
            value=name,
        )
    try:
        # RuntimeError: `~name` of nobody.
        path = Path(place.file).parent / Path(name).expanduser()
        # A device or a pipe has no end.
        if not path.is_file():
            raise OSError
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError):
        raise RecordError(
            "the image's file cannot be read.",
            place=place,
            column=column,
            advice="Names of files are relative to the folder of the file with the records.",
            value=name,
        ) from None


def decode(data: bytes) -> Image:
    """An image in RGB.

    Raises:
        ValueError: the bytes are no whole image of a known kind, or it is too large; a sentence without content.
    """
    from PIL import Image

    # Readers of single formats log what they find in a file, tags with names and places among it.
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        # Pillow's warnings tell of the content.
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=KINDS) as image:
                width, height = image.size
                is_deep = image.mode in DEEP or image.mode.startswith("I;")
                if width * height <= MOST_PIXELS and not is_deep:
                    return image.convert("RGB")
        # Every kind of error becomes one of our own: what a damaged file makes a reader stumble over has no end
        # (struct, zlib, arithmetic, look-ups), and an error that got through would show what the private file holds.
        except Exception:
            raise ValueError(
                "the image cannot be decoded: it is damaged, cut off, or of another kind."
            ) from None
    if is_deep:
        # Pillow would cut their values off at 255.
        raise ValueError("the image has more than eight bits a channel: save it with eight.")
    raise ValueError(f"the image has more than {MOST_PIXELS:,} pixels.")


def cut(image: Image, tiling: Tiling) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The whole image and its tiles, (1 + columns x rows, 3, size, size), and the grid as (columns, rows).

    Each view is fitted into its frame without changing the ratio of its sides.
    """
    from PIL import ImageOps

    size = tiling.size
    columns, rows = tiling.grid(*image.size)
    whole, divided = (
        np.asarray(ImageOps.pad(image, frame, color=GREY), dtype=np.uint8)
        for frame in ((size, size), (columns * size, rows * size))
    )
    tiles = divided.reshape(rows, size, columns, size, 3).swapaxes(1, 2).reshape(-1, size, size, 3)
    views = np.concatenate([whole[None], tiles]).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(views), (columns, rows)
