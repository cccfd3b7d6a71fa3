"""From validated records to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raptor.errors import ModelError
from raptor.moe.vl2.tiling import ImageFormat
from raptor.pipelines.images import FIELDS, with_image
from raptor.progress import track
from raptor.text.columns import CHUNK
from raptor.text.completions import Lengths, encode_prompted, prompt_texts, ready
from raptor.text.encoding import encode_texts
from raptor.text.splits import TEST, VALIDATION

USER = "user"
# In DeepSeek's vocabularies, whose files do not say what it is for.
PAD = "<｜▁pad▁｜>"
IMAGE = "image"
# Records with an image that are in memory at once.
FEW = 64
SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("label", pa.int64())])
PROMPT = "prompt"
PROMPTED_SCHEMA = SCHEMA.append(pa.field(PROMPT, pa.int64()))
"""`prompt` is the number of tokens before the completion."""


def load_tokenizer(base_model: Path) -> Any:
    """The tokenizer of a model directory; nothing is downloaded.

    Raises:
        ModelError: the directory holds none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(base_model, local_files_only=True, trust_remote_code=False)
    # Of a file that is JSON and no tokenizer, the library says so by whatever it stumbles over.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ModelError(
            f"{base_model} holds no usable tokenizer ({error}). Save one beside the model."
        ) from error
    if tokenizer.pad_token is None and PAD in tokenizer.get_vocab():
        tokenizer.pad_token = PAD
    return tokenizer


def held_out_split(records: pa.Table) -> str:
    """The split that models are measured on: validation, or test where validation has no labels."""
    labelled = pc.and_(pc.equal(records["split"], VALIDATION), pc.is_valid(records["label"]))
    return VALIDATION if pc.any(labelled).as_py() else TEST


def labelled(records: pa.Table, split: str) -> pa.Table:
    """The labelled records of a split, in their order."""
    return records.filter(pc.and_(pc.equal(records["split"], split), pc.is_valid(records["label"])))


def encode_split(
    records: pa.Table, split: str, tokenizer: Any, max_length: int, form: ImageFormat | None = None
) -> pa.Table:
    """Token ids and labels of the labelled records of a split, in their order.

    Args:
        records: with the columns of `raptor.text.records.SCHEMA`; may be memory-mapped, and is read in
            batches.
        form: of the images, where the records are read with a column of them; then the table has the columns of
            `raptor.pipelines.images`, too.
    """
    paired = records["text_pair"].null_count < len(records)
    schema = SCHEMA if form is None else pa.schema([*SCHEMA, *FIELDS])
    batches = []
    for batch in track(
        labelled(records, split).to_batches(CHUNK if form is None else FEW), "Encoding records"
    ):
        pairs = batch.column("text_pair").to_pylist() if paired else None
        ids = encode_texts(tokenizer, batch.column("text").to_pylist(), pairs, max_length)
        columns = {"input_ids": ids}
        if form is not None:
            rows = [
                with_image(record, data, form, tokenizer.bos_token_id)
                for record, data in zip(ids, batch.column(IMAGE).to_pylist(), strict=True)
            ]
            columns = {
                name: [row[name] for row in rows] for name in ("input_ids", *(name for name, _ in FIELDS))
            }
        arrays = [
            batch.column("label") if field.name == "label" else pa.array(columns[field.name], field.type)
            for field in schema
        ]
        batches.append(pa.record_batch(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def encode_prompted_split(records: pa.Table, split: str, tokenizer: Any, lengths: Lengths) -> pa.Table:
    """Token ids of the prompts of a split and their completions, and where these begin; as `encode_split`."""
    paired = records["text_pair"].null_count < len(records)
    ready(tokenizer)
    batches = []
    for batch in track(labelled(records, split).to_batches(CHUNK), "Encoding records"):
        pairs = batch.column("text_pair").to_pylist() if paired else None
        prompts = prompt_texts(batch.column("text").to_pylist(), pairs)
        made = encode_prompted(tokenizer, prompts, batch.column("completion").to_pylist(), lengths)
        columns = [pa.array(made.ids, pa.list_(pa.int32())), batch.column("label"), pa.array(made.prompts)]
        batches.append(pa.record_batch(columns, schema=PROMPTED_SCHEMA))
    return pa.Table.from_batches(batches, schema=PROMPTED_SCHEMA)
