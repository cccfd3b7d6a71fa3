"""Data sets of the Hugging Face hub."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from raptor.errors import DataError

CONNECT_SECONDS = 5.0


def hub_parts(source: str, near: str | None) -> list[tuple[str, Any]]:
    """Download (or take from the local cache) a data set: (split name, Arrow table) of each split.

    Args:
        source: ``name``, ``owner/name``, or either with ``:configuration``.
        near: a local path with a similar name, for the message.

    Raises:
        DataError: the hub does not have it, or cannot be reached and nothing is cached.
    """
    name, _, configuration = source.partition(":")
    import datasets
    import huggingface_hub.constants

    online = _reachable(huggingface_hub.constants.ENDPOINT)
    quiet = datasets.are_progress_bars_disabled()
    offline = (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)
    datasets.disable_progress_bars()
    if not online:
        # Else the library tries again for half a minute before it looks into its cache.
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        loaded = datasets.load_dataset(name, configuration or None)
    # Whatever stops the library (network, name, format, a setting), the user's next step is the same.
    except Exception as error:
        similar = f" A local path with a similar name is {near}." if near is not None else ""
        reason = type(error).__name__ if online else "the hub cannot be reached"
        raise DataError(
            f"{source}: there is no such file or folder here, and it cannot be loaded as a hub data set "
            f"({reason}).{similar} Check the path; for a hub data set check its name, its configuration "
            "(name:configuration) and the network, or download it elsewhere and give the files."
        ) from None
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = offline
        if not quiet:
            datasets.enable_progress_bars()
    return [(split, _table(part)) for split, part in loaded.items()]


def _reachable(endpoint: str) -> bool:
    """Whether the hub answers; behind a proxy the proxy has to know."""
    parts = urlsplit(endpoint)
    if parts.scheme in getproxies():
        return True
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _table(part: Any) -> Any:
    """The split as a memory-mapped Arrow table, with the names of its classes in the schema."""
    if part._indices is not None:
        part = part.flatten_indices()
    return part.data.table.replace_schema_metadata(part.features.arrow_schema.metadata)
