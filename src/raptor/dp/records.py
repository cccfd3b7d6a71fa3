"""Encoded private records in memory, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from raptor.errors import DataError


@dataclass(frozen=True)
class Batch:
    """Records of one forward pass.

    Attributes:
        input_ids: (records, tokens) int64, padded.
        attention_mask: (records, tokens) int64, 1 for real tokens.
        labels: (records,) int64, or (records, tokens) where tokens are predicted.
        owners: (records,) int64, owner expert of each record in the protected layer, or (records, layers).
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    owners: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Batch:
        """The records from `start` up to `stop`."""
        rows = slice(start, stop)
        return Batch(self.input_ids[rows], self.attention_mask[rows], self.labels[rows], self.owners[rows])


@dataclass(frozen=True)
class EncodedRecords:
    """All records of one split.

    Attributes:
        input_ids: (records, tokens) int32, right-padded to the longest record.
        lengths: (records,) int64, real tokens of each record.
        labels: (records,) int64.
        owners: (records,) int64; zeros where owners play no part, as in a held-out split.
    """

    input_ids: Tensor
    lengths: Tensor
    labels: Tensor
    owners: Tensor

    def __post_init__(self) -> None:
        sizes = {len(self.input_ids), len(self.lengths), len(self.labels), len(self.owners)}
        if len(sizes) != 1:
            raise DataError(
                "Tokens, labels and owners do not belong together: they have different numbers of rows. "
                "Run the ingestion stage again, so that all of them come from one reading of the source."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def require_below(self, classes: int, owners: int | None) -> None:
        """Refuse labels or owners that the model does not have; no limit on owners that play no part.

        Raises:
            DataError: the tables come from different runs.
        """
        for what, values, limit in (("label", self.labels, classes), ("owner", self.owners, owners)):
            if limit is not None and len(values) and not 0 <= int(values.min()) <= int(values.max()) < limit:
                raise DataError(
                    f"A record has a {what} that the model does not have: label names, records and owners come "
                    "from different runs. Run the ingestion stage again."
                )

    def take(self, indices: Tensor, device: torch.device) -> Batch:
        """The records at `indices`, cut to the longest of them."""
        lengths = self.lengths[indices]
        longest = max(int(lengths.max()), 1) if len(indices) else 1
        mask = torch.arange(longest)[None] < lengths[:, None]
        return Batch(
            self.input_ids[indices, :longest].long().to(device),
            mask.long().to(device),
            self.labels[indices].to(device),
            self.owners[indices].to(device),
        )

    def physical_batches(self, indices: Tensor, size: int, device: torch.device) -> Iterator[Batch]:
        """Split a sample into batches that fit in memory, short records first to waste little padding.

        Order and division change nothing but rounding, as sums over records do not depend on them.
        """
        ordered = indices[self.lengths[indices].argsort(stable=True)]
        for start in range(0, len(ordered), size):
            yield self.take(ordered[start : start + size], device)
