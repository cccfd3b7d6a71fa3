"""Losses of records: one number for each, from that record alone, never a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raptor.dp.gradients.kernels import accumulate
from raptor.dp.records import IGNORED, Batch
from raptor.moe.adapters import expert_updates_off
from raptor.moe.language import is_language_model

RecordLoss = Callable[[nn.Module, Batch], Tensor]
RecordWeights = Callable[[nn.Module, Batch], Tensor]
"""(rows,) factors of the rows' losses, each from its own row alone; no gradient goes through them."""


def loss_of(model: nn.Module) -> RecordLoss:
    """The loss that a model is trained with: of the next token for a language model, else of the class."""
    return causal_loss if is_language_model(model) else classification_loss


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """(units,) cross-entropy of a model that gives logits (rows, labels), times `batch.weights`.

    Of a user's records their mean.
    """
    logits: Tensor = model(*batch.inputs)
    losses = functional.cross_entropy(
        accumulate(logits), batch.labels, reduction="none", ignore_index=IGNORED
    )
    if batch.weights is not None:
        losses = losses * batch.weights
    return unit_means(losses, batch.labels != IGNORED, batch)


def residual_weights(model: nn.Module, batch: Batch) -> Tensor:
    """(rows,) what the model leaves to its experts: 1 - p, p its probability of the right label without their updates.

    RAPTOR (arXiv 2609.05770) weights a record's expert gradient by it before the gradient is clipped, so that the
    sensitivity stays C. Experts have updates that can be switched off where they are trained as adapters.

    Guarantee:
        Released is nothing. A weight lies in [0, 1] and follows from its own row, public weights and releases; what it
        weights is clipped afterwards. Assumes that the model couples no records.
    """
    with torch.no_grad(), expert_updates_off(model):
        logits: Tensor = model(*batch.inputs)
        # The loss itself, so that a label that the model does not have is refused in the same way.
        losses = functional.cross_entropy(
            accumulate(logits), batch.labels, reduction="none", ignore_index=IGNORED
        )
        return -torch.expm1(-losses)


def unit_means(losses: Tensor, counted: Tensor, batch: Batch) -> Tensor:
    """(units,) mean loss of each unit over its own counted rows; no other unit has a part in it.

    Args:
        losses: (rows,), zero in rows that do not count.
        counted: (rows,) bool.
    """
    if batch.members == 1:
        return losses
    numbers = counted.view(-1, batch.members).sum(dim=1).clamp_min(1)
    return losses.view(-1, batch.members).sum(dim=1) / numbers


def causal_loss(model: nn.Module, batch: Batch) -> Tensor:
    """(units,) mean cross-entropy of the next token over the record's own counted tokens; of a user's records the mean.

    `batch.labels` is (rows, tokens): the token ids that count, `IGNORED` elsewhere (padding, a prompt before
    the completion). A record with nothing to count has loss zero.
    """
    output: Any = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    logits: Tensor = output.logits[:, :-1]
    targets = batch.labels[:, 1:]
    losses = functional.cross_entropy(
        accumulate(logits).transpose(1, 2),
        targets,
        reduction="none",
        ignore_index=IGNORED,
    )
    counted = (targets != IGNORED).sum(dim=1)
    return unit_means(losses.sum(dim=1) / counted.clamp_min(1), counted > 0, batch)
