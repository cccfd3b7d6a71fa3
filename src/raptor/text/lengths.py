"""How many texts are longer than what a model reads of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

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
    tokenizer.no_truncation()
    tokenizer.no_padding()
    sampled = len(records) > SAMPLE
    rows = np.linspace(0, len(records) - 1, SAMPLE).astype(np.int64) if sampled else np.arange(len(records))
    taken = records.select(["text", "text_pair"]).take(rows)
    given = taken["text"].to_pylist()
    if taken["text_pair"].null_count < len(taken):
        given = list(zip(given, taken["text_pair"].to_pylist(), strict=True))
    cut = 0
    for start in range(0, len(given), 1000):
        encodings = tokenizer.encode_batch_fast(given[start : start + 1000])
        cut += sum(len(encoding) > max_length for encoding in encodings)
    if not cut:
        return []
    share = f"About {cut / len(given):.1%}" if sampled else f"{cut} of {len(given)}"
    return [f"{share} records are longer than {max_length} tokens and are cut (ingestion.max_length)."]
