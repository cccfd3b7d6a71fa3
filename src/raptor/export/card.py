"""The model card of an exported model: what it is, what is guaranteed, how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raptor.accounting.page import plain
from raptor.accounting.words import round_up

SHOWN_CLASSES = 50

_FRONT = """---
library_name: transformers
pipeline_tag: {task}
tags:
- differential-privacy
- mixture-of-experts
---
"""

_LOAD = """import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, {architecture}

place = "."  # this directory
config = AutoConfig.from_pretrained(place)
tokenizer = AutoTokenizer.from_pretrained(place)
encoder = {architecture}.from_pretrained(place).eval()
head = load_file(f"{{place}}/classifier_head.safetensors")


def probabilities(texts, pairs=None):
    batch = tokenizer(texts, pairs, truncation=True, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
{pooled}
    return (pooled @ head["weight"].T + head["bias"]).softmax(dim=-1)


for row in probabilities({example}):
    print(config.id2label[int(row.argmax())], float(row.max()))"""


_POOLED = {
    "mean": """    mask = mask.unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)""",
    "last": """    last = (mask * torch.arange(mask.shape[1])).argmax(dim=1)  # the last real token
    pooled = hidden[torch.arange(len(hidden)), last]""",
}


def model_card(
    certificate: Mapping[str, Any], config: Mapping[str, Any], max_length: int, pooling: str = "mean"
) -> str:
    """The card, in the Markdown of model hubs; it follows from the certificate and from the model's own files.

    Args:
        certificate: of the model.
        config: the model's `config.json`.
        max_length: tokens of a text that are read.
        pooling: how the vector of a text is made, as the head's file says.
    """
    names = [name for _, name in sorted(config["id2label"].items(), key=lambda item: int(item[0]))]
    return (
        "\n\n".join(
            [
                heading("text-classification", "A private text classifier"),
                _what(certificate, config, names, max_length),
                *guarantee(certificate),
                _load(config, pooling),
                "\n".join(["## Classes", "", *_classes(names)]),
            ]
        )
        + "\n"
    )


CHECK = (
    "`raptor verify privacy_certificate.json` recomputes them from `privacy_ledger.jsonl` and compares the digest of "
    "these files with it; this card does not count in the digest."
)


def heading(task: str, title: str) -> str:
    """What model hubs read, and the title."""
    return f"{_FRONT.format(task=task)}\n# {title}"


def guarantee(certificate: Mapping[str, Any]) -> list[str]:
    """What the certificate promises, what it does not, and how to check it: the same on every card."""
    return [
        "\n".join(["## Guarantee", "", *(f"- {plain(line)}" for line in certificate["statement"])]),
        bullets("Taken as public, not protected", certificate["taken_as_public"]),
        bullets("Not covered", certificate["not_covered"]),
        f"All figures and assumptions are in `privacy_certificate.md`. {CHECK}",
    ]


def _what(
    certificate: Mapping[str, Any], config: Mapping[str, Any], names: list[str], max_length: int
) -> str:
    kind = "" if certificate["private"] else "**Not private: a test with seeded noise.** "
    return (
        f"{kind}It was trained with differential privacy: epsilon {round_up(certificate['epsilon'])} at delta "
        f"{certificate['delta']:g}, unit of privacy one {certificate['unit']} ({certificate['adjacency']}). It tells "
        f"{len(names)} classes from the first {max_length} tokens of {_texts(config)}. Classes were learnt under "
        "noise: measure it on texts of your own before you rely on it."
    )


def _texts(config: Mapping[str, Any]) -> str:
    given = config.get("text_columns", "text")
    columns = given.split("+", 1) if isinstance(given, str) else given
    return "a text" if len(columns) == 1 else f"a pair of texts ({plain(columns[0])}, {plain(columns[1])})"


def _load(config: Mapping[str, Any], pooling: str) -> str:
    pair = _texts(config) != "a text"
    code = _LOAD.format(
        architecture=config["architectures"][0],
        pooled=_POOLED[pooling],
        example='["a text"], ["its second text"]' if pair else '["a text", "another one"]',
    )
    return (
        "## Load it\n\nWith transformers alone; no code of this directory is run.\n\n"
        f"```python\n{code}\n```\n\n"
        "With the project it is made by: `raptor predict --model DIR --input FILE --output FILE`."
    )


def _classes(names: list[str]) -> list[str]:
    shown = [f"{number}. {plain(name)}" for number, name in enumerate(names[:SHOWN_CLASSES])]
    more = len(names) - SHOWN_CLASSES
    return shown + ([f"\n{more} more stand in `config.json`."] if more > 0 else [])


def bullets(title: str, items: list[str]) -> str:
    """A heading and a list under it."""
    return "\n".join([f"## {title}", "", *(f"- {plain(item)}" for item in items or ["nothing"])])
