"""Read, split and encode the private records, give each its owner, and declare what is public about them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raptor.pipelines.ingestion.config import EMBEDDED, IngestionConfig
from raptor.pipelines.ingestion.declared import (
    CLASSES_ARE_PUBLIC,
    COMPLETIONS_ARE_PUBLIC,
    CONSTANTS_ARE_PUBLIC,
    USERS_ARE_PUBLIC,
)

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

logger = logging.getLogger(__name__)


def read_records(
    base_model: Path, config: IngestionConfig, split_key: bytes | None = None
) -> tuple[pa.Table, list[str], dict[str, Any]]:
    """Read and validate the records of the source.

    Args:
        base_model: directory with the tokenizer, by which cut texts are counted.
        config: parameters of the stage.
        split_key: private key of the draw of held-out records, so that a training that was killed finds the
            same records when the whole run is started again; None draws anew.

    Returns:
        The records (see `raptor.text.records.Records`), the class names, and the data report. The class names
        hold nothing but what the operator declares public; there are none where texts are continued.

    Raises:
        ModelError: texts are to be continued, and the base model is no decoder.
        ParameterError: a column or encoding is unusable.
        RecordError: a record cannot be read or used; the message names the place, and no value.
    """
    from raptor.text.lengths import remark_cut, remark_cut_prompted
    from raptor.text.records import Rules
    from raptor.text.records import read_records as read

    if config.lengths is not None:
        from raptor.moe.language import require_decoder

        require_decoder(base_model, config.max_length)
        from raptor.pipelines.ingestion.encoding import load_tokenizer
    columns = config.columns
    rules = Rules(
        encoding=config.encoding,
        held_out_fraction=config.held_out_fraction,
        max_classes=config.max_classes,
        limit=config.records,
        split_key=split_key,
    )
    records = read(config.source, columns, rules)
    report = records.report.to_dict()
    if config.lengths is None:
        report["warnings"] += remark_cut(records.table, base_model / "tokenizer.json", config.max_length)
    else:
        tokenizer = load_tokenizer(base_model)
        report["warnings"] += remark_cut_prompted(records.table, tokenizer, config.lengths)
    # The same words whatever the data hold: counts and warnings are private.
    logger.info(
        "The records are read and checked. Counts and warnings stand in the private data report; "
        "`raptor inspect` shows them on the terminal."
    )
    return records.table, list(records.label_names), report


def encode_splits(
    private_records: datasets.Dataset,
    base_model: Path,
    config: IngestionConfig,
    unit: str = "record",
    records_per_user: int = 1,
    split_key: bytes | None = None,
    encoding_cache: Path | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Token ids and labels of the training and of the held-out records.

    The held-out set is the validation split, or the test split where validation has no labels. Where users are the
    unit of privacy, of each user at most ``records_per_user`` records are trained on, and one is held out: so one
    user moves an evaluation table by as much as one record does.

    Args:
        private_records: from `read_records`.
        base_model: directory of the model's tokenizer.
        unit: ``privacy.unit``.
        records_per_user: public bound of the training records of one user.
        split_key: private key of the choice of a user's records, and of the names in the cache.
        encoding_cache: private folder of what was encoded before; None encodes anew.

    Returns:
        Two tables with the columns ``input_ids`` (unpadded, at most ``max_length``, an image's tokens on top) and
        ``label``; with images those of ``raptor.pipelines.images``; where texts are continued, also ``prompt``, the
        number of tokens before the completion; where users are the unit, also ``user``, numbers from 0.

    Raises:
        ParameterError: ``max_length`` leaves no room for text, or the base model reads no images and there are some.
        RecordError: users are the unit, and the records have none.
    """
    import pyarrow as pa

    from raptor.pipelines.images import image_format
    from raptor.pipelines.ingestion.encoding import (
        IMAGE,
        USER,
        encode_prompted_split,
        encode_split,
        held_out_split,
        labelled,
        load_tokenizer,
    )
    from raptor.text.cache import EncodingCache
    from raptor.text.splits import TRAIN
    from raptor.text.users import bound_users, user_codes

    table = private_records.data.table
    held_out = held_out_split(table)
    trained, measured = labelled(table, TRAIN), labelled(table, held_out)
    if unit == "user":
        trained = bound_users(trained, records_per_user, split_key)
        measured = bound_users(measured, 1, split_key)
    tokenizer = load_tokenizer(base_model)
    form = None if config.image is None else image_format(base_model, tokenizer, config.image_tiles)

    lengths = config.lengths

    def encoded(records: pa.Table, split: str) -> pa.Table:
        def make() -> pa.Table:
            if lengths is not None:
                return encode_prompted_split(records, split, tokenizer, lengths)
            return encode_split(records, split, tokenizer, config.max_length, form)

        if encoding_cache is None or split_key is None:
            return make()
        cache = EncodingCache(encoding_cache, split_key)
        read = records.select(["text", "text_pair", "label", *([] if form is None else [IMAGE])])
        length = str(config.max_length)
        if lengths is not None:
            read = records.select(["text", "text_pair", "label", "completion"])
            length = f"{lengths.prompt}+{lengths.completion}"
        return cache.get(cache.name(read, base_model, length, repr(form) if form else ""), make)

    splits = encoded(trained, TRAIN), encoded(measured, held_out)
    if unit == "user":
        return tuple(
            table.append_column(USER, pa.array(user_codes(records)))
            for table, records in zip(splits, (trained, measured), strict=True)
        )
    return splits


