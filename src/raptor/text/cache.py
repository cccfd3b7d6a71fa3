"""Token ids that were made before, for the same texts, tokenizer and length."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

# Part of every key: raise it when token ids are made in another way.
FORM = "1"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)
KEPT = 4
ENDING = ".arrow"


class EncodingCache:
    """A folder of encoded tables, as private as the records.

    Guarantee: nothing is released. A file's name is a keyed digest of everything that its content follows from; without
    the private key it tells nothing, and with it only whether two readings were the same.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        """`key` is from the system's randomness, and as private as the records."""
        self._folder = folder
        self._key = hashlib.blake2b(key, person=b"raptor-encoding").digest()

    def name(self, texts: pa.Table, tokenizer: Path, length: int | str, images: str = "") -> str:
        """Name of the file for some records, in their order, a tokenizer's directory and a length, or lengths.

        Args:
            images: what the form of encoded images follows from; empty where there are none.
        """
        total = hashlib.blake2b(key=self._key, digest_size=32)
        facts = [FORM, str(length), version("tokenizers"), version("transformers")]
        if images:
            facts += [images, version("pillow")]
        total.update("\0".join(facts).encode())
        for pattern in TOKENIZER_FILES:
            for file in sorted(tokenizer.glob(pattern)):
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                total.update(f"{file.name}\0{content}\n".encode())
        with pa.ipc.new_stream(pa.PythonFile(_Digesting(total), mode="w"), texts.schema) as writer:
            writer.write_table(texts)
        return total.hexdigest() + ENDING

    def get(self, name: str, make: Callable[[], pa.Table]) -> pa.Table:
        """The table of that name, memory-mapped; made and kept first where it is not there.

        A file that is no whole table is made again. The oldest files are removed when there are more than `KEPT`.
        """
        place = self._folder / name
        kept = _mapped(place)
        if kept is None:
            self._keep(make(), place)
            kept = _mapped(place)
        if kept is None:
            raise AssertionError(f"{place} was written and cannot be read")
        os.utime(place)
        self._tidy()
        return kept

    def _keep(self, table: pa.Table, place: Path) -> None:
        partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                with pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)

    def _tidy(self) -> None:
        files = sorted(self._folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-KEPT]:
            file.unlink(missing_ok=True)


def _mapped(place: Path) -> pa.Table | None:
    """The table of a file, or None where there is no whole one."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(place))).read_all()
    except (OSError, pa.ArrowInvalid):
        return None


class _Digesting(io.RawIOBase):
    """A file that goes nowhere but into a digest."""

    def __init__(self, total: Any) -> None:
        super().__init__()
        self._total = total

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._total.update(data)
        return memoryview(data).nbytes
