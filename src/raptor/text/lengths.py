"""How many texts are longer than what a model reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raptor.text.encoding import encode_fast

if TYPE_CHECKING:
    from raptor.text.completions import Lengths

# Enough for the share to be right within one per cent.
SAMPLE = 20_000


def remark_cut(records: pa.Table, tokenizer_file: Path, max_length: int) -> list[str]:
    """A warning about texts that will be cut, or none.

    Args:
        records: with the columns `text` and `text_pair`; many records are judged by a sample of evenly spaced ones.
        tokenizer_file: a `tokenizer.json`; without one nothing can be said.
        max_length: tokens of a record that are kept, special tokens included.
    """
    if not tokenizer_file.is_file() or not len(records):
        return []
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    paired = records["text_pair"].null_count < len(records)
    if max_length <= tokenizer.num_special_tokens_to_add(paired):
        return []
    taken = _sample(records.select(["text", "text_pair"]))
    texts = taken["text"].to_pylist()
    pairs = taken["text_pair"].to_pylist() if paired else None
    cut = sum(encode_fast(tokenizer, texts, pairs, max_length).cut)
    if not cut:
        return []
    share = _share(cut, taken, records)
    return [f"{share} records are longer than {max_length} tokens and are cut (ingestion.max_length)."]


def remark_cut_prompted(records: pa.Table, tokenizer: Any, lengths: Lengths) -> list[str]:
    """Warnings about prompts and completions that will be cut, as `remark_cut`.

    Args:
        records: with the columns `text`, `text_pair` and `completion`.
        tokenizer: of the model.

    Raises:
        ModelError: the tokenizer cannot be used for completions.
    """
    from raptor.text.completions import encode_prompted, prompt_texts, ready

    taken = _sample(records.select(["text", "text_pair", "completion"]))
    pairs = taken["text_pair"].to_pylist() if taken["text_pair"].null_count < len(taken) else None
    prompts = prompt_texts(taken["text"].to_pylist(), pairs)
    made = encode_prompted(ready(tokenizer), prompts, taken["completion"].to_pylist(), lengths)
    return [
        f"{_share(cut, taken, records)} {what} are longer than {length} tokens and lose their {side} "
        "(ingestion.max_length, ingestion.completion_length)."
        for what, cut, length, side in (
            ("prompts", made.cut_prompts, lengths.prompt, "beginning"),
            ("completions", made.cut_completions, lengths.completion, "end"),
        )
        if cut
    ]


def _sample(records: pa.Table) -> pa.Table:
    if len(records) <= SAMPLE:
        return records
    return records.take(np.linspace(0, len(records) - 1, SAMPLE).astype(np.int64))


def _share(cut: int, taken: pa.Table, records: pa.Table) -> str:
    """How many of all records, by those that were looked at."""
    return f"{cut} of {len(taken)}" if len(taken) == len(records) else f"About {cut / len(taken):.1%}"
