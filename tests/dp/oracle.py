"""The plain truth: per-record gradients by a loop over records with ordinary autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.losses import RecordLoss, classification_loss
from raptor.dp.records import Batch
from raptor.moe.families import sparse_layers


def alone(batch: Batch, record: int) -> Batch:
    """One record without its padding, wherever the padding is."""
    real = batch.attention_mask[record].bool()
    labels = batch.labels[record : record + 1]
    return Batch(
        batch.input_ids[record : record + 1, real],
        batch.attention_mask[record : record + 1, real],
        labels if labels.ndim == 1 else labels[:, real],
        batch.owners[record : record + 1],
    )


def _keep_owners(
    model: nn.Module, gradients: dict[str, Tensor], owners: Tensor, layers: Sequence[int]
) -> None:
    for layer in sparse_layers(model):
        for stack in layer.bank().stacks:
            for expert in range(len(stack)):
                if layer.index in layers and expert == int(owners[list(layers).index(layer.index)]):
                    continue
                name = stack.names[0] if stack.is_fused else stack.names[expert]
                if name in gradients:
                    (gradients[name][expert] if stack.is_fused else gradients[name]).zero_()


def record_gradients(
    model: nn.Module,
    names: Sequence[str],
    batch: Batch,
    *,
    loss: RecordLoss = classification_loss,
    owner_layers: Sequence[int] = (),
    keep_padding: bool = False,
) -> list[dict[str, Tensor]]:
    """Gradient of each record alone; with `owner_layers`, those of experts that do not own it are zero.

    Padding is cut away before, unless `keep_padding`.
    """
    found = []
    for i in range(len(batch)):
        parameters = [model.get_parameter(name).requires_grad_(True) for name in names]
        single = batch.part(i, i + 1) if keep_padding else alone(batch, i)
        gradients = torch.autograd.grad(loss(model, single).sum(), parameters, allow_unused=True)
        record: dict[str, Tensor] = {}
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
            parameter.requires_grad_(False)
            record[name] = torch.zeros_like(parameter) if gradient is None else gradient
        if owner_layers:
            _keep_owners(model, record, batch.owners[i].reshape(-1), owner_layers)
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
