"""The owner expert of a record (RAPTOR, arXiv 2609.05770, section 3.3 and figure 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from raptor.errors import ModelError


def assign_owners(votes: Tensor) -> Tensor:
    """The expert with the largest vote of each record; ties go to the lowest index.

    The owner is a function of the record and of public weights only. That makes the experts' updates one
    Gaussian mechanism: a record moves the block of one expert and no other.

    Args:
        votes: (records, experts), from `raptor.moe.routing.record_votes`.

    Returns:
        (records,) int64.

    Raises:
        ModelError: a vote is not finite, or there is no expert.
    """
    if votes.ndim != 2 or votes.shape[1] == 0:
        raise ModelError(f"Votes must be (records, experts); got shape {tuple(votes.shape)}.")
    if not bool(torch.isfinite(votes).all()):
        raise ModelError(
            "A routing vote is not finite: the base model's weights are broken. Use another one."
        )
    # torch.argmax does not promise which of several equal maxima it returns.
    is_largest = votes == votes.max(dim=1, keepdim=True).values if len(votes) else votes.bool()
    order = torch.arange(votes.shape[1], 0, -1, device=votes.device)
    return (is_largest * order).argmax(dim=1)
