"""Texts are tokenised once; anything else that decides the token ids makes them anew."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from raptor.text.cache import KEPT, EncodingCache
from tests.pipelines.directories import save_tokenizer

KEY = b"k" * 32
MADE = pa.table({"input_ids": pa.array([[1, 2], [3]], pa.list_(pa.int32())), "label": [0, 1]})


def texts(*values: str, labels: tuple[int, ...] = (0, 1)) -> pa.Table:
    return pa.table(
        {"text": list(values), "text_pair": pa.nulls(len(values), pa.string()), "label": list(labels)}
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def cache(tmp_path: Path) -> EncodingCache:
    (tmp_path / "cache").mkdir()
    return EncodingCache(tmp_path / "cache", KEY)


def once(table: pa.Table = MADE) -> tuple[Callable[[], pa.Table], list[int]]:
    calls: list[int] = []

    def make() -> pa.Table:
        calls.append(1)
        return table

    return make, calls


def test_the_second_time_nothing_is_made(cache: EncodingCache, tokenizer: Path) -> None:
    make, calls = once()
    name = cache.name(texts("a", "b"), tokenizer, 8)
    assert cache.get(name, make).equals(MADE)
    assert cache.get(cache.name(texts("a", "b"), tokenizer, 8), make).equals(MADE)
    assert len(calls) == 1


def test_whatever_decides_the_ids_is_in_the_name(
    cache: EncodingCache, tokenizer: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    save_tokenizer(other, extra=1)
    settings = tmp_path / "settings"
    shutil.copytree(tokenizer, settings)
    place = settings / "tokenizer_config.json"
    place.write_text(place.read_text().replace("{", '{"truncation_side": "left",', 1))
    pairs = texts("a", "b").set_column(1, "text_pair", pa.array(["x", "y"]))
    given = [
        (texts("a", "b"), tokenizer, 8),
        (texts("b", "a"), tokenizer, 8),
        (texts("ab", ""), tokenizer, 8),
        (texts("a", "b", labels=(1, 0)), tokenizer, 8),
        (pairs, tokenizer, 8),
        (texts("a", "b"), tokenizer, 9),
        (texts("a", "b"), other, 8),
        (texts("a", "b"), settings, 8),
    ]
    names = {cache.name(*case) for case in given}
    assert len(names) == len(given)
    assert cache.name(texts("a", "b"), tokenizer, 8) not in {
        EncodingCache(tmp_path, bytes(32)).name(texts("a", "b"), tokenizer, 8)
    }


def test_names_tell_nothing_without_the_key(cache: EncodingCache, tokenizer: Path, tmp_path: Path) -> None:
    cache.get(cache.name(texts("a", "b"), tokenizer, 8), once()[0])
    (file,) = (tmp_path / "cache").iterdir()
    assert re.fullmatch(r"[0-9a-f]{64}\.arrow", file.name)
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"ARROW1", None])
def test_a_broken_file_is_made_again(
    cache: EncodingCache, tokenizer: Path, tmp_path: Path, content: bytes | None
) -> None:
    make, calls = once()
    name = cache.name(texts("a", "b"), tokenizer, 8)
    cache.get(name, make)
    place = tmp_path / "cache" / name
    place.write_bytes(place.read_bytes()[:-9] if content is None else content)
    assert cache.get(name, make).equals(MADE)
    assert len(calls) == 2


def test_the_oldest_are_removed(cache: EncodingCache, tokenizer: Path, tmp_path: Path) -> None:
    names = [cache.name(texts("a", "b"), tokenizer, length) for length in range(4, 4 + KEPT + 2)]
    for name in names:
        cache.get(name, once()[0])
        cache.get(names[0], once()[0])
    left = {file.name for file in (tmp_path / "cache").iterdir()}
    # The first one was used all the time, so it is not the oldest.
    assert left == {names[0], *names[-KEPT + 1 :]}


def test_a_full_disk_leaves_nothing(
    cache: EncodingCache, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("raptor.text.cache.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        cache.get(cache.name(texts("a", "b"), tokenizer, 8), once()[0])
    assert list((tmp_path / "cache").iterdir()) == []
