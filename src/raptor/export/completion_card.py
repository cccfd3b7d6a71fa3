"""The card of an exported model that continues texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raptor.accounting.page import plain
from raptor.accounting.words import round_up
from raptor.export.card import guarantee, heading

_LOAD = """import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

place = "."  # this directory
tokenizer = AutoTokenizer.from_pretrained(place)
model = AutoModelForCausalLM.from_pretrained(place).eval()


def complete(prompt):
    batch = tokenizer(prompt, truncation=True, return_tensors="pt")
    with torch.no_grad():
        made = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"])
    return tokenizer.decode(made[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)


print(complete("a prompt"))"""


def completion_card(
    certificate: Mapping[str, Any], config: Mapping[str, Any], prompt: int, completion: int
) -> str:
    """The card, in the Markdown of model hubs; it follows from the certificate and from the model's own files.

    Args:
        certificate: of the model.
        config: the model's `config.json`.
        prompt, completion: tokens that are read, and written.
    """
    return (
        "\n\n".join(
            [
                heading("text-generation", "A private language model"),
                _what(certificate, config, prompt, completion),
                *guarantee(certificate),
                f"## Load it\n\nWith transformers alone; no code of this directory is run.\n\n```python\n{_LOAD}\n```"
                "\n\n"
                "With the project it is made by: `raptor predict --model DIR --input FILE --output FILE`.",
            ]
        )
        + "\n"
    )


def _what(certificate: Mapping[str, Any], config: Mapping[str, Any], prompt: int, completion: int) -> str:
    kind = "" if certificate["private"] else "**Not private: a test with seeded noise.** "
    given = config.get("text_columns", "text")
    columns = given.split("+", 1) if isinstance(given, str) else given
    pair = ""
    if len(columns) == 2:
        pair = f" A prompt is {plain(columns[0])}, and {plain(columns[1])} on lines of its own where there is any."
    return (
        f"{kind}It was trained with differential privacy: epsilon {round_up(certificate['epsilon'])} at delta "
        f"{certificate['delta']:g}, unit of privacy one {certificate['unit']} ({certificate['adjacency']}). It "
        f"continues a prompt, of which the last {prompt} tokens are read, by at most {completion} tokens.{pair} It "
        "was taught under noise: measure it on prompts of your own before you rely on it."
    )
