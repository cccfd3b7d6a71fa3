"""Tiny random models of every covered family, in float64 where exactness is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    DeepseekV2Config,
    FlexOlmoConfig,
    GraniteMoeConfig,
    MixtralConfig,
    OlmoeConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from raptor.moe.classifier import MoEClassifier
from tests.tiny import tiny_classifier

WIDTH, VOCAB, EXPERTS = 16, 50, 4
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
    "output_router_logits": False,
    "num_experts_per_tok": 2,
}


def _olmoe(**extra: Any) -> PretrainedConfig:
    return OlmoeConfig(**COMMON, num_experts=EXPERTS, **extra)


def _flex_olmo(**extra: Any) -> PretrainedConfig:
    return FlexOlmoConfig(**COMMON, num_experts=EXPERTS, **extra)


def _mixtral(**extra: Any) -> PretrainedConfig:
    return MixtralConfig(**COMMON, num_local_experts=EXPERTS, sliding_window=None, **extra)


def _qwen2(**extra: Any) -> PretrainedConfig:
    return Qwen2MoeConfig(
        **COMMON,
        num_experts=EXPERTS,
        moe_intermediate_size=12,
        shared_expert_intermediate_size=20,
        decoder_sparse_step=1,
        **extra,
    )


def _qwen3(**extra: Any) -> PretrainedConfig:
    return Qwen3MoeConfig(**COMMON, num_experts=EXPERTS, moe_intermediate_size=12, head_dim=8, **extra)


def _deepseek(**extra: Any) -> PretrainedConfig:
    return DeepseekV2Config(
        **COMMON,
        num_experts=EXPERTS,
        n_routed_experts=EXPERTS,
        moe_intermediate_size=12,
        n_shared_experts=2,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        **extra,
    )


def _granite(**extra: Any) -> PretrainedConfig:
    return GraniteMoeConfig(**COMMON, num_local_experts=EXPERTS, **extra)


CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "olmoe": _olmoe,
    "flex_olmo": _flex_olmo,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2,
    "qwen3_moe": _qwen3,
    "deepseek_v2": _deepseek,
    "granitemoe": _granite,
}
FAMILY_NAMES = ("switch_transformers", *CONFIGS)


def _spread(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Weights large enough that routers spread tokens and every parameter has a gradient worth comparing."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.0 if "bias" in name else 1.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=0.5 if "embed" in name else 0.3)
    model.to(dtype).eval()


def _build(auto: Any, family: str, dtype: torch.dtype, seed: int, **extra: Any) -> PreTrainedModel:
    config = CONFIGS[family](**extra)
    config._attn_implementation = "eager"
    # The grouped kernels take no float64.
    config._experts_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = auto.from_config(config)
        _spread(model, dtype)
    return model


def family_classifier(
    family: str, dtype: torch.dtype = torch.float64, labels: int = 3, seed: int = 0, **extra: Any
) -> MoEClassifier:
    """A classifier on a tiny random encoder of a family."""
    if family == "switch_transformers":
        return tiny_classifier(labels, dtype, layers=3, sparse=3, seed=seed)
    model = MoEClassifier(_build(AutoModel, family, dtype, seed, **extra), labels)
    with torch.random.fork_rng():
        torch.manual_seed(seed + 1)
        torch.nn.init.normal_(model.head.weight, std=0.5)
    return model.to(dtype).eval()


def family_language_model(
    family: str, dtype: torch.dtype = torch.float64, seed: int = 0, **extra: Any
) -> PreTrainedModel:
    """A causal language model of a family that has one."""
    return _build(AutoModelForCausalLM, family, dtype, seed, **extra)
