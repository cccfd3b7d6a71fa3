"""A model as the gate checks it, and the company in which a record must give what it gives alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raptor.dp.gradients.losses import RecordLoss
from raptor.dp.isolation.specs import refusal
from raptor.dp.isolation.synthetic import LENGTHS
from raptor.dp.records import Batch

ALL = tuple(range(len(LENGTHS)))
WIDTH = max(LENGTHS)
# name -> records and padded length. What a record gives must be the same in each of them as alone.
COMPANIES: Mapping[str, tuple[tuple[int, ...], int]] = {
    "with other records": (ALL, WIDTH),
    "with more padding": (ALL, WIDTH + 3),
    "in another order": (ALL[::-1], WIDTH),
    "with other companions": ((0, 4, 2), WIDTH),
    "among copies": ((0,) * 9 + (1,), WIDTH),
    "in a batch of as many records as tokens": ((*ALL, 1), WIDTH),
}
MIX = "Every record's loss must be a function of that record alone; replace what mixes records."


@dataclass(frozen=True)
class Subject:
    """A model to be checked, and how exact its type is.

    Attributes:
        model: with no parameter that is zero altogether.
        batch: synthetic records.
        loss: one number for each record.
        tolerance: relative difference that counts as rounding.
        is_thorough: whether every variant is run; not where a check in float64 has run them.
        keeps: whether the gradients of all records are kept; else they are computed again when needed.
    """

    model: nn.Module
    batch: Batch
    loss: RecordLoss
    tolerance: float
    is_thorough: bool = True
    keeps: bool = True

    @property
    def precision(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def losses(self, batch: Batch) -> Tensor:
        """(records,) float64 on the CPU.

        Raises:
            ModelError: the loss has another shape.
        """
        with torch.no_grad():
            values = self.loss(self.model, batch)
        if values.shape != (len(batch),):
            raise refusal(
                "losses",
                f"the loss has the shape {tuple(values.shape)} for {len(batch)} records; a mean or sum over the batch "
                "couples them.",
                "It must give one number for each record, from that record alone.",
            )
        return values.double().cpu()
