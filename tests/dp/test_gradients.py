"""The engines on Switch models of other shapes, and the kernels by themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients import kernels
from raptor.dp.gradients.engine import JointGradients
from raptor.errors import ModelError
from raptor.moe.roles import shared_parameters
from tests.dp.engines import ROLES, assert_matches, engine_for, make_batch
from tests.tiny import tiny_classifier


@pytest.mark.parametrize("role", ["shared", "monolithic"])
def test_a_model_with_dense_layers_is_covered(role: str) -> None:
    model = tiny_classifier(layers=4, sparse=2)
    assert_matches(model, role, make_batch(model, role))


@settings(max_examples=8, deadline=None)
@given(experts=st.integers(1, 5), seed=st.integers(0, 10_000), role=st.sampled_from(ROLES))
def test_any_number_of_experts(experts: int, seed: int, role: str) -> None:
    model = tiny_classifier(experts=experts, seed=seed)
    assert_matches(model, role, make_batch(model, role, records=4, tokens=5, seed=seed))


@pytest.mark.parametrize("role", ROLES)
def test_records_as_many_as_tokens(role: str) -> None:
    """The case in which tokens mistaken for records raise no shape error."""
    model = tiny_classifier()
    assert_matches(model, role, make_batch(model, role, "none", records=6, tokens=6))


@pytest.mark.parametrize("role", ROLES)
def test_a_pass_leaves_the_model_as_it_was(role: str) -> None:
    model = tiny_classifier()
    batch = make_batch(model, role)
    before = model(batch.input_ids, batch.attention_mask)
    engine = engine_for(model, role)
    first, second = (engine.clipped_sum(batch, ClippingRule(1.0)).tensors for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(before, model(batch.input_ids, batch.attention_mask))


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


@pytest.mark.parametrize("way", ["auto", "ghost", "direct"])
@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8), seed=st.integers(0, 999))
def test_segments_of_any_length(way, lengths, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    record = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    a = torch.randn(len(record), 5, dtype=torch.float64, generator=generator)
    g = torch.randn(len(record), 4, dtype=torch.float64, generator=generator)
    found = kernels.Segments(record, len(lengths)).squared_norms(a, g, way)
    for i in range(len(lengths)):
        expected = (g[record == i].t() @ a[record == i]).square().sum()
        torch.testing.assert_close(found[i], expected)


def test_repeated_tokens_are_added_before_the_norm() -> None:
    ids = torch.tensor([[3, 1, 3, 3], [2, 2, 1, 0]])
    g = torch.randn(2, 4, 5, dtype=torch.float64)
    for i, found in enumerate(kernels.embedding_squared_norms(ids, g)):
        table = torch.zeros(4, 5, dtype=torch.float64).index_add_(0, ids[i], g[i])
        torch.testing.assert_close(found, table.square().sum())
