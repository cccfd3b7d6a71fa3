"""A sparse encoder with a classification head, kept as a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
)
from transformers.utils import logging

from raptor.errors import ModelError
from raptor.moe.adapters import require_merged
from raptor.moe.families import FAMILIES, sparse_layers
from raptor.moe.images import ImageInput
from raptor.moe.upcycled import Upcycling, upcycled_class
from raptor.moe.vl2 import Vl2Encoder

HEAD_FILE = "classifier_head.safetensors"
# In config.json of whatever was trained on private records, which tells it from a base model wherever it goes.
TEXT_COLUMNS = "text_columns"
# Where it is a class of its own; elsewhere the encoder is what transformers calls the base model.
ENCODERS: dict[str, type[PreTrainedModel]] = {
    "switch_transformers": SwitchTransformersEncoderModel,
    "deepseek_vl_v2": Vl2Encoder,
}
Pooling = Literal["mean", "last"]
"""mean: over real tokens; last: the last real token, which alone has read all others in a causal model."""
# Batch-dependent or random parts of the base model are off: each would couple records or add untracked
# randomness. The auxiliary loss is never computed.
OFF = {
    "dropout_rate": 0.0,
    "router_jitter_noise": 0.0,
    "output_router_logits": False,
    "use_cache": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_dropout": 0.0,
}

# What the library says of a config whose values are of a wrong type, or do not fit together.
CONFIG_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    StrictDataclassError,
)


def load_encoder(directory: Path | str) -> PreTrainedModel:
    """Load a sparse encoder in float32, for deterministic per-record use: no dropout, no router jitter.

    Checkpoints with a tensor for each expert and fused ones are read alike, in one file or in several with an index.
    A head for another task, or the decoder beside an encoder, is left out. Code that comes with a model is never run.

    Raises:
        ModelError: the directory holds no covered sparse model, or its weights do not fit its config.
    """
    place = Path(directory)
    config = read_config(place)
    kind: Any = encoder_class(config, str(place))
    try:
        with _without_report():
            loaded: Any = kind.from_pretrained(
                place,
                config=deterministic(config),
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"The weights in {place} cannot be loaded: {error}") from error
    encoder: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(f"{place} lacks weights: {', '.join(missing[:5])} ({len(missing)} in all).")
    _require_enough_experts(encoder, str(place))
    return encoder


@contextmanager
def _without_report() -> Iterator[None]:
    """Without the library's list of tensors that are left out, such as a decoder's; what is missing is an error."""
    level = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)


def read_config(directory: Path | str) -> PretrainedConfig:
    """The config of a model directory.

    Raises:
        ModelError: there is none that can be read, or it needs code of its own.
    """
    place = Path(directory)
    if not (place / "config.json").is_file():
        raise ModelError(f"{place} is not a model directory: it has no config.json.")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            place, local_files_only=True, trust_remote_code=False
        )
    except (*CONFIG_ERRORS, OSError) as error:
        raise ModelError(f"{place / 'config.json'} is not a readable model config: {error}") from error
    return config


def encoder_class(config: PretrainedConfig, where: str) -> type[PreTrainedModel]:
    """The class of a covered model's encoder: its hidden states, without a head.

    Args:
        where: the model's place or name, for the message.

    Raises:
        ModelError: the model is of no covered family.
    """
    if Upcycling.read(config) is not None:
        return upcycled_class(config)
    if config.model_type in ENCODERS:
        return ENCODERS[config.model_type]
    covered = [family.name for family in FAMILIES]
    mapping: Mapping[Any, Any] = MODEL_MAPPING
    if config.model_type not in covered or type(config) not in mapping:
        raise ModelError(
            f"{where} holds a {config.model_type!r} model, which is not covered. Covered: "
            f"{', '.join(dict.fromkeys([*covered, *ENCODERS]))} (upcycled: dense encoders that raptor.moe.assembly "
            "made sparse)."
        )
    kind: type[PreTrainedModel] = mapping[type(config)]
    return kind


def deterministic(config: PretrainedConfig) -> PretrainedConfig:
    """The config with everything off that is random or couples records, in place."""
    config.update({name: value for name, value in OFF.items() if hasattr(config, name)})
    config._attn_implementation = "eager"
    # The grouped kernels take no float64, in which owners are decided, and differ between devices.
    config._experts_implementation = "eager"
    return config


def empty_encoder(config: PretrainedConfig, where: str) -> PreTrainedModel:
    """The encoder of a config without its numbers: shapes alone, which take no memory.

    Raises:
        ModelError: the config is of no covered sparse model, or does not fit together.
    """
    kind: Any = encoder_class(config, where)
    try:
        with torch.device("meta"):
            encoder: PreTrainedModel = kind(deterministic(config)).eval()
    except (*CONFIG_ERRORS, RuntimeError) as error:
        raise ModelError(f"The config of {where} makes no model: {error}") from error
    _require_enough_experts(encoder, where)
    return encoder


def _require_enough_experts(encoder: nn.Module, where: str) -> None:
    for layer in sparse_layers(encoder):
        if not 1 <= layer.top_k <= layer.num_experts:
            raise ModelError(
                f"The config of {where} makes no model: a token cannot be sent to {layer.top_k} of {layer.num_experts} "
                "experts."
            )


class MoEClassifier(nn.Module):
    """Sparse encoder, one vector of each record, linear head.

    The vector is the mean over real tokens where a token has read all others, and that of the last real token in a
    causal model. A record's logits depend on that record alone: no batch statistics, no capacity shared between
    records.

    Attributes:
        pooling: how the vector is made.
    """

    def __init__(self, encoder: PreTrainedModel, num_labels: int, pooling: Pooling | None = None) -> None:
        """`pooling` is that of the encoder's family by default."""
        super().__init__()
        self.encoder = encoder
        is_causal = pooling is None and sparse_layers(encoder)[0].family.is_causal
        self.pooling: Pooling = pooling or ("last" if is_causal else "mean")
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
            model = cls(load_encoder(directory), len(head["bias"]), saved_pooling(place))
            model.head.load_state_dict(head)
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise ModelError(f"{place} is not a classifier head of this model: {error}") from error
        return model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, images: ImageInput | None = None) -> Tensor:
        """Logits (records, labels) of token ids (records, tokens), mask 1 for real tokens, and of their pictures."""
        extra = {} if images is None else {"images": images}
        hidden: Tensor = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **extra
        ).last_hidden_state
        logits: Tensor = self.head(pool(hidden, attention_mask, self.pooling))
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


def pool(hidden: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """(records, tokens, width) -> (records, width); a record without a real token gives zeros, wherever padding is."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    if pooling == "last":
        # One-hot, so that a record's vector is one product for any padding.
        places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device) * attention_mask
        last = places == places.max(dim=1, keepdim=True).values
        return (hidden * (weights * last.unsqueeze(-1))).sum(dim=1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)


def saved_pooling(head: Path) -> Pooling:
    """How the model of a head file makes the vector of a record.

    Raises:
        ModelError: the file does not say it.
    """
    with safe_open(head, "pt") as file:
        found = (file.metadata() or {}).get("pooling")
    for known in get_args(Pooling):
        if found == known:
            pooling: Pooling = known
            return pooling
    raise ModelError(
        f"{head} says {found!r} for pooling, and known are {', '.join(get_args(Pooling))}. Take the directory anew "
        "from the project that trained it."
    )
