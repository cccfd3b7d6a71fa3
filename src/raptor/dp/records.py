"""Encoded private records in memory, and batches of the units that are sampled: records, or users with theirs."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raptor.accounting.types import Unit
from raptor.errors import DataError
from raptor.moe.images import ImageInput

# Labels of rows that count for nothing, as the losses have it.
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Units of one forward pass, each with the same number of rows.

    Attributes:
        input_ids: (rows, tokens) int64, padded.
        attention_mask: (rows, tokens) int64, 1 for real tokens.
        labels: (rows,) int64, or (rows, tokens) where tokens are predicted; `IGNORED` does not count.
        owners: (units,) int64, owner expert of each unit in the protected layer, or (units, layers).
        members: rows of a unit, one behind the other: 1 where the unit is a record.
        images: pictures of the rows, where the records have any.
        weights: (rows,) factors of the rows' losses, each from its own row alone; None weights all alike.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    owners: Tensor
    members: int = field(default=1, kw_only=True)
    images: ImageInput | None = field(default=None, kw_only=True)
    weights: Tensor | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.labels) // self.members

    @property
    def inputs(self) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, ImageInput]:
        """What a classifier is called with."""
        tokens = (self.input_ids, self.attention_mask)
        return tokens if self.images is None else (*tokens, self.images)

    def part(self, start: int, stop: int) -> Batch:
        """The units from `start` up to `stop`."""
        rows = slice(start * self.members, stop * self.members)
        return Batch(
            self.input_ids[rows],
            self.attention_mask[rows],
            self.labels[rows],
            self.owners[start:stop],
            members=self.members,
            images=None if self.images is None else self.images[rows],
            weights=None if self.weights is None else self.weights[rows],
        )


@dataclass(frozen=True)
class EncodedImages:
    """Pictures of all records of a split.

    Attributes:
        pixels: (tiles, channels, size, size) uint8, those of a record one behind the other; may be mapped from a file.
        first: (records + 1,) int64, position of each record's first tile, and the number of tiles.
        places: (records, tokens) int32, as in `ImageInput`, `TEXT` behind a record's last token.
    """

    pixels: Tensor
    first: Tensor
    places: Tensor

    def take(self, rows: Tensor, tokens: int) -> ImageInput:
        """The pictures of the records at `rows`, with `tokens` places."""
        tiles = self.first[rows + 1] - self.first[rows]
        most = max(int(tiles.max()), 1) if len(rows) else 1
        pixels = self.pixels.new_zeros(len(rows), most, *self.pixels.shape[1:])
        is_own = torch.arange(most)[None] < tiles[:, None]
        pixels[is_own] = self.pixels[(self.first[rows][:, None] + torch.arange(most))[is_own]]
        return ImageInput(pixels, tiles, self.places[rows].long()).fit(tokens)


@dataclass(frozen=True)
class EncodedRecords:
    """All units of one split. A unit is a record, or, where there are groups, a user with some records.

    Attributes:
        input_ids: (records, tokens) int32, right-padded to the longest record.
        lengths: (records,) int64, real tokens of each record.
        labels: (records,) int64.
        owners: (units,) int64; zeros where owners play no part, as in a held-out split.
        groups: (units, most records of a unit) int64, positions of each unit's records, -1 behind the last of them;
            None where every record is a unit.
        prompts: (records,) int64, tokens before the completion, where texts are continued: what follows is predicted,
            and `labels` plays no part. None where records have classes.
        images: pictures of the records; None where none of them can have one.
    """

    input_ids: Tensor
    lengths: Tensor
    labels: Tensor
    owners: Tensor
    groups: Tensor | None = None
    prompts: Tensor | None = None
    images: EncodedImages | None = None

    def __post_init__(self) -> None:
        units = len(self.labels) if self.groups is None else len(self.groups)
        rows = {len(self.input_ids), len(self.lengths), len(self.labels)}
        if self.prompts is not None:
            rows.add(len(self.prompts))
        if self.images is not None:
            rows |= {len(self.images.places), len(self.images.first) - 1}
        if len(rows) != 1 or units != len(self.owners):
            raise DataError(
                "Tokens, labels and owners do not belong together: they have different numbers of rows. "
                "Run the ingestion stage again, so that all of them come from one reading of the source."
            )
        if self.groups is not None:
            self._require_disjoint(self.groups)

    def _require_disjoint(self, groups: Tensor) -> None:
        """A record of two users would count twice, and a user without a record would be drawn for nothing."""
        members = groups[groups >= 0].sort().values
        if not torch.equal(members, torch.arange(len(self.labels))) or bool((groups[:, :1] < 0).any()):
            raise DataError(
                "Users and their records do not belong together: every record must be of one user, and every user "
                "must have one. Run the ingestion stage again."
            )

    def __len__(self) -> int:
        return len(self.owners)

    def first(self, number: int) -> EncodedRecords:
        """The first records, where they are texts with classes and each is a unit.

        Raises:
            DataError: a unit is a user, or records have prompts or pictures.
        """
        if len(self.tensors()) > 4:
            raise DataError(
                "The first records can be taken apart only where they are texts with classes, without users."
            )
        return EncodedRecords(
            self.input_ids[:number], self.lengths[:number], self.labels[:number], self.owners[:number]
        )

    def require_below(self, classes: int, owners: int | None) -> None:
        """Refuse labels or owners that the model does not have; no limit on owners that play no part.

        Args:
            classes: 0 for a model that continues texts.

        Raises:
            DataError: the tables come from different runs.
        """
        self.require_task(classes)
        labels = None if self.prompts is not None else classes
        for what, values, limit in (("label", self.labels, labels), ("owner", self.owners, owners)):
            if limit is not None and len(values) and not 0 <= int(values.min()) <= int(values.max()) < limit:
                raise DataError(
                    f"A record has a {what} that the model does not have: label names, records and owners come "
                    "from different runs. Run the ingestion stage again."
                )

    def require_task(self, classes: int) -> None:
        """Refuse records of another task than the model's, which has 0 classes where it continues texts.

        Raises:
            DataError: they come from different runs.
        """
        if (classes == 0) != (self.prompts is not None):
            found = "classes" if self.prompts is None else "completions"
            raise DataError(
                f"The records have {found}, but the label names say otherwise: they come from different runs. Run the "
                "ingestion stage again."
            )

    def require_unit(self, unit: Unit, what: str = "training data", most: int | None = None) -> None:
        """Refuse data that were read for another unit of privacy, of which a unit would move more than is charged.

        Args:
            unit: of the privacy plan.
            what: the data, in words.
            most: records of one user, at most; None for any number.

        Raises:
            DataError: the data and the plan come from different runs.
        """
        if (unit is Unit.USER) != (self.groups is not None):
            found = "records" if self.groups is None else "users"
        elif self.groups is not None and most is not None and self.groups.shape[1] > most:
            found = f"users with more than {most} record"
        else:
            return
        raise DataError(
            f"The privacy plan protects one {unit}, but the {what} come as {found}. Run the ingestion stage again with "
            "the present privacy.unit."
        )

    def take(self, indices: Tensor, device: torch.device) -> Batch:
        """The units at `indices`, their records cut to the longest of them.

        A unit with fewer records than another gets its first one again, with a label that does not count, so that all
        have as many rows.
        """
        counts: Tensor | None = None
        if self.groups is None:
            rows, members = indices, 1
        else:
            members = int(self._counts(indices).max()) if len(indices) else 1
            own = self.groups[indices, :members]
            is_own = own >= 0
            rows = torch.where(is_own, own, own[:, :1]).flatten()
            counts = is_own.flatten()
        lengths = self.lengths[rows]
        longest = max(int(lengths.max()), 1) if len(rows) else 1
        place = torch.arange(longest)[None]
        mask = place < lengths[:, None]
        ids = self.input_ids[rows, :longest].long()
        if self.prompts is None:
            labels = self.labels[rows]
        else:
            labels = ids.masked_fill(~mask | (place < self.prompts[rows, None]), IGNORED)
        if counts is not None:
            labels = labels.masked_fill(~(counts if labels.ndim == 1 else counts[:, None]), IGNORED)
        return Batch(
            ids.to(device),
            mask.long().to(device),
            labels.to(device),
            self.owners[indices].to(device),
            members=members,
            images=None if self.images is None else self.images.take(rows, longest).to(device),
        )

    def physical_batches(self, indices: Tensor, size: int, device: torch.device) -> Iterator[Batch]:
        """Split a sample into batches of about `size` records, short ones first to waste little padding.

        Order and division change nothing but rounding, as sums over units do not depend on them.
        """
        if self.groups is None:
            ordered = indices[self.lengths[indices].argsort(stable=True)]
            for start in range(0, len(ordered), size):
                yield self.take(ordered[start : start + size], device)
            return
        # Users with as many records each first, so that few rows are there only to fill up.
        own, counts = self.groups[indices], self._counts(indices)
        lengths = self.lengths[own.clamp_min(0)].masked_fill(own < 0, 0).amax(dim=1)
        order = (counts * (self.input_ids.shape[1] + 1) + lengths).argsort(stable=True)
        ordered, counts = indices[order], counts[order]
        start = 0
        while start < len(ordered):
            stop = start + 1
            while stop < len(ordered) and (stop + 1 - start) * int(counts[stop]) <= size:
                stop += 1
            yield self.take(ordered[start:stop], device)
            start = stop

    def _counts(self, indices: Tensor) -> Tensor:
        """(units,) how many records each has."""
        if self.groups is None:
            return torch.ones_like(indices)
        return (self.groups[indices] >= 0).sum(dim=1)

    @property
    def first_owners(self) -> Tensor:
        """(units,) owners in the first protected layer, which is the only one as a rule."""
        return self.owners if self.owners.ndim == 1 else self.owners[:, 0]

    def fingerprint(self, key: bytes) -> str:
        """Digest of everything, keyed: private for whoever does not have the key, so that nobody can try records."""
        total = hmac.new(key, digestmod="sha256")
        for values in self.tensors():
            total.update(f"{values.dtype}\0{tuple(values.shape)}\n".encode())
            total.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    def tensors(self) -> tuple[Tensor, ...]:
        """All that is held, in the order of the fields."""
        held = (self.input_ids, self.lengths, self.labels, self.owners)
        more = [self.groups, self.prompts]
        if self.images is not None:
            more += [self.images.pixels, self.images.first, self.images.places]
        return (*held, *(value for value in more if value is not None))
