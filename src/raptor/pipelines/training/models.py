"""A tuned model on its way to disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from raptor.moe.classifier import MoEClassifier

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "spiece.model",
    "added_tokens.json",
)


@dataclass(frozen=True)
class TunedModel:
    """A tuned classifier with the tokenizer of its base model and the names of its classes."""

    model: MoEClassifier
    base_model: Path
    label_names: tuple[str, ...]

    def save_to(self, directory: Path) -> None:
        """Write the whole Hugging Face directory: config, weights, head, tokenizer, label names."""
        self.model.cpu().save_pretrained(directory, self.label_names)
        for name in TOKENIZER_FILES:
            if (self.base_model / name).is_file():
                shutil.copy2(self.base_model / name, directory / name)
