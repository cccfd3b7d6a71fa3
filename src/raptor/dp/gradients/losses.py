"""Losses of records: one number for each, from that record alone, never a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from raptor.dp.gradients.kernels import accumulate
from raptor.dp.records import IGNORED, Batch
from raptor.moe.language import is_language_model

RecordLoss = Callable[[nn.Module, Batch], Tensor]


def loss_of(model: nn.Module) -> RecordLoss:
    """The loss that a model is trained with: of the next token for a language model, else of the class."""
    return causal_loss if is_language_model(model) else classification_loss


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """(units,) cross-entropy of a model that gives logits (rows, labels); of a user's records their mean."""
    logits: Tensor = model(*batch.inputs)
    losses = functional.cross_entropy(
        accumulate(logits), batch.labels, reduction="none", ignore_index=IGNORED
    )
    return unit_means(losses, batch.labels != IGNORED, batch)


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
