"""The engines against a loop over records, for every role, with and without padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients import kernels
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.records import Batch
from raptor.errors import ModelError
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import expert_parameters, shared_parameters
from raptor.moe.routing import record_votes
from tests.dp import oracle
from tests.tiny import tiny_batch, tiny_classifier

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def make_batch(model, layer: int = 1, **shape) -> Batch:
    ids, mask, labels = tiny_batch(**shape)
    owners = assign_owners(record_votes(model.encoder, ids, mask)[layer])
    return Batch(ids, mask, labels, owners)


def engine_for(model, role: str, layer: int):
    if role == "expert":
        return OwnerExpertGradients(model, layer)
    names = shared_parameters(model)
    if role == "monolithic":
        names += expert_parameters(model)
    return JointGradients(model, names)


def assert_matches(model, role: str, batch: Batch, share_clipped: float, layer: int = 1) -> None:
    engine = engine_for(model, role, layer)
    truth = oracle.record_gradients(
        model, engine.parameters, batch, owner_layers=(layer,) if role == "expert" else ()
    )
    rule = ClippingRule(float(torch.quantile(oracle.norms(truth), 1 - share_clipped)) + 1e-12)
    expected = oracle.clipped_sum(truth, rule)
    found = engine.clipped_sum(batch, rule).tensors
    assert set(found) == set(engine.parameters)
    scale = max(float(value.norm()) for value in expected.values())
    for name, value in expected.items():
        error = float((found[name] - value).norm())
        assert error <= TOLERANCE[value.dtype] * max(scale, 1e-12), (name, error, scale)


@pytest.mark.parametrize("role", ["shared", "expert", "monolithic"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_clipped_sum_is_that_of_a_loop_over_records(role, padded, dtype) -> None:
    model = tiny_classifier(dtype=dtype, layers=3, sparse=3)
    batch = make_batch(model, records=6, tokens=7, padded=padded)
    assert_matches(model, role, batch, share_clipped=0.5)


@pytest.mark.parametrize("role", ["shared", "monolithic"])
def test_a_model_with_dense_layers_is_covered(role) -> None:
    model = tiny_classifier(layers=4, sparse=2)
    batch = make_batch(model, layer=3)
    assert_matches(model, role, batch, share_clipped=0.5, layer=3)


@settings(max_examples=15, deadline=None)
@given(
    records=st.integers(1, 6),
    tokens=st.integers(2, 9),
    experts=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 10_000),
    role=st.sampled_from(["shared", "expert", "monolithic"]),
)
def test_any_shape_and_routing(records, tokens, experts, share, seed, role) -> None:
    """Among them: as many records as tokens, one expert that gets everything, experts that get nothing."""
    model = tiny_classifier(experts=experts, seed=seed)
    batch = make_batch(model, records=records, tokens=tokens, seed=seed)
    assert_matches(model, role, batch, share)


def test_records_as_many_as_tokens() -> None:
    """The case in which tokens mistaken for records raise no shape error."""
    model = tiny_classifier()
    batch = make_batch(model, records=6, tokens=6, padded=False)
    for role in ("shared", "expert", "monolithic"):
        assert_matches(model, role, batch, 0.5)


@pytest.mark.parametrize("role", ["shared", "expert", "monolithic"])
def test_physical_batches_change_nothing(role) -> None:
    model = tiny_classifier()
    batch = make_batch(model, records=7)
    engine = engine_for(model, role, 1)
    rule = ClippingRule(0.3)
    whole = engine.clipped_sum(batch, rule)
    for size in (1, 2, 5):
        parts = [
            Batch(*(value[start : start + size] for value in vars(batch).values()))
            for start in range(0, len(batch), size)
        ]
        total = engine.clipped_sum(parts[0], rule)
        for part in parts[1:]:
            total.add(engine.clipped_sum(part, rule))
        for name, value in whole.tensors.items():
            torch.testing.assert_close(total.tensors[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("role", ["shared", "expert", "monolithic"])
def test_an_empty_batch_gives_zeros(role) -> None:
    model = tiny_classifier()
    ids, mask, labels = tiny_batch()
    batch = Batch(ids[:0], mask[:0], labels[:0], labels[:0])
    total = engine_for(model, role, 1).clipped_sum(batch, ClippingRule(1.0))
    assert all(not value.any() for value in total.tensors.values())


@pytest.mark.parametrize("role", ["shared", "expert", "monolithic"])
def test_no_gradient_is_left_on_the_model_and_hooks_are_gone(role) -> None:
    model = tiny_classifier()
    batch = make_batch(model)
    before = model(batch.input_ids, batch.attention_mask)
    engine = engine_for(model, role, 1)
    first = engine.clipped_sum(batch, ClippingRule(1.0)).tensors
    second = engine.clipped_sum(batch, ClippingRule(1.0)).tensors
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(before, model(batch.input_ids, batch.attention_mask))
    assert all(
        "forward" not in vars(module) and "compute_bias" not in vars(module) for module in model.modules()
    )


@pytest.mark.parametrize("role", ["shared", "expert", "monolithic"])
def test_a_record_that_is_not_finite_contributes_zero_and_harms_no_other(role) -> None:
    model = tiny_classifier(vocab=51)
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[50] = float("nan")
    batch = make_batch(tiny_classifier(), records=5)
    engine = engine_for(model, role, 1)
    rule = ClippingRule(0.5)
    others = Batch(*(value[1:] for value in vars(batch).values()))
    expected = engine.clipped_sum(others, rule).tensors
    ids = batch.input_ids.clone()
    ids[0, 0] = 50
    found = engine.clipped_sum(Batch(ids, batch.attention_mask, batch.labels, batch.owners), rule).tensors
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_an_uncovered_parameter_is_refused_by_name() -> None:
    model = tiny_classifier()
    model.norm = torch.nn.GroupNorm(1, 3)
    with pytest.raises(ModelError, match=r"norm\.bias, norm\.weight"):
        JointGradients(model, [*shared_parameters(model)])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 40), st.integers(1, 40), st.integers(0, 999))
def test_both_ways_to_a_linear_norm_agree(records, rows, inputs, outputs, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(records, rows, inputs, dtype=torch.float64, generator=generator)
    g = torch.randn(records, rows, outputs, dtype=torch.float64, generator=generator)
    direct = torch.bmm(g.transpose(1, 2), a).square().sum(dim=(1, 2))
    torch.testing.assert_close(kernels.linear_squared_norms(a, g), direct)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 999))
def test_segments_of_any_length(lengths, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    record = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    a = torch.randn(len(record), 5, dtype=torch.float64, generator=generator)
    g = torch.randn(len(record), 4, dtype=torch.float64, generator=generator)
    found = kernels.segment_squared_norms(a, g, record, len(lengths))
    for i in range(len(lengths)):
        expected = (g[record == i].t() @ a[record == i]).square().sum()
        torch.testing.assert_close(found[i], expected)


def test_repeated_tokens_are_added_before_the_norm() -> None:
    ids = torch.tensor([[3, 1, 3, 3], [2, 2, 1, 0]])
    g = torch.randn(2, 4, 5, dtype=torch.float64)
    for i, found in enumerate(kernels.embedding_squared_norms(ids, g)):
        table = torch.zeros(4, 5, dtype=torch.float64).index_add_(0, ids[i], g[i])
        torch.testing.assert_close(found, table.square().sum())
