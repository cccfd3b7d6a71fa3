"""Prompts and their completions to token ids, by public lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raptor.errors import ModelError


@dataclass(frozen=True)
class Lengths:
    """How much of a record is read. Public, and the same in training, evaluation and prediction.

    Attributes:
        prompt: tokens of a prompt, with what the tokenizer puts before it; of a longer one the last ones are kept.
        completion: tokens of a completion, with its end mark; of a longer one the first ones are kept, without a mark.
    """

    prompt: int
    completion: int


@dataclass(frozen=True)
class Prompted:
    """Token ids of prompts with their completions, unpadded.

    Attributes:
        ids: prompt and completion, one behind the other.
        prompts: how many tokens of each are the prompt, at least one.
        cut_prompts, cut_completions: how many lost something.
    """

    ids: list[list[int]]
    prompts: list[int]
    cut_prompts: int
    cut_completions: int


def ready(tokenizer: Any) -> Any:
    """A tokenizer set to cut the beginning of a prompt.

    Raises:
        ModelError: it knows no end mark, or puts something behind a prompt.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "The tokenizer has no end mark, so that a completion would never end. Set its eos_token and save it again."
        )
    special = tokenizer("", add_special_tokens=True)["input_ids"]
    if special and special[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
        raise ModelError(
            "The tokenizer puts its end mark behind every text, so that a prompt would end before its completion. Take "
            "the mark out of its post-processor and save it again."
        )
    tokenizer.truncation_side = "left"
    return tokenizer


def prompt_texts(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """The prompts: of two columns the second stands on lines of its own, where it is not blank."""
    if pairs is None:
        return list(texts)
    return [
        f"{first}\n{second}" if second and second.strip() else first
        for first, second in zip(texts, pairs, strict=True)
    ]


def encode_prompted(
    tokenizer: Any, prompts: Sequence[str], completions: Sequence[str], lengths: Lengths
) -> Prompted:
    """Token ids of prompts and completions; an empty completion has no token, and so no end mark either.

    Both are tokenised apart, so that what a prompt becomes is the same with and without its completion.

    Args:
        tokenizer: from `ready`.

    Raises:
        ParameterError: the length of prompts leaves no room for text.
    """
    from raptor.text.encoding import encode_records

    first = encode_records(tokenizer, prompts, None, lengths.prompt)
    answers = [[*ids, tokenizer.eos_token_id] if ids else [] for ids in _plain(tokenizer, completions)]
    return Prompted(
        [ids + answer[: lengths.completion] for ids, answer in zip(first.ids, answers, strict=True)],
        [len(ids) for ids in first.ids],
        sum(first.cut),
        sum(len(answer) > lengths.completion for answer in answers),
    )


def _plain(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Ids of whole texts without special tokens."""
    if not texts:
        return []
    # A text in which nothing is found has no token.
    ids: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, truncation=False, return_attention_mask=False, verbose=False
    )["input_ids"]
    return ids
