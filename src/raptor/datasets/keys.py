"""A private key that is made on first use and then stays the same."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from raptor.datasets.atomic import shown
from raptor.errors import DataError

KEY_BYTES = 32


class PrivateKey(AbstractDataset[None, bytes]):
    """Random bytes of the operating system in a file of their own, readable by its owner alone.

    Load makes the file where there is none. Whoever deletes it gets another key.

    Raises:
        DataError: on load, when the file does not hold a key.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> bytes:
        if not self._filepath.exists():
            self._make()
        key = self._filepath.read_bytes()
        if len(key) != KEY_BYTES:
            raise DataError(
                f"{shown(self._filepath)} does not hold a key of {KEY_BYTES} bytes. Delete it; the next run makes "
                "another, and draws other held-out records."
            )
        return key

    def save(self, data: None) -> None:
        raise DataError(f"{shown(self._filepath)} is made when it is first read, and never written.")

    def _make(self) -> None:
        self._filepath.parent.mkdir(parents=True, exist_ok=True)
        partial = self._filepath.with_name(f"{self._filepath.name}.partial")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._filepath)

    def _exists(self) -> bool:
        return True

    def _describe(self) -> dict[str, Any]:
        return {"filepath": shown(self._filepath)}
