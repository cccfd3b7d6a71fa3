"""A tiny random checkpoint of a covered family, laid out as the hub lays out real ones: several files and an index.

    python scripts/tiny_checkpoint.py olmoe data/01_raw/tiny-olmoe

Its weights are random, so nothing that is trained from it is of any use. It shows, without a download, that the path of
a real checkpoint works with given parameters.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as BytesBack
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SwitchTransformersForConditionalGeneration,
)

from raptor.moe.families import FAMILIES

SPECIAL = ("<pad>", "</s>", "<unk>")
# Wide enough for adapters of rank 128. A config takes those of these that it has.
SHAPE = {
    "vocab_size": 320,
    "hidden_size": 128,
    "d_model": 128,
    "intermediate_size": 128,
    "d_ff": 128,
    "d_kv": 32,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_layers": 4,
    "num_decoder_layers": 1,
    "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 0,
    "num_attention_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
OF_TEXT = tuple(family.name for family in FAMILIES if family.name not in ("upcycled", "deepseek_vl_v2"))


def tiny_config(family: str) -> PretrainedConfig:
    """The family's usual config, with every size small."""
    usual = AutoConfig.for_model(family)
    return AutoConfig.for_model(
        family, **{name: value for name, value in SHAPE.items() if hasattr(usual, name)}
    )


def tiny_model(family: str, seed: int = 0) -> PreTrainedModel:
    """What a directory of the hub holds: encoder and decoder of Switch, else a causal language model."""
    torch.manual_seed(seed)
    config = tiny_config(family)
    kind: Any = SwitchTransformersForConditionalGeneration
    model: PreTrainedModel = (
        kind(config) if family == "switch_transformers" else AutoModelForCausalLM.from_config(config)
    )
    for name, parameter in model.named_parameters():
        # As drawn, weights are so small that routers send all texts the same way.
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "router" in name or "gate.w" in name else 0.1)
    return model


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, which needs no training."""
    words = [*SPECIAL, *sorted(ByteLevel.alphabet())]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = BytesBack()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def save(family: str, output: Path, *, fused: bool = False, shard: str = "500KB") -> None:
    """Write a checkpoint with its tokenizer; with `fused`, experts are tensors of all of them together."""
    tiny_model(family).save_pretrained(output, max_shard_size=shard, save_original_format=not fused)
    byte_tokenizer().save_pretrained(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("family", choices=OF_TEXT)
    parser.add_argument("output", type=Path, help="folder, which must not be there yet")
    parser.add_argument("--fused", action="store_true", help="experts in tensors of all of them together")
    given = parser.parse_args()
    if given.output.exists():
        parser.error(f"{given.output} is there already")
    save(given.family, given.output, fused=given.fused)
    files = sorted(file.name for file in given.output.iterdir())
    print(f"{given.output}: {', '.join(files)}")


if __name__ == "__main__":
    main()
