"""Which module couples records: the first one that gives a record something else in a batch than alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raptor.dp.gradients.losses import RecordLoss
from raptor.dp.isolation.synthetic import gather
from raptor.dp.records import Batch
from raptor.moe.families import sparse_layers


@dataclass(frozen=True)
class _Event:
    """A module is called or has answered: its tensors, in the order of arguments."""

    name: str
    is_call: bool
    values: tuple[Tensor, ...]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        # In float64 also what is whole numbers, as the mask of a router.
        yield value.detach().to(torch.float64, copy=True)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


@contextmanager
def _listening(model: nn.Module) -> Iterator[list[_Event]]:
    events: list[_Event] = []
    # Inside the experts rows are pairs of token and expert, which do not stand for records.
    inside = tuple(layer.experts_prefix for layer in sparse_layers(model))
    handles = []

    def enter(name: str) -> Any:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            events.append(_Event(name, True, (*_tensors(args), *_tensors(kwargs))))

        return hook

    def leave(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            events.append(_Event(name, False, tuple(_tensors(output))))

        return hook

    for name, module in model.named_modules():
        if not name.startswith(inside):
            handles.append(module.register_forward_pre_hook(enter(name), with_kwargs=True))
            handles.append(module.register_forward_hook(leave(name)))
    try:
        yield events
    finally:
        for handle in handles:
            handle.remove()


def _rows(value: Tensor, records: int, tokens: int, record: int, length: int) -> Tensor | None:
    """What belongs to one record, without padding; None where that cannot be told."""
    if value.ndim == 0:
        return None
    if value.shape[0] == records:
        return value[record, :length] if value.ndim > 1 and value.shape[1] == tokens else value[record]
    if value.shape[0] == records * tokens:
        return value.reshape(records, tokens, *value.shape[1:])[record, :length]
    return None


def culprit(model: nn.Module, loss: RecordLoss, batch: Batch, row: int, tolerance: float) -> str:
    """In words, where record `row` of the batch first differs from the same record alone."""
    length = int(batch.attention_mask[row].sum())
    traces = []
    for part, place in ((gather(batch, [row], length), 0), (batch, row)):
        with torch.no_grad(), _listening(model) as events:
            loss(model, part)
        shape = (len(part), part.input_ids.shape[1], place, length)
        traces.append([(event, [_rows(value, *shape) for value in event.values]) for event in events])
    modules = dict(model.named_modules())
    for (event, single), (other, together) in zip(*traces, strict=False):
        if (event.name, event.is_call) != (other.name, other.is_call):
            break
        for first, second in zip(single, together, strict=False):
            if first is None or second is None or first.shape != second.shape:
                continue
            if not torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True):
                return _in_words(modules, event)
    return "no module differs, so that it is the loss function that mixes records"


def _in_words(modules: dict[str, nn.Module], event: _Event) -> str:
    place = event.name.rpartition(".")[0] if event.is_call else event.name
    kind = type(modules[place]).__name__
    where = f"the module {place} ({kind})" if place else f"the model ({kind})"
    if event.is_call:
        return f"the first to differ is what {where} gives to {event.name}"
    return f"the first output to differ is that of {where}"
