"""Causal language models: the loss of a record's own tokens, and heads of their own or tied to the embedding."""

from __future__ import annotations

import pytest
import torch

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.losses import IGNORED, causal_loss
from raptor.dp.records import Batch
from raptor.moe.roles import Role, parameter_roles, shared_parameters
from tests.dp.engines import MAIN_ROLES, QUICK_FAMILIES, assert_matches, engine_for, make_batch, total_norm
from tests.dp.float64 import keep_float64
from tests.families import CONFIGS, family_language_model

FAMILIES_HERE = tuple(CONFIGS)
EVERY_FAMILY_HERE = [
    name if name in QUICK_FAMILIES else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in FAMILIES_HERE
]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def completions(model: torch.nn.Module, role: str, padding: str = "right", prompt: int = 2) -> Batch:
    """Records whose first tokens are a prompt that does not count; the last record is nothing but prompt."""
    batch = make_batch(model, role, padding, records=5, tokens=6)
    position = batch.attention_mask.cumsum(dim=1)
    counted = batch.attention_mask.bool() & (position > prompt)
    counted[-1] = False
    labels = torch.where(counted, batch.input_ids, torch.full_like(batch.input_ids, IGNORED))
    return Batch(batch.input_ids, batch.attention_mask, labels, batch.owners)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY_HERE)
def test_language_models_agree_with_a_loop_over_records(family: str, role: str, tied: bool) -> None:
    model = family_language_model(family, tie_word_embeddings=tied)
    way = ("ghost", "direct", "auto")[FAMILIES_HERE.index(family) % 3]
    batch = completions(model, role, "none" if family == "mixtral" else "right")
    assert_matches(model, role, batch, loss=causal_loss, norms=(None, 1e-3), way=way)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", EVERY_FAMILY_HERE)
def test_head_and_embedding_are_shared_and_a_tied_matrix_is_named_once(family: str, tied: bool) -> None:
    model = family_language_model(family, tie_word_embeddings=tied)
    assert parameter_roles(model)["model.embed_tokens.weight"].role is Role.SHARED
    assert ("lm_head.weight" in shared_parameters(model)) is not tied
    engine = engine_for(model, "shared", loss=causal_loss)
    found = engine.clipped_sum(completions(model, "shared"), ClippingRule(1.0)).tensors
    assert all(found[name].any() for name in ("model.embed_tokens.weight", "lm_head.weight") if name in found)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("role", MAIN_ROLES)
def test_a_record_with_nothing_to_count_has_no_loss_and_no_gradient(role: str, tied: bool) -> None:
    model = family_language_model("olmoe", tie_word_embeddings=tied)
    empty = completions(model, role).part(4, 5)
    assert causal_loss(model, empty).item() == 0.0
    result = engine_for(model, role, loss=causal_loss).clipped_sum(empty, ClippingRule(1.0))
    assert total_norm(result.tensors) == 0.0
    assert result.nonfinite == 0


def test_a_record_of_one_token_has_no_loss_and_no_gradient() -> None:
    model = family_language_model("olmoe")
    one = torch.tensor([[7]])
    batch = Batch(one, torch.ones_like(one), one, torch.tensor([0]))
    result = engine_for(model, "shared", loss=causal_loss).clipped_sum(batch, ClippingRule(1.0))
    assert total_norm(result.tensors) == 0.0


def test_a_causal_loss_does_not_depend_on_other_records() -> None:
    model = family_language_model("olmoe")
    batch = completions(model, "shared")
    together = causal_loss(model, batch)
    alone = torch.cat([causal_loss(model, batch.part(i, i + 1)) for i in range(len(batch))])
    torch.testing.assert_close(together, alone)
