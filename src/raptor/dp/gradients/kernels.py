"""Squared norms and weighted sums of per-record gradients, without building the gradients where that is dearer.

The gradient of a linear layer's weight for one record is sum_t g_t a_t^T over its rows t. Its squared norm is
sum_{t,s} (a_t . a_s)(g_t . g_s) ("ghost norm", Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679), which
needs rows x rows numbers instead of the gradient's in x out. Everything here is taken in float32 or better.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Way = Literal["auto", "ghost", "direct"]
# Rows of a strip of a Gram matrix: more would compute more products twice, fewer would make them small.
_STRIP = 32


def _is_ghost(way: Way, rows: int, inputs: int, outputs: int) -> bool:
    """Whether two Gram matrices are taken, or one gradient per record; auto takes the lesser memory traffic."""
    if way == "auto":
        return rows * (inputs + outputs) <= 2 * inputs * outputs
    return way == "ghost"


def accumulate(value: Tensor) -> Tensor:
    """In a type that sums and norms may be taken in: half precision becomes float32."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def _gram_strips(values: Tensor) -> tuple[Tensor, ...]:
    """Inner products of each record's rows with themselves and with later rows; those with earlier ones are the same.

    Args:
        values: (records, rows, width).

    Returns:
        For every `_STRIP` rows from `start`, (records, strip, rows - start).
    """
    starts = range(0, values.shape[1], _STRIP)
    return tuple(
        torch.bmm(values[:, start : start + _STRIP], values[:, start:].transpose(1, 2)) for start in starts
    )


def _diagonal(strips: tuple[Tensor, ...]) -> Tensor:
    """(records, rows) squared lengths of the rows."""
    return torch.cat([strip.diagonal(dim1=1, dim2=2) for strip in strips], dim=1)


