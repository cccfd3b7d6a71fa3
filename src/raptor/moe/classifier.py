"""A sparse encoder with a classification head, kept as a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
)

from raptor.errors import ModelError
from raptor.moe.adapters import require_merged
from raptor.moe.families import sparse_layers
from raptor.moe.images import ImageInput
from raptor.moe.upcycled import Upcycling, upcycled_class
from raptor.moe.vl2 import Vl2Encoder

HEAD_FILE = "classifier_head.safetensors"
Pooling = Literal["mean", "last"]
ENCODERS: dict[str, type[PreTrainedModel]] = {
    "switch_transformers": SwitchTransformersEncoderModel,
    "deepseek_vl_v2": Vl2Encoder,
}


def load_encoder(directory: Path | str) -> PreTrainedModel:
    """Load a sparse encoder in float32, for deterministic per-record use: no dropout, no router jitter.

    Raises:
        ModelError: the directory holds no covered sparse model, or its weights do not fit its config.
    """
    place = Path(directory)
    if not (place / "config.json").is_file():
        raise ModelError(f"{place} is not a model directory: it has no config.json.")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{place / 'config.json'} is not a readable model config: {error}") from error
    is_upcycled = Upcycling.read(config) is not None
    if not is_upcycled and config.model_type not in ENCODERS:
        raise ModelError(
            f"{place} holds a {config.model_type!r} model, which is not covered. Covered: {', '.join(ENCODERS)}, and "
            "dense encoders that were upcycled (raptor.moe.assembly)."
        )
    kind = upcycled_class(config) if is_upcycled else ENCODERS[config.model_type]
    # Batch-dependent or random parts of the base model are off: each would couple records or add untracked
    # randomness. The auxiliary loss is never computed.
    off = {
        "dropout_rate": 0.0,
        "router_jitter_noise": 0.0,
        "output_router_logits": False,
        "use_cache": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    config.update({name: value for name, value in off.items() if hasattr(config, name)})
    config._attn_implementation = "eager"
    try:
        loaded: Any = kind.from_pretrained(
            place, config=config, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"The weights in {place} cannot be loaded: {error}") from error
    encoder: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(f"{place} lacks weights: {', '.join(missing[:5])} ({len(missing)} in all).")
    sparse_layers(encoder)
    return encoder


class MoEClassifier(nn.Module):
    """Sparse encoder, one vector of its real tokens, linear head.

    The vector is their mean, or, where the encoder says so (`pooling`), the last of them: in a causal model it alone
    has seen the whole record. A record's logits depend on that record alone: no batch statistics, no capacity shared
    between records.
    """

    def __init__(self, encoder: PreTrainedModel, num_labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(int(encoder.config.hidden_size), num_labels)
        # A zero head is a public, seedless start that prefers no class.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def num_labels(self) -> int:
        return self.head.out_features

    @classmethod
    def from_encoder(cls, directory: Path | str, num_labels: int) -> Self:
        """A new classifier with an untrained (zero) head on a base encoder.

        Raises:
            ModelError: see `load_encoder`.
        """
        return cls(load_encoder(directory), num_labels)

    @classmethod
    def from_pretrained(cls, directory: Path | str) -> Self:
        """Load what `save_pretrained` wrote.

        Raises:
            ModelError: a file is missing or does not fit.
        """
        place = Path(directory) / HEAD_FILE
        if not place.is_file():
            raise ModelError(f"{directory} has no {HEAD_FILE}: it is a base model, not a tuned classifier.")
        try:
            head = load_file(place)
            model = cls(load_encoder(directory), len(head["bias"]))
            model.head.load_state_dict(head)
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise ModelError(f"{place} is not a classifier head of this model: {error}") from error
        return model

    @property
    def pooling(self) -> Pooling:
        """How the tokens of a record become one vector."""
        given: Pooling = getattr(self.encoder, "pooling", "mean")
        return given

    def forward(self, input_ids: Tensor, attention_mask: Tensor, images: ImageInput | None = None) -> Tensor:
        """Logits (records, labels) of token ids (records, tokens), mask 1 for real tokens, and of their pictures."""
        extra = {} if images is None else {"images": images}
        hidden: Tensor = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **extra
        ).last_hidden_state
        weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
        if self.pooling == "last":
            # One row of weights a record: 1 at its last real token.
            numbers = torch.arange(1, attention_mask.shape[1] + 1, device=attention_mask.device)
            last = (attention_mask * numbers).amax(dim=1, keepdim=True).clamp_min(1)
            weights = (numbers == last).to(hidden.dtype).unsqueeze(-1)
        pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)
        logits: Tensor = self.head(pooled)
        return logits

    def save_pretrained(self, directory: Path | str, label_names: Sequence[str]) -> None:
        """Write config, encoder weights, head and label names as a Hugging Face directory.

        Raises:
            ModelError: the number of names is not the number of classes, or adapters are not folded in.
        """
        require_merged(self)
        if len(label_names) != self.num_labels:
            raise ModelError(f"{len(label_names)} label names for a head of {self.num_labels} classes.")
        place = Path(directory)
        config: Any = self.encoder.config
        config.id2label = dict(enumerate(label_names))
        config.label2id = {name: index for index, name in enumerate(label_names)}
        self.encoder.save_pretrained(place)
        head = {name: value.detach().cpu().contiguous() for name, value in self.head.state_dict().items()}
        save_file(
            head,
            place / HEAD_FILE,
            metadata={"pooling": self.pooling, "label_names": json.dumps(list(label_names))},
        )
