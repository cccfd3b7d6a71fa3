"""Records with images: from a file to token ids, tiles, owners and what training samples from."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from raptor.dp.records import EncodedRecords
from raptor.errors import ParameterError
from raptor.moe.classifier import load_encoder
from raptor.moe.images import NEWLINE, SEPARATOR, TEXT
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import record_votes
from raptor.pipelines.base_model.source import check
from raptor.pipelines.images import image_format, with_image
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.ingestion.encoding import load_tokenizer
from raptor.pipelines.ingestion.nodes import assign_record_owners, encode_splits, read_records
from raptor.pipelines.training.records import encoded_records
from raptor.text.images import cut, decode
from tests.pipelines.directories import save_base_model
from tests.text.test_images import picture
from tests.vl2 import PAD, SIZE, WORDS, original_weights, save_checkpoint

SIZES = [(SIZE, SIZE), (2 * SIZE, SIZE), (9, 30), (50, 50)]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_checkpoint(tmp_path_factory.mktemp("vl2") / "model", original_weights())


@pytest.fixture(scope="module")
def images() -> list[bytes | None]:
    return [None if number % 7 == 6 else picture(number, SIZES[number % 4]) for number in range(40)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, images: list[bytes | None]) -> IngestionConfig:
    place = tmp_path_factory.mktemp("source") / "records.parquet"
    table = pa.table(
        {
            "question": ["which digit is shown ?" if number % 3 else "is it odd ?" for number in range(40)],
            "answer": ["yes" if number % 2 else "no" for number in range(40)],
            "split": ["train" if number < 30 else "test" for number in range(40)],
            "picture": pa.array(images, pa.binary()),
        }
    )
    pq.write_table(table, place)
    return IngestionConfig(
        source=str(place), text="question", label="answer", split="split", image="picture", max_length=8
    )


@pytest.fixture(scope="module")
def splits(base_model: Path, config: IngestionConfig) -> tuple[datasets.Dataset, datasets.Dataset]:
    records = datasets.Dataset(read_records(base_model, config)[0])
    return tuple(datasets.Dataset(table) for table in encode_splits(records, base_model, config))


def test_the_original_s_directory_is_a_base_model(base_model: Path, tmp_path: Path) -> None:
    """Its tokenizer says of no token that it pads."""
    assert load_tokenizer(base_model).pad_token == PAD
    names = {file.name for file in check(base_model).files}
    assert {"config.json", "model.safetensors.index.json", "tokenizer.json"} <= names
    assert sum(name.endswith(".safetensors") for name in names) == 3


def test_a_record_is_its_first_token_its_image_and_its_text(base_model, splits, images) -> None:
    form = image_format(base_model, load_tokenizer(base_model), None)
    train = splits[0].to_dict()
    for number in range(30):
        text = ["which", "digit", "is", "shown", "?"] if number % 3 else ["is", "it", "odd", "?"]
        ids = [WORDS.index(word) for word in text]
        given = images[number]
        places: list[int] = []
        if given is not None:
            tiles, grid = cut(decode(given), form)
            places = form.places(*grid)
            assert train["tiles"][number] == tiles.tobytes()
            assert train["tile_count"][number] == len(tiles)
        assert train["input_ids"][number] == [0, *[form.token] * len(places), *ids]
        assert train["places"][number] == [TEXT, *places, *[TEXT] * len(ids)]


def test_training_gets_the_same_pixels_and_places(base_model, splits) -> None:
    records = encoded_records(splits[0], None, ())
    batch = records.take(torch.arange(30), torch.device("cpu"))
    assert batch.images is not None
    rows = splits[0].to_dict()
    for number in range(30):
        count, length = rows["tile_count"][number], len(rows["places"][number])
        assert batch.images.pixels[number, :count].numpy().tobytes() == rows["tiles"][number]
        assert batch.images.places[number, :length].tolist() == rows["places"][number]
        assert int(batch.images.tiles[number]) == count
    assert {NEWLINE, SEPARATOR} <= set(batch.images.places.flatten().tolist())
    assert len(records.tensors()) == 7


def test_owners_are_decided_with_the_image(base_model, splits, config) -> None:
    table = assign_record_owners(splits[0], base_model, {"layers": [1, 2]}, config)
    encoder = load_encoder(base_model).double()
    records = encoded_records(splits[0], None, ())
    is_image_needed = False
    for number in range(30):
        batch = records.take(torch.tensor([number]), torch.device("cpu"))
        given = (encoder, batch.input_ids, batch.attention_mask)
        votes = record_votes(*given, images=batch.images)
        without = record_votes(*given)
        for layer in (1, 2):
            owner = table[f"layer_{layer}"][number].as_py()
            assert owner == int(assign_owners(votes[layer]))
            is_image_needed |= owner != int(assign_owners(without[layer]))
    assert is_image_needed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": "picture", "completion": "answer"}, "leave one of them out"),
        ({"image_tiles": 2}, "name the column of images"),
    ],
)
def test_parameters_that_go_together_are_asked_for(given, words) -> None:
    with pytest.raises(ValidationError, match=words):
        IngestionConfig(**given)


def test_a_model_of_text_alone_refuses_images(splits, config, tmp_path) -> None:
    base_model = save_base_model(tmp_path / "model", layers=2, sparse=2)
    records = datasets.Dataset(read_records(base_model, config)[0])
    with pytest.raises(ParameterError, match=r"ingestion\.image.*text alone"):
        encode_splits(records, base_model, config)


def test_the_words_of_a_text_cannot_pass_for_an_image(base_model) -> None:
    form = image_format(base_model, load_tokenizer(base_model), 1)
    row = with_image([form.token, 4, form.token], None, form, 0)
    assert row["input_ids"] == [0, 4]
    assert row["places"] == [TEXT, TEXT]
    assert with_image([form.token], None, form, None)["input_ids"] == [form.token]
    assert with_image([0, 4], None, form, 0)["input_ids"] == [0, 4]


def test_what_was_encoded_before_is_found_again_and_only_then(base_model, config, tmp_path) -> None:
    records = datasets.Dataset(read_records(base_model, config)[0])
    key = bytes(32)

    def encode(given: IngestionConfig) -> pa.Table:
        return encode_splits(records, base_model, given, split_key=key, encoding_cache=tmp_path)[0]

    first = encode(config)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert encode(config).equals(first)
    assert sorted(file.name for file in tmp_path.iterdir()) == files
    fewer = encode(config.model_copy(update={"image_tiles": 1}))
    assert max(fewer["tile_count"].to_pylist()) == 2 < max(first["tile_count"].to_pylist())


def test_tiles_that_do_not_fit_their_number_are_refused(splits) -> None:
    broken = splits[0].to_dict()
    broken["tile_count"][0] += 1
    from raptor.errors import DataError

    with pytest.raises(DataError, match="do not belong together"):
        encoded_records(datasets.Dataset(pa.table(broken, schema=splits[0].data.table.schema)), None, ())


def test_encoded_images_must_be_as_many_as_records(splits) -> None:
    from raptor.errors import DataError

    records = encoded_records(splits[0], None, ())
    with pytest.raises(DataError, match="different numbers of rows"):
        EncodedRecords(
            records.input_ids[:-1],
            records.lengths[:-1],
            records.labels[:-1],
            records.owners[:-1],
            images=records.images,
        )
    assert np.all(records.labels.numpy() >= 0)
