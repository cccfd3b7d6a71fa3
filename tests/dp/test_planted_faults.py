"""The comparison with the loop over records has teeth: each fault, planted on purpose, makes it fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from raptor.dp.clipping import ClippedSum, ClippingRule
from raptor.dp.gradients import kernels
from raptor.dp.gradients.losses import causal_loss, classification_loss
from raptor.dp.gradients.taps import base, embedding, experts, linear
from raptor.dp.records import Batch
from tests.dp import oracle
from tests.dp.engines import assert_matches, assert_same, engine_for, make_batch, parts
from tests.families import family_classifier, family_language_model
from tests.tiny import tiny_classifier

Patch = pytest.MonkeyPatch


def assert_noticed(compare: Callable[[], None], plant: Callable[[], None]) -> None:
    """The comparison holds before the fault and fails after it."""
    compare()
    plant()
    with pytest.raises(AssertionError):
        compare()


def comparison(role: str, family: str = "olmoe", **options: object) -> Callable[[], None]:
    model = family_classifier(family)
    batch = make_batch(model, role, records=5, tokens=6)
    return lambda: assert_matches(model, role, batch, norms=(None, 1e-3), **options)


def test_tokens_clipped_as_records_are_noticed(monkeypatch: Patch) -> None:
    """As in libraries that take the first axis of a flattened layer for records: each token has its own norm."""

    def norms(inputs: Tensor, gradients: Tensor, *_: object) -> Tensor:
        return (inputs.square().sum(dim=2) * gradients.square().sum(dim=2)).sum(dim=1)

    assert_noticed(
        comparison("shared", way="ghost"),
        lambda: monkeypatch.setattr(kernels, "linear_squared_norms", norms),
    )


def test_tokens_clipped_as_records_in_experts_are_noticed(monkeypatch: Patch) -> None:
    def by_row(segments: kernels.Segments, inputs: Tensor, gradients: Tensor, *_: object) -> Tensor:
        total = inputs.new_zeros(segments._count)
        for chosen, rows, valid, width in segments._groups:
            each = (inputs.square().sum(dim=1) * gradients.square().sum(dim=1))[rows].view(-1, width)
            total[chosen] = (each * valid).sum(dim=1)
        return total

    assert_noticed(
        comparison("expert"), lambda: monkeypatch.setattr(kernels.Segments, "squared_norms", by_row)
    )


def test_records_taken_from_the_wrong_axis_are_noticed(monkeypatch: Patch) -> None:
    def wrong(value: Tensor, current: base.Pass, _name: str) -> Tensor:
        rows = value.reshape(-1, current.records, value.shape[-1])
        return rows.transpose(0, 1)

    assert_noticed(comparison("shared"), lambda: monkeypatch.setattr(linear, "by_record", wrong))


def test_inner_products_kept_from_a_former_pass_are_noticed(monkeypatch: Patch) -> None:
    """The engine is used for two batches; the fault gives the second one the inner products of the first."""
    kept: list[tuple[Tensor, ...]] = []
    is_planted = []
    original = kernels.Grams.of

    def of(self: kernels.Grams, activations: Tensor) -> tuple[Tensor, ...]:
        number = len(self._kept)
        found = original(self, activations)
        if len(self._kept) == number or not is_planted:
            return found
        if number >= len(kept):
            kept.append(found)
        return kept[number] if kept[number][0].shape == found[0].shape else found

    model = family_classifier("olmoe")
    batches = [make_batch(model, "shared", records=5, tokens=6, seed=seed) for seed in (0, 1)]
    engine = engine_for(model, "shared", way="ghost")

    def compare() -> None:
        for batch in batches:
            assert_matches(model, "shared", batch, engine=engine, norms=(1e-3,))

    monkeypatch.setattr(kernels.Grams, "of", of)
    assert_noticed(compare, lambda: is_planted.append(True))


def test_a_gradient_kept_from_a_former_pass_is_noticed(monkeypatch: Patch) -> None:
    model = tiny_classifier()
    batches = [make_batch(model, "shared", records=5, seed=seed) for seed in (0, 1)]
    engine = engine_for(model, "shared")

    def compare() -> None:
        for batch in batches:
            assert_matches(model, "shared", batch, engine=engine)

    def plant() -> None:
        original = base.OneOutputTap._keep
        monkeypatch.setattr(base.OneOutputTap, "_forget", lambda self: setattr(self, "_input", None))
        monkeypatch.setattr(
            base.OneOutputTap,
            "_keep",
            lambda self, gradient: original(self, gradient) if self._gradient is None else None,
        )

    assert_noticed(compare, plant)


@pytest.mark.parametrize("role", ["shared", "expert", "monolithic"])
def test_a_mean_over_the_batch_in_the_loss_is_noticed(role: str) -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, role, records=5, tokens=6)

    def averaged(model: nn.Module, batch: Batch) -> Tensor:
        return classification_loss(model, batch) / len(batch)

    # Alone, a record is its own mean: the loop gives the same with both losses.
    assert_matches(model, role, batch, loss=averaged, norms=(1e6,), engine=engine_for(model, role))
    with pytest.raises(AssertionError):
        assert_matches(model, role, batch, norms=(1e6,), engine=engine_for(model, role, loss=averaged))


def test_a_tied_head_without_its_cross_term_is_noticed(monkeypatch: Patch) -> None:
    model = family_language_model("olmoe", tie_word_embeddings=True)
    batch = make_batch(model, "shared", "none", records=5, tokens=6)
    batch = Batch(batch.input_ids, batch.attention_mask, batch.input_ids, batch.owners)
    assert_noticed(
        lambda: assert_matches(model, "shared", batch, loss=causal_loss, norms=(1e-3,)),
        lambda: monkeypatch.setattr(
            embedding.kernels,
            "tied_inner_products",
            lambda ids, *_: torch.zeros(len(ids), dtype=torch.float64),
        ),
    )


@pytest.mark.parametrize("family", ["olmoe", "switch_transformers"])
def test_padding_that_counts_is_noticed(family: str) -> None:
    model = family_classifier(family)
    batch = make_batch(model, "shared", records=5, tokens=6)

    def careless(model: nn.Module, batch: Batch) -> Tensor:
        everything = torch.ones_like(batch.attention_mask)
        return classification_loss(model, Batch(batch.input_ids, everything, batch.labels, batch.owners))

    engine = engine_for(model, "shared", loss=careless)
    with pytest.raises(AssertionError):
        assert_matches(model, "shared", batch, engine=engine)


def test_an_auxiliary_loss_over_the_batch_is_noticed() -> None:
    """Load is balanced over all tokens of a batch, so a record's gradient would depend on the others."""
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", records=5, tokens=6)

    def balanced(model: nn.Module, batch: Batch) -> Tensor:
        loads = []
        handle = model.encoder.layers[0].mlp.gate.register_forward_hook(
            lambda _module, _inputs, output: loads.append(output[0].softmax(dim=-1).mean(dim=0))
        )
        losses = classification_loss(model, batch)
        handle.remove()
        return losses + loads[0].square().sum()

    engine = engine_for(model, "shared", loss=balanced)
    with pytest.raises(AssertionError):
        assert_matches(model, "shared", batch, engine=engine)
    with pytest.raises(AssertionError):
        assert_matches(model, "shared", batch, loss=balanced, engine=engine)


