"""How many texts are longer than what a model reads of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from raptor.text.encoding import encode_fast

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
    sampled = len(records) > SAMPLE
    rows = np.linspace(0, len(records) - 1, SAMPLE).astype(np.int64) if sampled else np.arange(len(records))
    taken = records.select(["text", "text_pair"]).take(rows)
    texts = taken["text"].to_pylist()
    pairs = taken["text_pair"].to_pylist() if paired else None
    cut = sum(encode_fast(tokenizer, texts, pairs, max_length).cut)
    if not cut:
        return []
    share = f"About {cut / len(texts):.1%}" if sampled else f"{cut} of {len(texts)}"
    return [f"{share} records are longer than {max_length} tokens and are cut (ingestion.max_length)."]
