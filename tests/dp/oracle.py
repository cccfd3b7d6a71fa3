"""The plain truth: per-record gradients by a loop over records with ordinary autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raptor.dp.clipping import ClippingRule
from raptor.dp.records import Batch
from raptor.moe.classifier import MoEClassifier
from raptor.moe.roles import Role, parameter_roles


def record_gradients(
    model: MoEClassifier, names: Sequence[str], batch: Batch, *, owner_only: bool = False
) -> list[dict[str, Tensor]]:
    """Gradient of each record alone; with `owner_only`, those of experts that do not own it are zero."""
    roles = parameter_roles(model)
    found = []
    for i in range(len(batch)):
        length = int(batch.attention_mask[i].sum())
        parameters = [model.get_parameter(name).requires_grad_(True) for name in names]
        logits = model(batch.input_ids[i : i + 1, :length], batch.attention_mask[i : i + 1, :length])
        loss = torch.nn.functional.cross_entropy(logits, batch.labels[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        record: dict[str, Tensor] = {}
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
            parameter.requires_grad_(False)
            owned = roles[name].role is not Role.EXPERT or roles[name].expert == int(batch.owners[i])
            keep = gradient is not None and (owned or not owner_only)
            record[name] = gradient if keep else torch.zeros_like(parameter)
        found.append(record)
    return found


def norms(records: Sequence[dict[str, Tensor]]) -> Tensor:
    return torch.stack([torch.sqrt(sum(g.square().sum() for g in record.values())) for record in records])


def clipped_sum(records: Sequence[dict[str, Tensor]], rule: ClippingRule) -> dict[str, Tensor]:
    factors = rule.factors(norms(records).square())
    return {
        name: sum(factor * record[name] for factor, record in zip(factors, records, strict=True))
        for name in records[0]
    }