def test_a_capacity_shared_by_the_batch_is_noticed() -> None:
    """Tokens of later records lose their place at an expert to tokens of earlier ones."""
    model = tiny_classifier()
    batch = make_batch(model, "monolithic", records=5, tokens=6)
    assert_matches(model, "monolithic", batch)

    def drop(_module: nn.Module, _inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> object:
        dispatch, weights, logits = output
        flat = dispatch.reshape(-1, dispatch.shape[-1])
        place = flat.cumsum(dim=0)
        return (flat * (place <= 4)).reshape(dispatch.shape), weights, logits

    model.encoder.encoder.block[1].layer[1].mlp.router.register_forward_hook(drop)
    with pytest.raises(AssertionError):
        assert_matches(model, "monolithic", batch)


@pytest.mark.parametrize("role", ["shared", "expert"])
def test_sums_that_share_their_memory_are_noticed(role: str, monkeypatch: Patch) -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, role, records=5, tokens=6)
    engine = engine_for(model, role)
    rule = ClippingRule(0.5)
    whole = engine.clipped_sum(batch, rule)

    def compare() -> None:
        first, *rest = (engine.clipped_sum(part, rule) for part in parts(batch, 2))
        for other in rest:
            first.add(other)
        assert_same(first, whole)

    def add(self: ClippedSum, other: ClippedSum) -> None:
        for name, value in other.tensors.items():
            self.tensors[name] = value
            self.tensors[name].add_(value)

    assert_noticed(compare, lambda: monkeypatch.setattr(ClippedSum, "add", add))


def test_detached_outputs_of_experts_that_do_not_own_a_record_are_noticed(monkeypatch: Patch) -> None:
    """Their parameters are constants, and yet the gradient passes through them to a trained layer below."""

    def plant() -> None:
        original = experts.combine

        def combine(hidden: Tensor, assignment: object, outer: Tensor) -> Tensor:
            rows = torch.arange(len(outer)) % 2 == 0
            return original(hidden, assignment, torch.where(rows[:, None], outer, outer.detach()))

        monkeypatch.setattr(experts, "combine", combine)

    assert_noticed(comparison("experts of two layers"), plant)


def test_gradients_of_experts_that_do_not_own_a_record_are_noticed(monkeypatch: Patch) -> None:
    assert_noticed(
        comparison("expert"),
        lambda: monkeypatch.setattr(
            experts.ExpertsTap, "_owned", lambda _self, assignment: torch.arange(len(assignment.token))
        ),
    )


def test_repeated_tokens_taken_for_different_ones_are_noticed(monkeypatch: Patch) -> None:
    model = family_classifier("olmoe", seed=3)
    batch = make_batch(model, "shared", records=5, tokens=6)
    batch.input_ids[:, 1] = batch.input_ids[:, 0]
    assert_noticed(
        lambda: assert_matches(model, "shared", batch, norms=(1e-3,)),
        lambda: monkeypatch.setattr(
            kernels, "embedding_squared_norms", lambda _ids, gradients: gradients.square().sum(dim=(1, 2))
        ),
    )


def test_the_loop_keeps_only_owners() -> None:
    """The oracle itself: without its rule for owners it gives another gradient."""
    model = family_classifier("olmoe")
    batch = make_batch(model, "expert", records=3, tokens=6)
    engine = engine_for(model, "expert")
    all_active = oracle.record_gradients(model, engine.parameters, batch)
    rule = ClippingRule(1e6)
    found = engine.clipped_sum(batch, rule)
    with pytest.raises(AssertionError):
        assert_same(found, ClippedSum(oracle.clipped_sum(all_active, rule), rule.sensitivity))
