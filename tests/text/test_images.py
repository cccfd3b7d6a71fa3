"""Images of records: every way to give them, and what is wrong with them, without a word of what they show."""

from __future__ import annotations

import io
import json
import logging
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from raptor.errors import ParameterError
from raptor.moe.vl2.tiling import ImageFormat
from raptor.text.images import cut, decode, read_image
from raptor.text.problems import Place, RecordError
from raptor.text.records import SCHEMA
from tests.text.reading import put, read, warned

FORM = ImageFormat(size=16, side=2, grids=((1, 1), (2, 1), (1, 2)), whole_first=True, token=0)


def picture(number: int, size: tuple[int, int] = (9, 7), kind: str = "PNG", mode: str = "RGB") -> bytes:
    """An image that differs from others of its kind."""
    values = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).convert(mode).save(file, kind)
    return file.getvalue()


def rows(images: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    count = len(images)
    return pa.table(
        {
            "text": ["what is it"] * count,
            "label": [f"class {number % 2}" for number in range(count)],
            "image": pa.array(images, kind),
        }
    )


def parquet(folder: Path, images: list[Any], kind: pa.DataType | None = None) -> Path:
    place = folder / "records.parquet"
    pq.write_table(rows(images, kind), place)
    return place


def stored(path: Path, **options: Any) -> list[bytes | None]:
    return read(path, image="image", **options).table["image"].to_pylist()


def test_images_are_read_however_they_are_given(tmp_path: Path) -> None:
    encoded = [picture(number) for number in range(4)]
    for number, data in enumerate(encoded):
        put(tmp_path, f"pictures/{number}.png", data)
    names = [f"pictures/{number}.png" for number in range(4)]
    assert stored(parquet(tmp_path, encoded, pa.binary())) == encoded
    assert stored(parquet(tmp_path, encoded, pa.large_binary())) == encoded
    assert stored(parquet(tmp_path, names)) == encoded
    kept = [{"bytes": data, "path": "gone.png"} for data in encoded[:2]]
    kept += [{"bytes": None, "path": name} for name in names[2:]]
    assert stored(parquet(tmp_path, kept)) == encoded
    lines = [f"what,class {number % 2},{name}" for number, name in enumerate(names)]
    assert stored(put(tmp_path, "records.csv", "\n".join(["text,label,image", *lines]))) == encoded
    objects = [{"text": "what", "label": number % 2, "image": name} for number, name in enumerate(names)]
    assert stored(put(tmp_path, "records.jsonl", "\n".join(map(json.dumps, objects)))) == encoded


def test_a_record_without_an_image_is_kept_and_counted(tmp_path: Path) -> None:
    records = read(parquet(tmp_path, [picture(0), None, picture(2), b""], pa.binary()), image="image")
    assert records.table["image"].null_count == 2
    assert warned(records, "without an image", "2", "records 2, 4")


def test_the_columns_of_records_without_images_are_as_before(tmp_path: Path) -> None:
    lines = ["text,label", "one,a", "two,b"]
    assert read(put(tmp_path, "records.csv", "\n".join(lines))).table.schema == SCHEMA


def test_one_question_about_different_images_is_no_repeat(tmp_path: Path) -> None:
    records = read(parquet(tmp_path, [picture(0), picture(1), picture(1)], pa.binary()), image="image")
    assert records.report.repeats["in_training"] == 1


def truncated() -> bytes:
    return picture(0, (64, 64))[:-400]


def claims_to_be_huge() -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    whole = picture(0)
    return whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"SECRET words that are no image", "cannot be decoded"),
        (truncated(), "cannot be decoded"),
        (claims_to_be_huge(), "pixels|decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nSECRET", "cannot be decoded"),
    ],
)
def test_a_damaged_image_is_refused_by_its_place_alone(tmp_path: Path, image: bytes, words: str) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        read(parquet(tmp_path, [picture(0), image, picture(2)], pa.binary()), image="image")
    message = str(caught.value)
    assert "record 2" in message
    assert "'image'" in message
    assert "SECRET" not in message
    assert "SECRET" not in caught.value.terminal
    # Logged tracebacks show no cause that holds content.
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("images", "kind", "words"),
    [
        (["secret_name.png"], None, "file cannot be read"),
        (["https://example.org/secret_name.png"], None, "web address"),
        ([1.5], None, "holds double, not images"),
        ([None, None], pa.binary(), "no record has an image"),
    ],
)
def test_images_that_are_not_there_are_refused(tmp_path: Path, images, kind, words: str) -> None:
    with pytest.raises(RecordError, match=words) as caught:
        read(parquet(tmp_path, [*images, *images], kind), image="image")
    # A name of a file may name a person.
    assert "secret_name" not in str(caught.value)


def test_what_a_file_says_beside_its_pixels_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "TIFF", description="SECRET ward 7")
    assert b"SECRET" in file.getvalue()
    with caplog.at_level(logging.DEBUG):
        decode(file.getvalue())
    assert "SECRET" not in caplog.text


def test_a_column_cannot_be_image_and_text(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"ingestion\.image and ingestion\.text"):
        read(parquet(tmp_path, [picture(0)], pa.binary()), image="text")


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1"])
@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF"])
def test_every_kind_becomes_three_channels(kind: str, mode: str) -> None:
    if (kind, mode) == ("GIF", "RGBA"):
        pytest.skip("Pillow writes such a GIF with another palette.")
    tiles, _ = cut(decode(picture(0, (16, 16), kind, mode)), FORM)
    assert tiles.shape == (2, 3, 16, 16)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_tiles_put_together_are_the_image_fitted_into_its_grid(width: int, height: int) -> None:
    image = decode(picture(0, (width, height)))
    tiles, (columns, lines) = cut(image, FORM)
    assert (columns, lines) == FORM.grid(width, height)
    assert len(tiles) == 1 + columns * lines
    whole = np.concatenate(
        [
            np.concatenate([tiles[1 + line * columns + column] for column in range(columns)], axis=2)
            for line in range(lines)
        ],
        axis=1,
    ).transpose(1, 2, 0)
    scale = min(columns * 16 / width, lines * 16 / height)
    wide, high = (max(1, round(side * scale)) for side in (width, height))
    # The image is in the middle, and what it does not fill is grey.
    left, top = (columns * 16 - wide) // 2, (lines * 16 - high) // 2
    if left > 1:
        assert (whole[:, : left - 1] == 127).all()
    if top > 1:
        assert (whole[: top - 1] == 127).all()


def test_a_square_image_of_the_tile_s_size_is_unchanged() -> None:
    image = decode(picture(3, (16, 16)))
    tiles, grid = cut(image, FORM)
    assert grid == (1, 1)
    expected = np.asarray(image).transpose(2, 0, 1)
    assert (tiles[0] == expected).all()
    assert (tiles[1] == expected).all()


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "PNG"), ("F", "TIFF"), ("I", "TIFF")])
def test_more_than_eight_bits_are_refused_and_not_cut_off(mode: str, kind: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (4, 4), 300).save(file, kind)
    with pytest.raises(ValueError, match="eight bits"):
        decode(file.getvalue())


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x.png", "/dev/zero", "."])
def test_what_is_no_file_is_one_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_image(name, Place(str(tmp_path / "a.csv"), 1), "image")
