"""Tiny random checkpoints in the layouts that the hub serves, with a tokenizer: they stand in for downloads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, SwitchTransformersForConditionalGeneration

from tests.families import family_language_model
from tests.pipelines.directories import save_tokenizer
from tests.tiny import tiny_encoder

PER_EXPERT = {
    "switch_transformers": r"encoder\.block\.\d+\.layer\.1\.mlp\.experts\.expert_\d+\.(wi|wo)\.weight",
    "olmoe": r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight",
    "flex_olmo": r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight",
    "mixtral": r"model\.layers\.\d+\.block_sparse_moe\.experts\.\d+\.w[123]\.weight",
    "qwen2_moe": r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight",
    "qwen3_moe": r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight",
    "deepseek_v2": r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight",
    # This family's are fused on the hub, under names of their own.
    "granitemoe": r"model\.layers\.\d+\.block_sparse_moe\.(input|output)_linear\.weight",
}
"""Names of the experts' tensors in a family's checkpoints on the hub."""
FUSED = r"model\.layers\.\d+\.(mlp|block_sparse_moe)\.experts\.(gate_up|down)_proj"
"""Names of tensors of all experts together, as transformers has them in memory."""
FUSED_FAMILIES = tuple(name for name in PER_EXPERT if name != "switch_transformers")
SHARD = "20KB"


def _switch(seed: int) -> PreTrainedModel:
    encoder = tiny_encoder(layers=3, sparse=3, seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed + 2)
        model = SwitchTransformersForConditionalGeneration(encoder.config)
    model.shared.load_state_dict(encoder.shared.state_dict())
    model.encoder.load_state_dict(encoder.encoder.state_dict())
    return model.eval()


def published_model(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """The model that a hub directory holds: encoder and decoder of Switch, else a causal language model."""
    if family == "switch_transformers":
        return _switch(seed).to(dtype)
    return family_language_model(family, dtype, seed)


def save_checkpoint(
    directory: Path, family: str, *, fused: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """Write a sharded checkpoint with its index and a tokenizer; returns the model that was saved."""
    model = published_model(family, dtype, seed)
    model.save_pretrained(directory, max_shard_size=SHARD, save_original_format=not fused)
    save_tokenizer(directory)
    return model


def weight_map(directory: Path) -> dict[str, str]:
    """Tensor name to file, from the index."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    found: dict[str, str] = index["weight_map"]
    return found


def matching(names: list[str] | dict[str, str], pattern: str) -> list[str]:
    return [name for name in names if re.fullmatch(pattern, name)]


def drop_tensor(directory: Path, name: str) -> None:
    """Take one tensor out of a sharded checkpoint, and out of its index."""
    file = directory / weight_map(directory)[name]
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    place = directory / "model.safetensors.index.json"
    index = json.loads(place.read_text())
    del index["weight_map"][name]
    place.write_text(json.dumps(index))
