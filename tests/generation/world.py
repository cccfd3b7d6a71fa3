"""Instruction data that can be made and checked by rule, and a tiny decoder that has learnt a public part of it.

A record asks to write a word backwards or forwards, letter by letter.
"""

from __future__ import annotations

import csv
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from torch.nn import functional
from transformers import AutoModelForCausalLM, OlmoeConfig, PretrainedConfig, PreTrainedTokenizerFast

LETTERS = string.ascii_lowercase + " :\n"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
VOCABULARY = len(SPECIAL) + len(LETTERS)
TASKS = ("copy", "reverse")


def save_tokenizer(directory: Path, *, eos: str | None = "</s>", ending: bool = False) -> None:
    """One token a letter, a mark before every text; `ending` puts the end mark behind it, too."""
    words = {word: number for number, word in enumerate((*SPECIAL, *LETTERS))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    single = "<s> $A </s>" if ending else "<s> $A"
    tokenizer.post_processor = TemplateProcessing(
        single=single, pair=f"{single} $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=eos,
        unk_token="<unk>",
    ).save_pretrained(directory)


def tiny_config(width: int = 32, layers: int = 2, experts: int = 4, **extra: Any) -> OlmoeConfig:
    return OlmoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=experts,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **extra,
    )


def save_decoder(directory: Path, config: PretrainedConfig | None = None, seed: int = 0) -> Path:
    """A random tiny decoder with its tokenizer, as a user would bring one."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config or tiny_config()).save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def instructions(
    number: int,
    seed: int,
    tasks: Sequence[str] = TASKS,
    letters: str = string.ascii_lowercase,
    longest: int = 4,
) -> list[tuple[str, str]]:
    """Prompts and their completions."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        word = "".join(generator.choice(list(letters), size=generator.integers(2, longest + 1)))
        task = str(generator.choice(list(tasks)))
        made.append((f"{task}: {word}\n", word if task == "copy" else word[::-1]))
    return made


def write_csv(place: Path, records: Sequence[tuple[str, str]]) -> Path:
    with place.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "completion"])
        rows.writerows(records)
    return place


def pretrain(
    directory: Path, records: Sequence[tuple[str, str]], steps: int, batch: int = 64, rate: float = 3e-3
) -> float:
    """Train a decoder's own directory on public records without protection; the last loss."""
    from raptor.moe.language import load_language_model, save_language_model
    from raptor.pipelines.ingestion.encoding import load_tokenizer
    from raptor.text.completions import Lengths, encode_prompted, ready

    model = load_language_model(directory).train()
    tokenizer = ready(load_tokenizer(directory))
    made = encode_prompted(tokenizer, *zip(*records, strict=True), Lengths(24, 8))  # type: ignore[arg-type]
    width = max(map(len, made.ids))
    ids = torch.zeros(len(made.ids), width, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, (tokens, prompt) in enumerate(zip(made.ids, made.prompts, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    adam = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, rate, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(0, len(ids), (batch,), generator=generator)
        logits = model(input_ids=ids[rows], use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[rows, 1:].flatten(), ignore_index=-100)
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
    save_language_model(model.eval(), directory)
    return float(loss)
