"""What a pass may meet: half precision, gradient checkpointing, dropout, long records, any physical batch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.gradients import kernels
from raptor.dp.gradients.engine import GradientEngine, JointGradients
from raptor.dp.gradients.losses import classification_loss
from raptor.dp.records import Batch
from raptor.errors import ModelError
from raptor.moe.routing import record_votes
from tests.dp import oracle
from tests.dp.engines import (
    EVERY_FAMILY,
    MAIN_ROLES,
    QUICK_FAMILIES,
    ROLES,
    assert_matches,
    assert_same,
    difference,
    engine_for,
    make_batch,
    pad_left,
    parts,
    protected_layers,
    send_all_to,
    total_norm,
    voted_owners,
)
from tests.families import family_classifier
from tests.tiny import tiny_batch, tiny_classifier

RULE = ClippingRule(0.5)
HUGE, TINY = ClippingRule(1e9), ClippingRule(1e-3)


def hooks_and_shadows(model: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Of each module: attributes that hide a method or a parameter of its own, and its hooks."""
    return [
        (
            " ".join(sorted({"forward", "compute_bias", *module._parameters} & set(vars(module)))),
            (*module._forward_hooks, *module._forward_pre_hooks),
        )
        for module in model.modules()
    ]


def assert_unchanged(model: nn.Module, before: list[tuple[str, tuple[int, ...]]]) -> None:
    assert hooks_and_shadows(model) == before
    assert not any(shadows for shadows, _ in before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", QUICK_FAMILIES)
def test_any_physical_batch_gives_the_same_sum(family: str, role: str) -> None:
    model = family_classifier(family)
    batch = make_batch(model, role, records=7, tokens=5)
    engine = engine_for(model, role)
    whole = engine.clipped_sum(batch, RULE)
    for size in (1, 2, 5):
        total = engine.clipped_sum(batch.part(0, 0), RULE)
        assert total_norm(total.tensors) == 0.0
        for part in parts(batch, size):
            total.add(engine.clipped_sum(part, RULE))
        # A batch without padding of its own has other roundings of float32 parts of a model.
        assert_same(total, whole, 1e-6 if family == "deepseek_v2" else 1e-9)


@pytest.mark.parametrize("kind", ["autocast", "pure"])
@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_bfloat16_is_clipped_to_c_in_float32_and_close_to_it(family: str, role: str, kind: str) -> None:
    exact = family_classifier(family, torch.float32)
    half = exact if kind == "autocast" else family_classifier(family, torch.bfloat16)
    for model in {exact, half}:
        # A token between two experts would go to one in bfloat16, and to the other in float32.
        send_all_to(model, 1)
    batch = make_batch(exact, role, records=3, tokens=6)
    owners = torch.ones_like(batch.owners)
    batch = dataclasses.replace(batch, owners=owners)
    engine = engine_for(half, role, autocast=torch.bfloat16 if kind == "autocast" else None)
    reference = engine_for(exact, role)
    for part in parts(batch, 1):
        clipped = engine.clipped_sum(part, TINY).tensors
        assert all(value.dtype == torch.float32 for value in clipped.values())
        assert total_norm(clipped) <= TINY.norm
        norms = [total_norm(one.clipped_sum(part, HUGE).tensors) for one in (engine, reference)]
        assert norms[0] == pytest.approx(norms[1], rel=0.15)

    def cast_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            return classification_loss(model, batch)

    # The same loop in bfloat16: what is left is the rounding of its own sums, not that of the model.
    truth = oracle.record_gradients(
        half, engine.parameters, batch, loss=cast_loss, owner_layers=protected_layers(half, role)
    )
    expected = oracle.clipped_sum([{k: v.float() for k, v in record.items()} for record in truth], RULE)
    assert difference(engine.clipped_sum(batch, RULE).tensors, expected) <= 0.05


@pytest.mark.parametrize("kind", ["same inputs", "almost the same inputs"])
@pytest.mark.parametrize("rows", [4, 32, 128])
def test_rows_that_cancel_are_not_taken_for_a_small_gradient(rows: int, kind: str) -> None:
    """Rounding alone could leave a squared norm below zero, and the record would not be clipped."""
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(20, 1, 64, generator=generator).expand(20, rows, 64).clone()
    if kind != "same inputs":
        inputs += 1e-5 * torch.randn(inputs.shape, generator=generator)
    gradients = torch.randn(20, rows, 16, generator=generator)
    gradients -= gradients.mean(dim=1, keepdim=True)
    exact = torch.bmm(gradients.double().transpose(1, 2), inputs.double()).square().sum(dim=(1, 2))
    found = kernels.linear_squared_norms(inputs, gradients, "ghost").double()
    assert bool((found >= exact * (1 - 1e-6)).all())


def test_a_record_of_one_repeated_token_is_clipped_to_c() -> None:
    """Without positions all its queries and keys are the same, so the gradient of a key's weight cancels."""
    model = tiny_classifier(dtype=torch.float32)
    names = tuple(name for name, _ in model.named_parameters() if name.endswith(".k.weight"))
    ids = torch.full((1, 12), 7)
    batch = Batch(ids, torch.ones_like(ids), torch.tensor([1]), torch.tensor([0]))
    engine = JointGradients(model, names, way="ghost")
    for norm in (1e-2, 1e-4, 1e-6, 1e-7):
        assert total_norm(engine.clipped_sum(batch, ClippingRule(norm)).tensors) <= norm


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_gradient_checkpointing_changes_nothing(family: str, role: str) -> None:
    model = family_classifier(family)
    batch = make_batch(model, role, records=5, tokens=6)
    engine = engine_for(model, role)
    expected = engine.clipped_sum(batch, RULE)
    model.encoder.gradient_checkpointing_enable()
    model.train()
    before = hooks_and_shadows(model)
    for _ in range(2):
        assert_same(engine.clipped_sum(batch, RULE), expected, 1e-12)
        assert_unchanged(model, before)


@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("family", ["switch_transformers", "olmoe"])
def test_reentrant_checkpointing_is_refused(family: str, role: str) -> None:
    model = family_classifier(family)
    batch = make_batch(model, role, records=5, tokens=6)
    model.encoder.gradient_checkpointing_enable({"use_reentrant": True})
    model.train()
    engine = engine_for(model, role)
    before = hooks_and_shadows(model)
    with pytest.raises(ModelError, match="use_reentrant=False"):
        engine.clipped_sum(batch, RULE)
    assert_unchanged(model, before)


class _InterruptedError(Exception):
    pass


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", ["switch_transformers", "olmoe", "qwen2_moe"])
def test_a_model_that_fails_in_a_pass_is_left_as_it_was(family: str, role: str, checkpointing: bool) -> None:
    model = family_classifier(family)
    batch = make_batch(model, role, records=5, tokens=6)
    engine = engine_for(model, role)
    expected = engine.clipped_sum(batch, RULE)
    if checkpointing:
        model.encoder.gradient_checkpointing_enable()
        model.train()
    last = [module for module in model.encoder.modules() if not list(module.children())][-1]
    norms = [module for module in model.modules() if "Norm" in type(module).__name__]

    def interrupt(*_: object) -> None:
        raise _InterruptedError

    before = hooks_and_shadows(model)
    for module in (last, norms[len(norms) // 2], model.head):
        # Before and after the module's own work: in the midst of a pass, and inside of a tap's reach.
        for register in (module.register_forward_pre_hook, module.register_forward_hook):
            handle = register(interrupt)
            with pytest.raises(_InterruptedError):
                engine.clipped_sum(batch, RULE)
            handle.remove()
            assert_unchanged(model, before)
    assert_same(engine.clipped_sum(batch, RULE), expected, 1e-12)


def test_a_backward_pass_that_fails_leaves_nothing() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "monolithic", records=5, tokens=6)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        logits = model(batch.input_ids, batch.attention_mask)

        def interrupt(_gradient: torch.Tensor) -> None:
            raise _InterruptedError

        logits.register_hook(interrupt)
        return logits.sum(dim=1)

    before = hooks_and_shadows(model)
    with pytest.raises(_InterruptedError):
        engine_for(model, "monolithic", loss=loss).clipped_sum(batch, RULE)
    assert_unchanged(model, before)


def with_dropout(family: str) -> nn.Module:
    model = family_classifier(family)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
        if type(module).__name__.endswith("Attention") and isinstance(
            getattr(module, "dropout", None), float
        ):
            module.dropout = 0.3
    return model.train()


def seeded(engine: GradientEngine, batch: Batch) -> ClippedSum:
    torch.manual_seed(5)
    return engine.clipped_sum(batch, HUGE)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_dropout_is_that_of_autograd_with_the_same_random_numbers(family: str, role: str) -> None:
    model = with_dropout(family)
    plain = family_classifier(family)
    batch = make_batch(plain, role, "none", records=1, tokens=6)
    engine = engine_for(model, role)
    found = seeded(engine, batch)
    assert difference(found.tensors, seeded(engine_for(plain, role), batch).tensors) > 1e-3
    torch.manual_seed(5)
    (truth,) = oracle.record_gradients(
        model, engine.parameters, batch, owner_layers=protected_layers(model, role)
    )
    assert difference(found.tensors, truth) <= 1e-8


@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_records_longer_than_the_positions_of_the_config(family: str, role: str) -> None:
    """No table of positions ends: rotary angles and relative distances go on.

    Ingestion cuts records to `ingestion.max_length`, whatever the config of the model says.
    """
    model = family_classifier(family)
    assert getattr(model.encoder.config, "max_position_embeddings", 64) == 64
    ids, mask, labels = tiny_batch(records=3, tokens=70)
    batch = Batch(ids, mask, labels, voted_owners(model, ids, mask, role))
    assert_matches(model, role, batch, tolerance=1e-6)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_votes_do_not_depend_on_the_side_of_the_padding(family: str) -> None:
    model = family_classifier(family, torch.float32)
    ids, mask, _ = tiny_batch(records=6, tokens=7)
    right, left = (record_votes(model.encoder, *padded) for padded in ((ids, mask), pad_left(ids, mask)))
    for layer, votes in right.items():
        torch.testing.assert_close(left[layer], votes, rtol=1e-3, atol=1e-3)