def _inner_product(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """(records,) sum over all pairs of rows of the products of two Gram matrices."""
    total: Tensor | None = None
    for one, other in zip(left, right, strict=True):
        products, size = one * other, one.shape[1]
        part = products[:, :, :size].sum(dim=(1, 2))
        if products.shape[2] > size:
            # Each pair of a row in the strip and a row behind it stands for two.
            part = part + 2 * products[:, :, size:].sum(dim=(1, 2))
        total = part if total is None else total + part
    if total is None:
        raise AssertionError("records without rows have no Gram matrix")
    return total


class Grams:
    """Inner products between the rows of each record, kept for layers that share their input (q, k and v)."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[Tensor, tuple[Tensor, ...]]] = {}

    def of(self, activations: Tensor) -> tuple[Tensor, ...]:
        """Strips of the Gram matrices of (records, rows, width); those of one tensor are computed once."""
        # A transposed square matrix has address and shape of the matrix, and only other strides.
        key = (
            activations.data_ptr(),
            activations.shape,
            activations.stride(),
            activations.dtype,
            activations._version,
        )
        if key not in self._kept:
            values = accumulate(activations)
            # The activations are kept with the result, so that no other tensor can take their address.
            self._kept[key] = (activations, _gram_strips(values))
        return self._kept[key][1]

    def clear(self) -> None:
        self._kept.clear()


class Scaled:
    """The last activations times the factors of their records, kept for the next layer with the same input."""

    def __init__(self) -> None:
        self._source: Tensor | None = None
        self._factors: Tensor | None = None
        self._result: Tensor | None = None

    def of(self, activations: Tensor, factors: Tensor) -> Tensor:
        """(records, rows, width) times (records,)."""
        source = self._source
        same = (
            source is not None
            and self._factors is factors
            and source.data_ptr() == activations.data_ptr()
            and source.shape == activations.shape
            and source.stride() == activations.stride()
            and source.dtype == activations.dtype
        )
        if not same or self._result is None:
            self._source, self._factors = activations, factors
            self._result = activations * factors[:, None, None]
        return self._result


def _masked(strips: tuple[Tensor, ...], valid: Tensor) -> tuple[Tensor, ...]:
    """Strips without the rows that do not count: fewer numbers than the rows have, and these need not be finite."""
    found: list[Tensor] = []
    for number, strip in enumerate(strips):
        start = number * _STRIP
        pairs = valid[:, start : start + _STRIP, None] & valid[:, None, start:]
        found.append(torch.where(pairs, strip, strip.new_zeros(())))
    return tuple(found)


def linear_squared_norms(
    activations: Tensor,
    gradients: Tensor,
    way: Way = "auto",
    grams: Grams | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Squared norm of each record's weight gradient.

    Args:
        activations: (records, rows, in), inputs of the layer.
        gradients: (records, rows, out), loss gradients of its outputs.
        way: by Gram matrices, by gradients of single records, or whichever is cheaper.
        grams: keeps Gram matrices of the activations.
        valid: (records, rows) bool, False for rows that do not count; all do by default.

    Returns:
        (records,), float32 or better.
    """
    records, rows, inputs = activations.shape
    gradients = accumulate(gradients)
    ghost = _is_ghost(way, rows, inputs, gradients.shape[2])
    if valid is not None and not (ghost and rows > 1):
        gradients = torch.where(valid[..., None], gradients, gradients.new_zeros(()))
    # A product below the smallest number counts as zero, and what multiplies it may be large.
    tiny = torch.finfo(gradients.dtype).tiny
    if rows == 1 and way != "direct":
        left = accumulate(activations).square().sum(dim=(1, 2)) + inputs * tiny
        return left * (gradients.square().sum(dim=(1, 2)) + gradients.shape[2] * tiny)
    if ghost:
        lefts = (grams or Grams()).of(activations)
        rights = _gram_strips(gradients)
        if valid is not None:
            rights = _masked(rights, valid)
        norms = _inner_product(lefts, rights)
        # Where rows cancel, rounding may leave anything, even a negative number, and a record that looks small is
        # not clipped. The error is below eps (sum_t |a_t| |g_t|)^2, so with that added no norm is too small.
        left, right = _diagonal(lefts), _diagonal(rights)
        lengths = (left * right).sqrt().sum(dim=1)
        lost_left, lost_right = inputs * tiny, gradients.shape[2] * tiny
        lost = lost_right * (left + lost_left).sqrt().sum(dim=1).square()
        lost = lost + lost_left * (right + lost_right).sqrt().sum(dim=1).square()
        return norms + torch.finfo(norms.dtype).eps * lengths.square() + 4 * lost
    single = torch.bmm(gradients.transpose(1, 2), accumulate(activations)).reshape(records, 1, -1)
    return torch.bmm(single, single.transpose(1, 2)).view(records)


def weighted_product(activations: Tensor, gradients: Tensor, factors: Tensor, scaled: Scaled) -> Tensor:
    """(out, in) sum over records of factor times weight gradient.

    Args:
        activations: (records, rows, in).
        gradients: (records, rows, out).
        factors: (records,).
        scaled: keeps activations times factors.
    """
    # The factors go to the narrower side, which is less to read and write.
    if gradients.shape[2] < activations.shape[2]:
        gradients = gradients * factors[:, None, None]
    else:
        activations = scaled.of(activations, factors)
    return gradients.flatten(0, 1).t() @ activations.flatten(0, 1)


class Segments:
    """Rows that belong to segments in any number, in a form whose norms are cheap.

    Segments are padded to a few widths and taken together, since padding all of them to the longest one would
    multiply the work several times.
    """

    def __init__(self, segment: Tensor, count: int) -> None:
        """`segment` is (rows,) int64, ascending: the record, or pair of expert and record, of each row."""
        self._count = count
        self._groups: list[tuple[Tensor, Tensor, Tensor, int]] = []
        lengths = torch.bincount(segment, minlength=count)
        starts = torch.cumsum(lengths, dim=0) - lengths
        longest = int(lengths.max()) if count else 0
        low, high = 0, 1
        while low < longest:
            chosen = ((lengths > low) & (lengths <= high)).nonzero().squeeze(1)
            if len(chosen):
                width = min(high, longest)
                slot = torch.arange(width, device=segment.device)
                length = lengths[chosen][:, None]
                rows = starts[chosen][:, None] + torch.minimum(slot[None], length - 1)
                self._groups.append((chosen, rows.flatten(), slot[None] < length, width))
            low, high = high, high + 1 + high // 3

    def squared_norms(self, activations: Tensor, gradients: Tensor, way: Way = "auto") -> Tensor:
        """As `linear_squared_norms`, for each segment.

        Args:
            activations: (rows, in).
            gradients: (rows, out).
            way: see `linear_squared_norms`.

        Returns:
            (segments,); 0 for a segment without a row.
        """
        result = activations.new_zeros(self._count)
        for chosen, rows, valid, width in self._groups:
            result[chosen] = linear_squared_norms(
                activations.index_select(0, rows).view(len(chosen), width, -1),
                gradients.index_select(0, rows).view(len(chosen), width, -1),
                way,
                valid=valid,
            )
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


def tied_inner_products(ids: Tensor, table: Tensor, inputs: Tensor, logits: Tensor) -> Tensor:
    """Inner product of each record's two gradients of one matrix, as embedding table and as output head.

    The head's gradient in row v is sum_s g_s[v] a_s, the table's is the sum of e_t over tokens t with id v.

    Args:
        ids: (records, tokens) int64.
        table: (records, tokens, width), gradients e of the looked-up rows.
        inputs: (records, positions, width), inputs a of the head.
        logits: (records, positions, vocabulary), gradients g of its outputs.

    Returns:
        (records,).
    """
    similar = torch.bmm(inputs, table.transpose(1, 2))
    picked = logits.gather(2, ids[:, None, :].expand(-1, logits.shape[1], -1))
    return (similar * picked).sum(dim=(1, 2))
