"""A record whose loss or gradient is not finite contributes exactly zero, and no other record notices."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import GradientEngine, OwnerExpertGradients
from raptor.dp.gradients.losses import causal_loss, classification_loss
from raptor.dp.records import Batch
from raptor.moe.adapters import add_lora, lora_parameters
from raptor.moe.experts import ExpertBank
from raptor.moe.families import sparse_layers
from tests.dp.engines import (
    EVERY_FAMILY,
    ROLES,
    assert_same,
    engine_for,
    make_batch,
    total_norm,
    voted_owners,
)
from tests.families import family_classifier, family_language_model

BROKEN_TOKEN = 49
RULE = ClippingRule(0.5)


def marked_batch(model: nn.Module, role: str) -> Batch:
    """Records of which only the first has the broken token, at its beginning."""
    batch = make_batch(model, role, records=5, tokens=6)
    ids = torch.where(batch.input_ids == BROKEN_TOKEN, torch.ones_like(batch.input_ids), batch.input_ids)
    ids[0, 0] = BROKEN_TOKEN
    owners = voted_owners(model, ids, batch.attention_mask, role)
    return dataclasses.replace(batch, input_ids=ids, owners=owners)


def assert_only_the_first_is_zero(engine: GradientEngine, batch: Batch) -> None:
    """The broken record alone adds nothing, and all together add what the others add."""
    alone = engine.clipped_sum(batch.part(0, 1), RULE)
    assert alone.nonfinite == 1
    assert total_norm(alone.tensors) == 0.0
    found = engine.clipped_sum(batch, RULE)
    others = engine.clipped_sum(batch.part(1, len(batch)), RULE)
    assert (found.nonfinite, others.nonfinite) == (1, 0)
    assert_same(found, others)
    others.add(alone)
    assert others.nonfinite == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_token_with_a_broken_embedding(family: str, role: str, value: float) -> None:
    model = family_classifier(family)
    batch = marked_batch(model, role)
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[BROKEN_TOKEN] = value
    assert_only_the_first_is_zero(engine_for(model, role), batch)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_logit_that_is_infinite(family: str, role: str) -> None:
    model = family_classifier(family)
    batch = marked_batch(model, role)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        factors = torch.ones(len(batch), dtype=torch.float64)
        factors[batch.input_ids[:, 0] == BROKEN_TOKEN] = float("inf")
        return functional.cross_entropy(
            model(batch.input_ids, batch.attention_mask) * factors[:, None], batch.labels, reduction="none"
        )

    assert_only_the_first_is_zero(engine_for(model, role, loss=loss), batch)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_finite_loss_with_a_gradient_that_is_not(family: str, role: str) -> None:
    """The square root at zero: its value is finite and its derivative is not."""
    model = family_classifier(family)
    batch = marked_batch(model, role)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        losses = classification_loss(model, batch)
        offset = (batch.input_ids[:, 0] != BROKEN_TOKEN).to(losses.dtype)
        return (losses - losses.detach() + offset).sqrt()

    assert_only_the_first_is_zero(engine_for(model, role, loss=loss), batch)


@pytest.mark.parametrize("role", ROLES)
def test_a_loss_that_is_not_finite_counts_though_its_gradient_is(role: str) -> None:
    model = family_classifier("olmoe")
    batch = marked_batch(model, role)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        losses = classification_loss(model, batch)
        return losses + torch.zeros_like(losses).masked_fill(
            batch.input_ids[:, 0] == BROKEN_TOKEN, float("inf")
        )

    assert_only_the_first_is_zero(engine_for(model, role, loss=loss), batch)


def break_expert(bank: ExpertBank, expert: int) -> None:
    with torch.no_grad():
        for stack in bank.stacks:
            stack.of(expert).fill_(float("nan"))


def only_the_first_record_at(model: nn.Module, layer: int, expert: int, batch: Batch) -> None:
    """Send the first token of the first record to an expert that no other token goes to."""
    block = next(found for found in sparse_layers(model) if found.index == layer)

    def choose(module: nn.Module, _inputs: object, output: tuple[torch.Tensor, ...]) -> object:
        first, weights, last = output
        is_marked = (batch_now[0].input_ids[:, :1] == BROKEN_TOKEN).expand(
            -1, batch_now[0].input_ids.shape[1]
        )
        is_marked = is_marked & (torch.arange(is_marked.shape[1]) == 0)
        if hasattr(module, "classifier"):
            dispatch = first.clone()
            flat = dispatch.view(-1, dispatch.shape[-1])
            flat[flat[:, expert] == 1] = torch.eye(dispatch.shape[-1], dtype=flat.dtype)[(expert + 1) % 4]
            flat[is_marked.flatten()] = torch.eye(dispatch.shape[-1], dtype=flat.dtype)[expert]
            return dispatch, weights, last
        chosen = torch.tensor([(expert + 1) % 4, (expert + 2) % 4]).expand_as(last).clone()
        chosen.view(-1, 2)[is_marked.flatten(), 0] = expert
        return first, weights, chosen

    batch_now = [batch]
    model.register_forward_pre_hook(
        lambda _module, inputs: batch_now.__setitem__(0, dataclasses.replace(batch, input_ids=inputs[0]))
    )
    block.router.register_forward_hook(choose)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_broken_expert_that_one_record_uses(family: str, role: str) -> None:
    model = family_classifier(family)
    batch = marked_batch(model, role)
    layer = sparse_layers(model)[-1]
    only_the_first_record_at(model, layer.index, 2, batch)
    break_expert(layer.bank(), 2)
    # Owners matter where the broken layer is trained: for the marked record the broken expert, no other's.
    owners = torch.where(batch.owners == 2, torch.zeros_like(batch.owners), batch.owners)
    owners[0] = 2
    assert_only_the_first_is_zero(engine_for(model, role), dataclasses.replace(batch, owners=owners))


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_broken_expert_with_an_adapter(family: str) -> None:
    """Kept rows are multiplied by an adapter's matrices once more, and zero times NaN is NaN."""
    model = family_classifier(family)
    layer = sparse_layers(model)[-1].index
    add_lora(model, rank=2, alpha=4, expert_layers=[layer])
    bank = sparse_layers(model)[-1].bank()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for stack in bank.stacks:
            for tensor in stack.tensors:
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    batch = marked_batch(model, "expert")
    only_the_first_record_at(model, layer, 2, batch)
    break_expert(bank, 2)
    owners = torch.full_like(batch.owners, 3)
    owners[0] = 2
    trained = [name for name in lora_parameters(model) if ".experts." in name]
    engine = OwnerExpertGradients(model, layer, parameters=trained)
    assert_only_the_first_is_zero(engine, dataclasses.replace(batch, owners=owners))


@pytest.mark.parametrize("role", ROLES)
def test_all_records_broken_give_zeros(role: str) -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, role, records=5, tokens=6)
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    result = engine_for(model, role).clipped_sum(batch, RULE)
    assert result.nonfinite == len(batch)
    assert total_norm(result.tensors) == 0.0


def test_a_tied_head_breaks_records_without_breaking_the_sum() -> None:
    """A broken row of a tied matrix is a logit of every record, so all of them contribute zero."""
    model = family_language_model("olmoe", tie_word_embeddings=True)
    batch = make_batch(model, "shared", records=5, tokens=6)
    batch = dataclasses.replace(batch, labels=batch.input_ids)
    with torch.no_grad():
        model.get_input_embeddings().weight[BROKEN_TOKEN] = float("nan")
    result = engine_for(model, "shared", loss=causal_loss).clipped_sum(batch, RULE)
    assert result.nonfinite == len(batch)
    assert total_norm(result.tensors) == 0.0


def test_the_count_is_not_shown() -> None:
    model = family_classifier("olmoe")
    result = engine_for(model, "expert").clipped_sum(make_batch(model, "expert"), RULE)
    assert "nonfinite" not in repr(result)
