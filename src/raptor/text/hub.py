"""Data sets of the Hugging Face hub."""

from __future__ import annotations

import os
from typing import Any

from raptor.errors import DataError


def hub_parts(source: str, near: str | None) -> list[tuple[str, Any]]:
    """Download (or take from the local cache) a data set: (split name, Arrow table) of each split.

    Args:
        source: ``name``, ``owner/name``, or either with ``:configuration``.
        near: a local path with a similar name, for the message.

    Raises:
        DataError: the hub does not have it, or cannot be reached.
    """
    name, _, configuration = source.partition(":")
    # The libraries wait for minutes by default before they give up on a network that is not there.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "20")
    import datasets

    quiet = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(name, configuration or None)
    # Whatever stops the library (network, name, format, an offline setting), the user's next step is the same.
    except Exception as error:
        similar = f" A local path with a similar name is {near}." if near is not None else ""
        raise DataError(
            f"{source}: there is no such file or folder here, and it cannot be loaded as a hub data set "
            f"({type(error).__name__}).{similar} Check the path; for a hub data set check its name, its "
            "configuration (name:configuration) and the network, or download it and give the files."
        ) from None
    finally:
        if not quiet:
            datasets.enable_progress_bars()
    return [(split, _table(part)) for split, part in loaded.items()]


def _table(part: Any) -> Any:
    """The split as a memory-mapped Arrow table, with the names of its classes in the schema."""
    if getattr(part, "_indices", None) is not None:
        part = part.flatten_indices()
    return part.data.table.replace_schema_metadata(part.features.arrow_schema.metadata)
