"""Sparse upcycling: copies are the dense model for any router, and the result is a base model like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.gradients.engine import OwnerExpertGradients
from raptor.dp.records import Batch
from raptor.errors import ModelError, ParameterError
from raptor.moe.assembly import load_dense, settle_routers, sparse_blocks, upcycle
from raptor.moe.classifier import MoEClassifier, load_encoder
from raptor.moe.families import sparse_layers
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import Role, parameter_roles
from raptor.moe.routing import record_votes
from raptor.pipelines.training.planning import require_isolated
from tests.tiny import tiny_batch

EXPERTS = 4


def dense(kind: str = "bert") -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "bert":
            model: PreTrainedModel = BertModel(
                BertConfig(
                    vocab_size=50,
                    hidden_size=16,
                    intermediate_size=24,
                    num_hidden_layers=3,
                    num_attention_heads=2,
                    pad_token_id=0,
                )
            )
        else:
            model = DistilBertModel(
                DistilBertConfig(vocab_size=50, dim=16, hidden_dim=24, n_layers=3, n_heads=2, pad_token_id=0)
            )
        for parameter in model.parameters():
            # As drawn, biases are zero and weights so small that every text looks alike.
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def random_routers(encoder: PreTrainedModel) -> None:
    for block in sparse_blocks(encoder):
        torch.nn.init.normal_(block.gate.weight)
        torch.nn.init.normal_(block.gate.bias)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("top_k", [1, 2])
def test_copies_of_one_model_are_that_model_for_any_router(kind: str, top_k: int) -> None:
    model = dense(kind)
    sparse = upcycle(model, experts=EXPERTS, top_k=top_k, layers=[0, 2])
    ids, mask, _ = tiny_batch()
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        for _ in range(3):
            random_routers(sparse)
            found = sparse(input_ids=ids, attention_mask=mask).last_hidden_state
            assert torch.allclose(found, expected, atol=1e-5)


def test_noise_makes_experts_differ_a_little() -> None:
    model = dense()
    sparse = upcycle(model, experts=EXPERTS, layers=[1], noise=0.05)
    up = sparse_blocks(sparse)[0].experts.up_proj.detach()
    difference = (up[0] - up[1]).std() / up[0].std()
    assert 0.05 < difference < 0.1


def test_result_is_saved_and_loaded_as_a_base_model(tmp_path: Path) -> None:
    sparse = upcycle(dense(), experts=EXPERTS, layers=[1, 2], noise=0.1)
    random_routers(sparse)
    sparse.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    ids, mask, _ = tiny_batch()
    with torch.no_grad():
        assert torch.allclose(
            loaded(input_ids=ids, attention_mask=mask).last_hidden_state,
            sparse(input_ids=ids, attention_mask=mask).last_hidden_state,
            atol=1e-6,
        )
    assert [layer.index for layer in sparse_layers(loaded)] == [1, 2]
    roles = [entry.role for entry in parameter_roles(loaded).values()]
    assert roles.count(Role.ROUTER) == roles.count(Role.EXPERT) == 4


def test_routers_spread_texts_evenly() -> None:
    sparse = upcycle(dense(), experts=EXPERTS, layers=[0, 2])
    ids, mask, _ = tiny_batch(records=400, tokens=9)
    shares = settle_routers(sparse, ids, mask)
    votes = record_votes(sparse, ids, mask)
    for layer, share in zip((0, 2), shares, strict=True):
        found = torch.bincount(assign_owners(votes[layer]), minlength=EXPERTS) / len(ids)
        assert torch.allclose(found, share, atol=0.02)
        assert 0.15 < float(share.min()) <= float(share.max()) < 0.35


LORA = {
    "trainable": "lora",
    "lora": {"rank": 2, "targets": ("*attention.self.query", "*attention.self.value")},
}


@pytest.mark.parametrize("chosen", [{"frozen": ("*embeddings*",)}, LORA], ids=["full", "lora"])
def test_gate_finds_its_gradients_exact(chosen: dict[str, object]) -> None:
    sparse = upcycle(dense(), experts=EXPERTS, layers=[1, 2], noise=0.1, top_k=2)
    random_routers(sparse)
    config = TrainingConfig.model_validate({"device": "cpu", **chosen})
    require_isolated(MoEClassifier(sparse, 3), [2], config)


def test_a_record_moves_its_owner_alone() -> None:
    sparse = upcycle(dense(), experts=EXPERTS, layers=[1])
    random_routers(sparse)
    model = MoEClassifier(sparse, 3)
    torch.nn.init.normal_(model.head.weight)
    ids, mask, labels = tiny_batch(1, tokens=12, padded=False)
    owner = assign_owners(record_votes(sparse, ids, mask)[1])
    total = OwnerExpertGradients(model, 1).clipped_sum(Batch(ids, mask, labels, owner), ClippingRule(1.0))
    for value in total.tensors.values():
        moved = value.flatten(1).abs().sum(dim=1).nonzero().flatten().tolist()
        assert moved == owner.tolist()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="top_k"):
        upcycle(dense(), experts=2, top_k=3, layers=[0])
    with pytest.raises(ModelError, match=r"no blocks \[7\]"):
        upcycle(dense(), layers=[7])
    other = T5EncoderModel(T5Config(vocab_size=50, d_model=16, d_ff=24, d_kv=8, num_layers=1, num_heads=2))
    with pytest.raises(ModelError, match="cannot be upcycled"):
        upcycle(other, layers=[0])
    with pytest.raises(ModelError, match="no dense encoder"):
        load_dense(tmp_path)
