"""Squared norms of per-record gradients of linear and embedding layers, without building the gradients.

The gradient of a linear layer's weight for one record is sum_t g_t a_t^T over its rows t. Its squared norm is
sum_{t,s} (a_t . a_s)(g_t . g_s) ("ghost norm", Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679), which
needs rows x rows numbers instead of the gradient's in x out.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _prefers_ghost(rows: int, inputs: int, outputs: int) -> bool:
    """Cheaper way by memory traffic: two Gram matrices, or one gradient per record."""
    return rows * (inputs + outputs) <= 2 * inputs * outputs


def linear_squared_norms(activations: Tensor, gradients: Tensor) -> Tensor:
    """Squared norm of each record's weight gradient.

    Args:
        activations: (records, rows, in), inputs of the layer.
        gradients: (records, rows, out), loss gradients of its outputs.

    Returns:
        (records,).
    """
    rows, inputs = activations.shape[1:]
    if rows == 1:
        return activations.square().sum(dim=(1, 2)) * gradients.square().sum(dim=(1, 2))
    if _prefers_ghost(rows, inputs, gradients.shape[2]):
        products = torch.bmm(activations, activations.transpose(1, 2))
        return (products * torch.bmm(gradients, gradients.transpose(1, 2))).sum(dim=(1, 2))
    return torch.bmm(gradients.transpose(1, 2), activations).square().sum(dim=(1, 2))


def segment_squared_norms(activations: Tensor, gradients: Tensor, record: Tensor, records: int) -> Tensor:
    """As `linear_squared_norms`, for rows that belong to records in any number.

    Args:
        activations: (rows, in).
        gradients: (rows, out).
        record: (rows,) int64, ascending: the record of each row.
        records: number of records.

    Returns:
        (records,); 0 for a record without a row.
    """
    lengths = torch.bincount(record, minlength=records)
    starts = torch.cumsum(lengths, dim=0) - lengths
    result = activations.new_zeros(records)
    longest = int(lengths.max()) if records else 0
    low, high = 0, 2
    # Buckets by powers of two: padding all segments to the longest one would multiply the work several times.
    while low < longest:
        chosen = ((lengths > low) & (lengths <= high)).nonzero().squeeze(1)
        if len(chosen):
            width = min(high, longest)
            slot = torch.arange(width, device=record.device)
            length = lengths[chosen][:, None]
            rows = starts[chosen][:, None] + torch.minimum(slot[None], length - 1)
            mask = (slot[None] < length)[..., None]
            picked = torch.where(mask, gradients[rows], gradients.new_zeros(()))
            result[chosen] = linear_squared_norms(activations[rows], picked)
        low, high = high, 2 * high
    return result


def embedding_squared_norms(ids: Tensor, gradients: Tensor) -> Tensor:
    """Squared norm of each record's embedding gradient: rows of a repeated token are added first.

    Args:
        ids: (records, tokens) int64.
        gradients: (records, tokens, width).

    Returns:
        (records,).
    """
    ordered, order = ids.sort(dim=1)
    rows = gradients.gather(1, order[..., None].expand_as(gradients))
    is_new = torch.ones_like(ordered)
    is_new[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()
    segment = is_new.cumsum(dim=1) - 1
    sums = torch.zeros_like(gradients).scatter_add_(1, segment[..., None].expand_as(rows), rows)
    return sums.square().sum(dim=(1, 2))
