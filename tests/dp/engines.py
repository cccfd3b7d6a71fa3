"""Engines of every role on tiny models, and the comparison with the loop over records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import RecordLoss, classification_loss
from raptor.dp.records import Batch
from raptor.moe.families import sparse_layers
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import expert_parameters, shared_parameters
from raptor.moe.routing import record_votes
from tests.dp import oracle
from tests.families import EXPERTS, FAMILY_NAMES
from tests.tiny import PAD, tiny_batch

ROLES = ("shared", "expert", "experts of two layers", "monolithic")
MAIN_ROLES = ("shared", "expert", "monolithic")
# One of each form: a module for each expert, fused tensors, and shared experts beside them. The others are slow.
QUICK_FAMILIES = ("switch_transformers", "olmoe", "deepseek_v2")
EVERY_FAMILY = [
    name if name in QUICK_FAMILIES else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in FAMILY_NAMES
]
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}


def protected_layers(model: nn.Module, role: str) -> tuple[int, ...]:
    """Layers whose owners count in a role; the two of "experts of two layers" are the outer ones, upper first."""
    indices = [layer.index for layer in sparse_layers(model)]
    if role == "expert":
        return (indices[-2],)
    if role == "experts of two layers":
        return (indices[-1], indices[0])
    return ()


def engine_for(model: nn.Module, role: str, **options: Any) -> JointGradients | OwnerExpertGradients:
    layers = protected_layers(model, role)
    if role == "expert":
        return OwnerExpertGradients(model, layers[0], **options)
    if role == "experts of two layers":
        return OwnerExpertGradients(model, layers, **options)
    names = shared_parameters(model)
    if role == "monolithic":
        names += expert_parameters(model)
    return JointGradients(model, names, **options)


def voted_owners(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, role: str) -> torch.Tensor:
    """(records,), or (records, layers) where a role has several layers."""
    layers = protected_layers(model, role)
    if not layers:
        return torch.zeros(len(ids), dtype=torch.int64)
    votes = record_votes(getattr(model, "encoder", model), ids, mask)
    owners = torch.stack([assign_owners(votes[layer]) for layer in layers], dim=1)
    return owners[:, 0] if len(layers) == 1 else owners


def pad_left(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the padding of right-padded records to their front."""
    moved = torch.full_like(ids, PAD), torch.zeros_like(mask)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        for target, source in zip(moved, (ids, mask), strict=True):
            target[row, ids.shape[1] - length :] = source[row, :length]
    return moved


def make_batch(model: nn.Module, role: str, padding: str = "right", **shape: Any) -> Batch:
    """Records with the owners that the model votes for; `padding` is none, right or left."""
    ids, mask, labels = tiny_batch(padded=padding != "none", **shape)
    if padding == "left":
        ids, mask = pad_left(ids, mask)
    return Batch(ids, mask, labels, voted_owners(model, ids, mask, role))


def send_all_to(model: torch.nn.Module, expert: int) -> None:
    """Let every router choose the same expert for all tokens (and the next one, where it chooses two)."""

    def choose(module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        first, weights, last = output
        if hasattr(module, "classifier"):
            dispatch = torch.zeros_like(first)
            dispatch[..., expert % first.shape[-1]] = 1
            return dispatch, weights, last
        slots = torch.arange(last.shape[-1]) + expert
        return first, weights, (slots % EXPERTS).expand_as(last).contiguous()

    for layer in sparse_layers(model):
        layer.router.register_forward_hook(choose)


def parts(batch: Batch, size: int) -> list[Batch]:
    return [batch.part(start, start + size) for start in range(0, len(batch), size)]


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest error of a parameter, relative to the norm of the whole sum."""
    assert set(found) == set(expected)
    whole = max(float(torch.stack([value.double().norm() for value in expected.values()]).norm()), 1e-12)
    return max(float((found[name].double() - expected[name].double()).norm()) / whole for name in expected)


def total_norm(tensors: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([value.double().norm() for value in tensors.values()]).norm())


def assert_same(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Two clipped sums are the same up to rounding."""
    error = difference(found.tensors, expected.tensors)
    assert error <= tolerance, error


def assert_matches(
    model: nn.Module,
    role: str,
    batch: Batch,
    *,
    loss: RecordLoss = classification_loss,
    norms: Sequence[float | None] = (None,),
    singles: bool = False,
    engine: Any = None,
    tolerance: float | None = None,
    keep_padding: bool = False,
    **options: Any,
) -> None:
    """The engine's clipped sums are those of the loop over records.

    Args:
        model, role, batch, loss: what is differentiated.
        norms: clipping norms; None is the median norm, so that half of the records are scaled.
        singles: compare each record's gradient and norm alone, too: the sum of one record under a huge C.
        engine: another than the role's usual one.
        tolerance: relative to the whole sum; that of the parameters' type by default.
        keep_padding: give the loop the records with their padding.
        options: of the engine.
    """
    engine = engine or engine_for(model, role, loss=loss, **options)
    truth = oracle.record_gradients(
        model,
        engine.parameters,
        batch,
        loss=loss,
        owner_layers=protected_layers(model, role),
        keep_padding=keep_padding,
    )
    limit = tolerance or TOLERANCE[next(iter(truth[0].values())).dtype]
    lengths = oracle.norms(truth)
    for norm in norms:
        rule = ClippingRule(float(lengths.median()) + 1e-12 if norm is None else norm)
        error = difference(engine.clipped_sum(batch, rule).tensors, oracle.clipped_sum(truth, rule))
        assert error <= limit, (norm, error)
    for i in range(len(batch) if singles else 0):
        single = engine.clipped_sum(batch.part(i, i + 1), ClippingRule(1e12)).tensors
        assert difference(single, truth[i]) <= limit
        assert abs(total_norm(single) - float(lengths[i])) <= limit * float(lengths[i])
