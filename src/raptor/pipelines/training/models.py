"""A tuned model on its way to disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from raptor.errors import DataError
from raptor.moe.classifier import TEXT_COLUMNS, MoEClassifier
from raptor.moe.language import save_language_model
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.text.completions import Lengths
from raptor.text.encoding import padding_token

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "added_tokens.json",
)


@dataclass(frozen=True)
class TunedModel:
    """A tuned classifier with the tokenizer of its base model, the names of its classes, and how texts come to it.

    Attributes:
        text: the columns that it was trained on, as `ingestion.text` names them.
        max_length: tokens of a record that it was trained on.
        image: the column of images, where there is one.
        image_tiles: most tiles of an image, as `ingestion.image_tiles`.
    """

    model: MoEClassifier
    base_model: Path
    label_names: tuple[str, ...]
    text: str | tuple[str, ...]
    max_length: int
    image: str | None = None
    image_tiles: int | None = None

    def save_to(self, directory: Path) -> None:
        """Write the whole Hugging Face directory: config, weights, head, tokenizer, label names.

        The tokenizer cuts texts where training cut them, so that whoever loads it needs no other setting.
        """
        setattr(self.model.encoder.config, TEXT_COLUMNS, _columns(self.text))
        if self.image is not None:
            self.model.encoder.config.image_column = self.image
            self.model.encoder.config.image_tiles = self.image_tiles
        self.model.cpu().save_pretrained(directory, self.label_names)
        changed: dict[str, Any] = {"model_max_length": self.max_length}
        _save_tokenizer(self.base_model, directory, changed | _padding(self.base_model))


@dataclass(frozen=True)
class TunedLanguageModel:
    """A tuned language model with the tokenizer of its base model, and how prompts come to it.

    Attributes:
        text: the columns of the prompt, as `ingestion.text` names them.
        lengths: tokens of prompts and completions that it was trained on.
    """

    model: PreTrainedModel
    base_model: Path
    text: str | tuple[str, ...]
    lengths: Lengths

    def save_to(self, directory: Path) -> None:
        """Write the whole Hugging Face directory, for `AutoModelForCausalLM` and its `generate`.

        The tokenizer cuts prompts where training cut them, and `generate` decodes as the evaluation counts: greedily,
        to the end mark or the length of training. So whoever loads them needs no other setting.
        """
        from raptor.pipelines.ingestion.encoding import load_tokenizer

        tokenizer = load_tokenizer(self.base_model)
        padding = tokenizer.pad_token or tokenizer.eos_token
        decoding: Any = GenerationConfig
        self.model.generation_config = decoding(
            do_sample=False,
            max_new_tokens=self.lengths.completion,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.convert_tokens_to_ids(padding),
        )
        setattr(self.model.config, TEXT_COLUMNS, _columns(self.text))
        save_language_model(self.model.cpu(), directory)
        settings = {
            "model_max_length": self.lengths.prompt,
            "truncation_side": "left",
            "padding_side": "left",
            "pad_token": padding,
        }
        _save_tokenizer(self.base_model, directory, settings)


def tuned_model(
    model: MoEClassifier | PreTrainedModel,
    base_model: Path,
    label_names: Sequence[str],
    ingestion: IngestionConfig,
) -> TunedModel | TunedLanguageModel:
    """The trained model with all that goes to disk with it.

    Raises:
        DataError: `ingestion` is not that of the records.
    """
    if isinstance(model, MoEClassifier):
        return TunedModel(
            model,
            base_model,
            tuple(label_names),
            ingestion.text,
            ingestion.max_length,
            ingestion.image,
            ingestion.image_tiles,
        )
    if ingestion.lengths is None:
        raise DataError(
            "The model continues texts, but ingestion.completion is not given. Give the parameters that the ingestion "
            "stage was run with."
        )
    return TunedLanguageModel(model, base_model, ingestion.text, ingestion.lengths)


def _columns(text: str | tuple[str, ...]) -> str | list[str]:
    return text if isinstance(text, str) else list(text)


def _padding(base_model: Path) -> dict[str, str]:
    """The padding token of a tokenizer that has none of its own, as some published ones; nothing for others."""
    from raptor.pipelines.ingestion.encoding import load_tokenizer

    place = base_model / "tokenizer_config.json"
    settings = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    if settings.get("pad_token") is not None:
        return {}
    tokenizer = load_tokenizer(base_model)
    token = padding_token(tokenizer)
    return {} if tokenizer.pad_token is not None or token is None else {"pad_token": token}


def _save_tokenizer(base_model: Path, directory: Path, changed: dict[str, Any]) -> None:
    for name in TOKENIZER_FILES:
        if (base_model / name).is_file():
            shutil.copy2(base_model / name, directory / name)
    place = directory / "tokenizer_config.json"
    settings = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    place.write_text(
        json.dumps({**settings, **changed}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
