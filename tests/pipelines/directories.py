"""A tiny base model directory, as a user would bring one."""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.tiny import tiny_encoder

WORDS = tuple(string.ascii_lowercase)


def save_tokenizer(
    directory: Path, *, pad: str | None = "<pad>", end: str | None = "</s>", extra: int = 0
) -> None:
    """One token a letter; `extra` more tokens make it too large for a model of 50 embeddings."""
    special = ["<pad>", "</s>", "<unk>"]
    words = [*special, *WORDS, *(f"extra{number}" for number in range(extra))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, unk_token=end and "<unk>"
    ).save_pretrained(directory)


def save_base_model(directory: Path, **shape: int) -> Path:
    """A random Switch encoder with its tokenizer."""
    tiny_encoder(**shape).save_pretrained(directory)
    save_tokenizer(directory)
    return directory
