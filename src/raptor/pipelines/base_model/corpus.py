"""Read a public corpus and take a fixed sample of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from raptor.errors import DataError
from raptor.pipelines.selection.config import EMBEDDED
from raptor.text.columns import Columns
from raptor.text.files import text_form, text_lines, unchanged
from raptor.text.problems import Findings, RecordError
from raptor.text.sources import PACKED, open_source

COLUMN = "text"
ENCODING = "utf-8"
# A fixed seed is right here: the corpus is public, and the same sample makes two profiles comparable.
SEED = 0


def read_corpus(corpus: str, records: int) -> pa.Table:
    """A table with the column ``text``: the whole corpus, or ``records`` of its texts in their order.

    Args:
        corpus: ``embedded``; a ``.txt`` file with one text a line; or any other source of records that ingestion
            reads, with a column ``text``.
        records: most texts to take. The sample is drawn with a fixed seed.

    Raises:
        DataError: the corpus cannot be read, or has no text.
    """
    if corpus == EMBEDDED:
        from raptor.text.docstrings import public_docstrings

        return public_docstrings(limit=records).select([COLUMN])
    try:
        texts = [text for text in _texts(corpus) if text.strip()]
    except RecordError as error:
        # The corpus is public, so the message may show what was found.
        raise DataError(f"selection.corpus: {error.terminal}") from error
    if not texts:
        raise DataError(
            f"The public corpus {corpus} is empty: it holds no text. "
            f"Give another file as selection.corpus, or set it to {EMBEDDED}."
        )
    if len(texts) > records:
        rows = np.sort(np.random.default_rng(SEED).choice(len(texts), size=records, replace=False))
        texts = [texts[row] for row in rows]
    return pa.table({COLUMN: pa.array(texts, pa.string())})


def _texts(corpus: str) -> Iterator[str]:
    path = Path(corpus).expanduser()
    endings = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    findings = Findings()
    if path.is_file() and endings[-1:] == [".txt"]:
        with unchanged(path), text_lines(path, text_form(path, ENCODING, findings)) as lines:
            yield from (line.strip() for line in lines)
        return
    for part in open_source(corpus).parts:
        for batch in part.read(Columns(text=COLUMN, label=None), ENCODING, findings):
            for row, text in enumerate(batch.text):
                if text is not None and not isinstance(text, str):
                    raise RecordError("it is not text.", place=batch.place(row), column=COLUMN, value=text)
                yield text or ""
