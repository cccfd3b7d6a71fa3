"""Sparse decoders that predict the next token, kept as Hugging Face directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from raptor.errors import ModelError, ParameterError
from raptor.moe.adapters import require_merged
from raptor.moe.classifier import HEAD_FILE, MoEClassifier, deterministic, empty_encoder, read_config
from raptor.moe.families import FAMILIES, sparse_layers


def require_decoder(directory: Path | str, tokens: int = 0) -> None:
    """Refuse a model that cannot continue texts of so many tokens, by its config alone.

    Raises:
        ModelError: it is no decoder of a covered family.
        ParameterError: it has fewer positions.
    """
    config = read_config(directory)
    others = ("switch_transformers", "upcycled", "deepseek_vl_v2")
    covered = [family.name for family in FAMILIES if family.name not in others]
    if config.model_type not in covered or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"Texts are to be continued (ingestion.completion), but {directory} holds a {config.model_type!r} model, "
            f"which is no covered decoder. Covered: {', '.join(covered)}. Give a directory or hub name of one as "
            "base_model.source."
        )
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and tokens > positions:
        raise ParameterError(
            f"ingestion.max_length is {tokens}, but the base model has {positions} positions. Give at most so many."
        )


def load_language_model(directory: Path | str) -> PreTrainedModel:
    """Load a sparse decoder with its language-model head in float32, for deterministic per-record use.

    Where the head is tied to the token table, both stay one parameter, named by the table. Code that comes with a
    model is never run.

    Raises:
        ModelError: the directory holds no covered decoder, or its weights do not fit its config.
    """
    require_decoder(directory)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            config=deterministic(read_config(directory)),
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"The weights in {directory} cannot be loaded: {error}") from error
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(f"{directory} lacks weights: {', '.join(missing[:5])} ({len(missing)} in all).")
    model: PreTrainedModel = loaded[0]
    sparse_layers(model)
    return model


def empty_language_model(config: PretrainedConfig, where: str) -> PreTrainedModel:
    """The decoder of a config without its numbers: shapes alone, which take no memory.

    Raises:
        ModelError: the config is of no covered decoder, or does not fit together.
    """
    mapping: Mapping[Any, Any] = MODEL_FOR_CAUSAL_LM_MAPPING
    empty_encoder(config, where)
    if type(config) not in mapping:
        raise ModelError(
            f"{where} holds a {config.model_type!r} model, which is no decoder that continues texts."
        )
    with torch.device("meta"):
        model: PreTrainedModel = mapping[type(config)](config).eval()
    return model


def is_language_model(model: nn.Module) -> bool:
    """Whether a model answers with logits of tokens, (records, tokens, vocabulary)."""
    if not isinstance(model, PreTrainedModel):
        return False
    head: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head is not None


def save_language_model(model: PreTrainedModel, directory: Path | str) -> None:
    """Write config, generation config and weights as `AutoModelForCausalLM.from_pretrained` reads them.

    Raises:
        ModelError: adapters are not folded in.
    """
    require_merged(model)
    # Off for training alone: whoever generates wants it.
    model.config.use_cache = True
    model.save_pretrained(Path(directory))


def load_untrained(directory: Path | str, classes: int) -> MoEClassifier | PreTrainedModel:
    """What a private training begins with, on a public base model.

    Args:
        classes: of a new head; 0 for the language model as it is.

    Raises:
        ModelError: the base model is not covered, or does not fit the task.
    """
    return MoEClassifier.from_encoder(directory, classes) if classes else load_language_model(directory)


def load_tuned(directory: Path | str) -> MoEClassifier | PreTrainedModel:
    """A model that a training has left: a classifier where there is a head's file, else a language model.

    Raises:
        ModelError: a file is missing or does not fit.
    """
    if (Path(directory) / HEAD_FILE).is_file():
        return MoEClassifier.from_pretrained(directory)
    return load_language_model(directory)
