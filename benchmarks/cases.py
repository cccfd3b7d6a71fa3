"""What is measured: random models of two families, random records of full length, and their owners.

Models keep the library's own initialisation. Sizes are those of small real models cut to a few layers, because
a ratio of two steps settles long before the model is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModel, OlmoeConfig, PreTrainedModel, SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
)

from raptor.dp.records import Batch
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import record_votes

LABELS = 2
PAD = 1
Kind = Literal["roles", "monolithic", "experts"]
Peers = Literal["all", "ghost", "none"]


def switch(
    *,
    every: int = 1,
    width: int = 256,
    hidden: int = 1024,
    layers: int = 4,
    experts: int = 8,
    vocabulary: int = 8192,
) -> PreTrainedModel:
    """A Switch encoder, one expert a token; every `every`-th layer is sparse."""
    config = SwitchTransformersConfig(
        vocab_size=vocabulary,
        d_model=width,
        d_ff=hidden,
        d_kv=width // 4,
        num_heads=4,
        num_layers=layers,
        num_decoder_layers=1,
        num_sparse_encoder_layers=layers // every,
        num_sparse_decoder_layers=0,
        num_experts=experts,
        # More than a record has tokens, so none is dropped.
        expert_capacity=4096,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
        use_cache=False,
        pad_token_id=PAD,
    )
    config.encoder_sparse_step = every
    # The family refuses the fused attention.
    config._attn_implementation = "eager"
    return SwitchTransformersEncoderModel(config)


def olmoe(
    *,
    chosen: int = 2,
    width: int = 256,
    hidden: int = 256,
    layers: int = 4,
    experts: int = 16,
    vocabulary: int = 8192,
) -> PreTrainedModel:
    """An OLMoE model, all layers sparse, `chosen` experts a token, with the fastest kernels it has."""
    config = OlmoeConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=experts,
        num_experts_per_tok=chosen,
        max_position_embeddings=512,
        initializer_range=0.05,
        use_cache=False,
        output_router_logits=False,
        pad_token_id=PAD,
        eos_token_id=None,
    )
    config._attn_implementation = "sdpa"
    config._experts_implementation = "grouped_mm"
    model: PreTrainedModel = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    return model


@dataclass(frozen=True)
class Case:
    """One model with one shape of batch.

    Attributes:
        name: as in `--cases`.
        builds: encoder builders; several only in kind "experts", by number of experts.
        records, tokens: shape of the batch.
        layer: the protected sparse layer l*.
        kind: "roles" measures shared and expert step, their cycle and peers; "monolithic" all parameters but
            routers together; "experts" our steps against our steps on the first model.
        width: hidden size, which the targets depend on.
        peers: which of them are run; on large batches, the one that does best, or none.
        most_rounds: rounds of the long cases.
    """

    name: str
    builds: dict[int, Callable[[], PreTrainedModel]]
    records: int
    tokens: int
    layer: int
    kind: Kind = "roles"
    width: int = 256
    peers: Peers = "all"
    most_rounds: int = 99


@dataclass(frozen=True)
class Subject:
    """A model and a batch of a case.

    Attributes:
        layer: the protected sparse layer.
    """

    model: MoEClassifier
    batch: Batch
    layer: int


def subject(case: Case, experts: int) -> Subject:
    """Build one model of a case and its records, from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MoEClassifier(case.builds[experts](), LABELS)
        # The usual zero head would stop every gradient below it.
        nn.init.normal_(model.head.weight, std=0.5)
        vocabulary = int(model.encoder.config.vocab_size)
        ids = torch.randint(2, vocabulary, (case.records, case.tokens))
        labels = torch.randint(0, LABELS, (case.records,))
    model.eval()
    mask = torch.ones_like(ids)
    # As ingestion does it: the owner of a record comes from the router weights of the base model.
    owners = assign_owners(record_votes(model.encoder, ids, mask)[sparse_layer(model, case.layer).index])
    return Subject(model, Batch(ids, mask, labels, owners), case.layer)


def _effort(records: int, tokens: int) -> dict[str, Any]:
    if records > 64:
        return {"peers": "none", "most_rounds": 3}
    return {"peers": "all" if records * tokens <= 2048 else "ghost"}


def _switch_case(every: int, records: int, tokens: int) -> Case:
    name = f"switch{every} {records}x{tokens}"
    layer = 2 if every == 1 else 3
    builds = {8: lambda: switch(every=every)}
    return Case(name, builds, records, tokens, layer, **_effort(records, tokens))


def _olmoe_case(chosen: int, records: int, tokens: int) -> Case:
    name = f"olmoe{chosen} {records}x{tokens}"
    builds = {16: lambda: olmoe(chosen=chosen)}
    return Case(name, builds, records, tokens, layer=2, **_effort(records, tokens))


def _width_case(width: int, records: int, tokens: int) -> Case:
    name = f"width{width} {records}x{tokens}"
    builds = {8: lambda: olmoe(width=width, hidden=width, layers=2, experts=8)}
    return Case(name, builds, records, tokens, layer=1, width=width, peers="ghost")


def _monolithic_case(chosen: int, records: int, tokens: int) -> Case:
    name = f"monolithic olmoe{chosen} {records}x{tokens}"
    builds = {16: lambda: olmoe(chosen=chosen)}
    return Case(name, builds, records, tokens, layer=2, kind="monolithic")


def _growing(experts: int) -> Callable[[], PreTrainedModel]:
    return lambda: olmoe(experts=experts)


FULL = (
    _switch_case(1, 32, 64),
    _switch_case(1, 64, 64),
    _switch_case(1, 32, 128),
    _switch_case(1, 256, 64),
    _switch_case(2, 32, 64),
    _olmoe_case(2, 32, 64),
    _olmoe_case(2, 64, 64),
    _olmoe_case(2, 32, 128),
    _olmoe_case(2, 256, 64),
    _olmoe_case(4, 32, 64),
    _width_case(256, 16, 64),
    _width_case(512, 16, 64),
    _width_case(1024, 16, 64),
    _width_case(1024, 8, 128),
    _monolithic_case(2, 32, 64),
    _monolithic_case(4, 32, 64),
    _monolithic_case(2, 32, 128),
    Case("experts 32x64", {n: _growing(n) for n in (8, 16, 32, 64)}, 32, 64, layer=2, kind="experts"),
)
QUICK = (_switch_case(1, 8, 32), _olmoe_case(2, 8, 32))
TINY = (
    Case("tiny", {4: lambda: switch(width=16, hidden=24, layers=3, experts=4, vocabulary=50)}, 4, 8, layer=2),
    Case(
        "tiny monolithic",
        {4: lambda: olmoe(width=16, hidden=24, layers=2, experts=4, vocabulary=50)},
        4,
        8,
        layer=1,
        kind="monolithic",
    ),
    Case(
        "tiny experts",
        {
            n: (lambda n=n: olmoe(width=16, hidden=24, layers=2, experts=n, vocabulary=50))  # type: ignore[misc]
            for n in (4, 8)
        },
        4,
        8,
        layer=1,
        kind="experts",
    ),
)
BY_NAME = {case.name: case for case in (*FULL, *QUICK, *TINY)}
