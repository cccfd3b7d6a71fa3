"""A tuned model on its way to disk."""

from __future__ import annotations

import json
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
    """A tuned classifier with the tokenizer of its base model, the names of its classes, and how texts come to it.

    Attributes:
        text: the columns that it was trained on, as `ingestion.text` names them.
        max_length: tokens of a record that it was trained on.
    """

    model: MoEClassifier
    base_model: Path
    label_names: tuple[str, ...]
    text: str | tuple[str, ...]
    max_length: int

    def save_to(self, directory: Path) -> None:
        """Write the whole Hugging Face directory: config, weights, head, tokenizer, label names.

        The tokenizer cuts texts where training cut them, so that whoever loads it needs no other setting.
        """
        self.model.encoder.config.text_columns = self.text if isinstance(self.text, str) else list(self.text)
        self.model.cpu().save_pretrained(directory, self.label_names)
        for name in TOKENIZER_FILES:
            if (self.base_model / name).is_file():
                shutil.copy2(self.base_model / name, directory / name)
        place = directory / "tokenizer_config.json"
        settings = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
        settings["model_max_length"] = self.max_length
        place.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
