"""Losses of records: one number for each, from that record alone, never a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from raptor.dp.gradients.kernels import accumulate
from raptor.dp.records import Batch

RecordLoss = Callable[[nn.Module, Batch], Tensor]
IGNORED = -100


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """(records,) cross-entropy of a model that gives logits (records, labels); labels (records,)."""
    logits: Tensor = model(batch.input_ids, batch.attention_mask)
    return functional.cross_entropy(accumulate(logits), batch.labels, reduction="none")


def causal_loss(model: nn.Module, batch: Batch) -> Tensor:
    """(records,) mean cross-entropy of the next token over the record's own counted tokens.

    `batch.labels` is (records, tokens): the token ids that count, `IGNORED` elsewhere (padding, a prompt before
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
    return losses.sum(dim=1) / (targets != IGNORED).sum(dim=1).clamp_min(1)
