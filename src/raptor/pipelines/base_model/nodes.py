"""Obtain the public base model and the public corpus."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raptor.pipelines.base_model.config import BaseModelConfig
from raptor.pipelines.selection.config import SelectionConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from raptor.pipelines.base_model.source import PublicModel

logger = logging.getLogger(__name__)


def obtain_base_model(config: BaseModelConfig) -> PublicModel:
    """Find or download the base model, and check that it is a sparse model with a tokenizer.

    Code that comes with a model is never run.

    Raises:
        ParameterError: the source does not exist.
        ModelError: the download failed, or the model cannot be used; see ``source.check``.
    """
    from raptor.pipelines.base_model.source import check, locate

    directory = locate(config)
    logger.info("Base model: %s", config.source)
    return check(directory)


def obtain_public_corpus(config: SelectionConfig) -> pa.Table:
    """Read the public corpus and take a fixed sample of it: a table with the column ``text``.

    Raises:
        DataError: the corpus cannot be read, or has no text.
    """
    from raptor.pipelines.base_model.corpus import read_corpus

    table = read_corpus(config.corpus, config.corpus_records)
    logger.info("Public corpus: %d texts", table.num_rows)
    return table
