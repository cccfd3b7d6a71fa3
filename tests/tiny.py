"""Tiny sparse models for tests: two to three blocks, a few experts, float64 where exactness is measured."""

from __future__ import annotations

import re

import torch
from transformers import SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
    SwitchTransformersTop1Router,
)

from raptor.moe.classifier import MoEClassifier

PAD = 0


def tiny_encoder(
    *,
    vocab: int = 50,
    width: int = 16,
    hidden: int = 24,
    layers: int = 2,
    sparse: int = 2,
    experts: int = 4,
    heads: int = 2,
    capacity: int = 512,
    seed: int = 0,
) -> SwitchTransformersEncoderModel:
    """A random Switch encoder whose routers spread tokens over the experts."""
    config = SwitchTransformersConfig(
        vocab_size=vocab,
        d_model=width,
        d_ff=hidden,
        d_kv=width // heads,
        num_layers=layers,
        num_decoder_layers=1,
        num_sparse_encoder_layers=sparse,
        num_sparse_decoder_layers=0,
        num_heads=heads,
        num_experts=experts,
        expert_capacity=capacity,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
        use_cache=False,
        pad_token_id=PAD,
    )
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = SwitchTransformersEncoderModel(config)
        torch.nn.init.normal_(encoder.get_input_embeddings().weight, std=0.5)
        for name, parameter in encoder.named_parameters():
            if "router" in name:
                torch.nn.init.normal_(parameter, std=1.0)
    return encoder.eval()


def tiny_classifier(labels: int = 3, dtype: torch.dtype = torch.float64, **shape: int) -> MoEClassifier:
    """A classifier on a tiny encoder with a random head, so that every parameter has a gradient."""
    model = MoEClassifier(tiny_encoder(**shape), labels)
    with torch.random.fork_rng():
        torch.manual_seed(shape.get("seed", 0) + 1)
        torch.nn.init.normal_(model.head.weight, std=0.5)
    for module in model.modules():
        if isinstance(module, SwitchTransformersTop1Router):
            # The config admits no float64 here, and a float32 router would blur what exactness tests measure.
            module.dtype = dtype
    return model.to(dtype).eval()


def tiny_batch(
    records: int = 6, tokens: int = 7, labels: int = 3, vocab: int = 50, padded: bool = True, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids (records, tokens), mask, labels; with `padded`, records differ in length."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab, (records, tokens), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        lengths = torch.randint(2, tokens + 1, (records,), generator=generator)
        lengths[0] = tokens
        mask = (torch.arange(tokens)[None] < lengths[:, None]).long()
        ids = torch.where(mask.bool(), ids, torch.full_like(ids, PAD))
    return ids, mask, torch.randint(0, labels, (records,), generator=generator)


def expert_of(name: str) -> int | None:
    """Which expert of a tiny encoder a parameter belongs to, if any."""
    found = re.search(r"\.expert_(\d+)\.", name)
    return int(found[1]) if found else None
