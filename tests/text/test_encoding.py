"""Token ids and padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from raptor.errors import ParameterError
from raptor.text import encoding
from raptor.text.encoding import encode_records, encode_texts, pad_batch
from tests.pipelines.directories import save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(place)
    return AutoTokenizer.from_pretrained(place)


def usual(tokenizer: Any, texts: list[str], pairs: list[str] | None, length: int) -> list[list[int]]:
    return tokenizer(texts, pairs, truncation=True, max_length=length)["input_ids"]


@pytest.mark.parametrize("length", [2, 3, 7, 50])
def test_the_short_way_equals_the_usual_call(tokenizer: Any, length: int) -> None:
    texts = ["a b c d e f", "a", "", "q z", "x " * 40]
    assert encode_texts(tokenizer, texts, None, length) == usual(tokenizer, texts, None, length)


def test_pairs_equal_the_usual_call(tokenizer: Any) -> None:
    texts, pairs = ["a b c d e f", "a", "q"], ["g", "b c d e f g h", "z"]
    for length in (2, 3, 5, 20):
        assert encode_texts(tokenizer, texts, pairs, length) == usual(tokenizer, texts, pairs, length)


def test_cut_records_are_marked(tokenizer: Any) -> None:
    # Two letters and the end mark are exactly three tokens.
    assert encode_records(tokenizer, ["a b", "a b c", "a", ""], None, 3).cut == [False, True, False, False]


def test_the_tokenizer_keeps_its_own_settings(tokenizer: Any) -> None:
    tokenizer("a", truncation=True, max_length=9, padding="max_length")
    before = tokenizer.backend_tokenizer.to_str()
    encode_texts(tokenizer, ["a b c"], None, 2)
    assert tokenizer.backend_tokenizer.to_str() == before


def test_a_long_list_is_encoded_in_parts(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join("abcdefg"[: n % 7]) for n in range(100)]
    whole = encode_texts(tokenizer, texts, texts, 9)
    monkeypatch.setattr(encoding, "CHUNK", 7)
    assert encode_texts(tokenizer, texts, texts, 9) == whole


def test_a_tokenizer_without_a_fast_part(tokenizer: Any) -> None:
    class Slow:
        unk_token_id = 2

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return tokenizer(*arguments, **options)

        def num_special_tokens_to_add(self, pair: bool) -> int:
            return tokenizer.num_special_tokens_to_add(pair=pair)

    texts = ["a b c d", "a", "", "q z"]
    assert encode_records(Slow(), texts, None, 3) == encode_records(tokenizer, texts, None, 3)


def test_no_record_is_without_tokens() -> None:
    class Bare:
        backend_tokenizer, unk_token_id, eos_token_id, pad_token_id = None, None, 5, 0

        def __call__(self, texts: list[str], pairs: object, **options: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[7] * len(text) for text in texts]}

        def num_special_tokens_to_add(self, pair: bool) -> int:
            return 0

    assert encode_texts(Bare(), ["ab", ""], None, 4) == [[7, 7], [5]]


def test_unusable_lengths_stop(tokenizer: Any) -> None:
    with pytest.raises(ParameterError, match=r"max_length is 1, .* use at least 2"):
        encode_texts(tokenizer, ["a"], None, 1)
    with pytest.raises(ParameterError, match="cannot be paired"):
        encode_texts(tokenizer, ["a"], [], 8)


@given(st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=12), st.integers(0, 5))
def test_padding_comes_off_again(records: list[list[int]], extra: int) -> None:
    length = max([*map(len, records), 1]) + extra
    ids, mask = pad_batch(records, 0, length)
    assert ids.shape == mask.shape == (len(records), length)
    assert ids.dtype == mask.dtype == np.int64
    assert [row[keep.astype(bool)].tolist() for row, keep in zip(ids, mask, strict=True)] == records
    assert (ids[mask == 0] == 0).all()
    # Real tokens come first.
    assert (np.diff(mask, axis=1) <= 0).all()


def test_padding_is_as_wide_as_the_longest_record() -> None:
    assert pad_batch([[1], [1, 2, 3]], 9)[0].tolist() == [[1, 9, 9], [1, 2, 3]]
    assert pad_batch([], 9)[0].shape == (0, 1)
    with pytest.raises(ParameterError, match="longer than the 2 tokens"):
        pad_batch([[1, 2, 3]], 0, 2)


def test_encoding_a_directory_of_its_own(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    assert encode_texts(AutoTokenizer.from_pretrained(tmp_path), ["a b"], None, 8) == [[3, 4, 1]]


WORD = st.text(st.sampled_from("abcxyz.,-é"), min_size=1, max_size=6)


@given(st.lists(st.lists(WORD, max_size=40).map(" ".join), max_size=6), st.integers(2, 9), st.integers(1, 12))
def test_the_beginning_of_a_long_text_decides_as_the_whole_does(
    tokenizer: Any, texts: list[str], length: int, characters: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "SPLIT_AT_SPACES", ())
        whole = encode_records(tokenizer, texts, None, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "CHARACTERS_A_TOKEN", characters)
        assert encode_records(tokenizer, texts, None, length) == whole


def test_a_tokenizer_that_joins_over_spaces_sees_whole_texts() -> None:
    """Merging over the space makes the first token depend on the second word."""
    model = models.BPE({"a": 0, " ": 1, "b": 2, "a ": 3, "a b": 4}, [("a", " "), ("a ", "b")])
    joined = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "CHARACTERS_A_TOKEN", 1)
        assert encode_texts(joined, ["a b" + " " * 20], None, 1) == [[4]]