def assign_record_owners(
    private_train: datasets.Dataset,
    base_model: Path,
    layer_plan: dict[str, Any],
    config: IngestionConfig,
) -> pa.Table:
    """The owner expert of every training record in every planned layer, by the public base model.

    Where users are the unit of privacy, of every user: all tokens of all the user's records vote together, as if they
    were one record.

    Guarantee: nothing is released; the table is as private as the records. A unit's owner depends on that
    unit and on public weights alone, so that adding or removing another one never moves it.

    Args:
        private_train: encoded training records.
        base_model: directory of the public base model.
        layer_plan: ``layers`` lists the sparse layers whose experts are protected.

    Returns:
        A table with an int64 column ``layer_<index>`` for each layer; row i belongs to training record i, or user i.

    Raises:
        ModelError: the model has no such sparse layer.
    """
    from raptor.pipelines.images import encoded_images
    from raptor.pipelines.ingestion.encoding import USER
    from raptor.pipelines.ingestion.owners import record_owners

    table = private_train.data.table
    users = table[USER].to_numpy() if USER in table.column_names else None
    return record_owners(
        table["input_ids"],
        base_model,
        layer_plan["layers"],
        config.owner_vote,
        users=users,
        images=encoded_images(private_train),
    )


def declare_public_constants(
    private_train: datasets.Dataset,
    label_names: Sequence[str],
    population: int | Literal["auto"],
    config: IngestionConfig,
    unit: str = "record",
    records_per_user: int = 1,
) -> dict[str, Any]:
    """What the operator takes as public about the private records: their number, and the number of classes.

    Args:
        private_train: its number of rows, or of users, is declared when ``population`` is ``auto``.
        population: ``privacy.population``, the public number of training records, or users.
        unit: ``privacy.unit``.
        records_per_user: public bound of the training records of one user.

    Returns:
        ``population``, ``population_source``, ``num_classes`` (0 where texts are continued), ``source`` (``embedded``
        or ``own``) and ``taken_as_public``, a list of sentences.
    """
    declared = population == "auto"
    counted, facts = private_train.num_rows, [CONSTANTS_ARE_PUBLIC, CLASSES_ARE_PUBLIC]
    if config.lengths is not None:
        lengths = config.lengths
        facts = [COMPLETIONS_ARE_PUBLIC.format(prompt=lengths.prompt, completion=lengths.completion)]
    if unit == "user":
        counted = len(set(private_train["user"])) if declared else 0
        facts = [*facts, USERS_ARE_PUBLIC.format(most=records_per_user)]
    what = "rows" if unit == "record" else "users"
    return {
        "population": counted if declared else int(population),
        "population_source": f"declared: {what} of the training split"
        if declared
        else "declared: privacy.population",
        "num_classes": len(label_names),
        "source": EMBEDDED if config.source == EMBEDDED else "own",
        "taken_as_public": facts,
    }
