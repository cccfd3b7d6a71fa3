"""Texts to token ids, and token ids to padded arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raptor.errors import ParameterError

# Texts a tokenizer is given at once: enough to keep its threads busy, few enough to bound memory.
CHUNK = 2000
# A text that yields fewer tokens from so many characters each is looked at again, whole.
CHARACTERS_A_TOKEN = 8
SPLIT_AT_SPACES = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")


class Encoded(NamedTuple):
    """Token ids of each record, unpadded, and whether tokens were cut off to fit."""

    ids: list[list[int]]
    cut: list[bool]


def encode_texts(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> list[list[int]]:
    """Token ids of each text (or pair of texts), special tokens included, unpadded.

    Args:
        tokenizer: a Hugging Face tokenizer; its own padding and truncation settings are left as they were.
        texts: the records' texts.
        pairs: the second texts, as many as `texts`, or None.
        max_length: tokens kept of a record, special tokens included; of a pair the longer side is cut first.

    Returns:
        one non-empty list of at most `max_length` ids a record. A text in which the tokenizer finds nothing
        becomes one unknown token, so that no record is without tokens.

    Raises:
        ParameterError: `max_length` leaves no room for text, or `pairs` has another length than `texts`.
    """
    return encode_records(tokenizer, texts, pairs, max_length).ids


def encode_records(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> Encoded:
    """As `encode_texts`, with a mark for each record that was cut."""
    if pairs is not None and len(pairs) != len(texts):
        raise ParameterError(f"{len(texts)} texts cannot be paired with {len(pairs)} second texts.")
    special = int(tokenizer.num_special_tokens_to_add(pair=pairs is not None))
    if max_length <= special:
        raise ParameterError(
            f"ingestion.max_length is {max_length}, but this tokenizer adds {special} special tokens to a "
            f"record; use at least {special + 1}."
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    ids: list[list[int]] = []
    cut: list[bool] = []
    for start in range(0, len(texts), CHUNK):
        part = list(texts[start : start + CHUNK])
        second = None if pairs is None else list(pairs[start : start + CHUNK])
        if backend is not None:
            encoded = encode_fast(backend, part, second, max_length, tokenizer.truncation_side)
        else:
            encoded = _encode_slow(tokenizer, part, second, max_length)
        ids.extend(encoded.ids)
        cut.extend(encoded.cut)
    if not all(ids):
        filler = _filler_id(tokenizer)
        ids = [record or [filler] for record in ids]
    return Encoded(ids, cut)


def encode_fast(
    backend: Any, texts: list[str], pairs: list[str] | None, max_length: int, side: str = "right"
) -> Encoded:
    """Straight through the Rust part of a tokenizer, as `encode_records`; a tenth of the objects of its own call.

    Of a long text only the beginning is looked at first. When that yields more tokens than are kept, the rest
    cannot change them, as long as the tokenizer never joins across a space.

    Args:
        backend: a ``tokenizers.Tokenizer``; its own padding and truncation settings are left as they were.
        side: where tokens are cut.
    """
    truncation, padding = backend.truncation, backend.padding
    backend.enable_truncation(max_length, strategy="longest_first", direction=side)
    backend.no_padding()
    try:
        if pairs is not None:
            return _encode_all(backend, list(zip(texts, pairs, strict=True)), max_length)
        beginnings = texts
        if side == "right" and _splits_at_spaces(backend):
            beginnings = [_beginning(text, max_length * CHARACTERS_A_TOKEN) for text in texts]
        encoded = _encode_all(backend, beginnings, max_length)
        short = [
            row
            for row, (text, start) in enumerate(zip(texts, beginnings, strict=True))
            if len(start) < len(text) and not encoded.cut[row]
        ]
        if short:
            again = _encode_all(backend, [texts[row] for row in short], max_length)
            for at, row in enumerate(short):
                encoded.ids[row], encoded.cut[row] = again.ids[at], again.cut[at]
        return encoded
    finally:
        if truncation is None:
            backend.no_truncation()
        else:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def _encode_all(backend: Any, given: list[Any], max_length: int) -> Encoded:
    encodings = backend.encode_batch_fast(given)
    ids = [encoding.ids for encoding in encodings]
    # Asking for the overflow builds it, so only records that may have one are asked.
    cut = [
        len(record) >= max_length and bool(encoding.overflowing)
        for record, encoding in zip(ids, encodings, strict=True)
    ]
    return Encoded(ids, cut)


def _splits_at_spaces(backend: Any) -> bool:
    """Whether no token can reach over a space, so that the words after one change nothing before it."""
    splitter = backend.pre_tokenizer
    if splitter is None:
        return False
    settings = json.loads(splitter.__getstate__())
    return settings["type"] in SPLIT_AT_SPACES or (
        settings["type"] == "Metaspace" and settings.get("split", False)
    )


def _beginning(text: str, length: int) -> str:
    """The words that begin in the first `length` characters, whole; all of a text that has no space there."""
    if len(text) <= length:
        return text
    end = text.rfind(" ", 1, length)
    return text if end < 0 else text[:end]


def _encode_slow(tokenizer: Any, texts: list[str], pairs: list[str] | None, max_length: int) -> Encoded:
    given: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    ids = tokenizer(texts, pairs, truncation=True, max_length=max_length, **given)["input_ids"]
    whole = tokenizer(texts, pairs, truncation=False, **given)["input_ids"]
    return Encoded(ids, [len(full) > len(short) for full, short in zip(whole, ids, strict=True)])


def padding_token(tokenizer: Any) -> str | None:
    """The token for places after a record's end, which a mask leaves out: the tokenizer's own, or else another one.

    Several published tokenizers have none of their own.
    """
    known = (tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token)
    return next((token for token in known if token is not None), None)


def _filler_id(tokenizer: Any) -> int:
    known = (tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return next((token for token in known if token is not None), 0)


def pad_batch(
    ids: Sequence[Sequence[int]], pad_id: int, length: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Right-padded token ids (records, length) and their mask, 1 for real tokens; both int64.

    Args:
        ids: token ids of each record.
        pad_id: fills the places after a record's end.
        length: the width; the longest record's by default, and at least 1.

    Raises:
        ParameterError: a record is longer than `length`.
    """
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    longest = int(lengths.max(initial=0))
    width = max(longest, 1) if length is None else length
    if longest > width:
        raise ParameterError(f"A record is longer than the {width} tokens it is to be padded to.")
    mask = np.arange(width)[None, :] < lengths[:, None]
    padded = np.full((len(ids), width), pad_id, dtype=np.int64)
    padded[mask] = np.fromiter(chain.from_iterable(ids), dtype=np.int64, count=int(lengths.sum()))
    return padded, mask.astype(np.int64)
