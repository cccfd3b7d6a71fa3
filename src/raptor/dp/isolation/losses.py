"""Losses of records, alone and in company."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from raptor.dp.isolation.blame import culprit
from raptor.dp.isolation.specs import refusal
from raptor.dp.isolation.subject import ALL, COMPANIES, MIX, WIDTH, Subject
from raptor.dp.isolation.synthetic import alone, crowd, gather
from raptor.dp.records import Batch

CROWD = 256


def check_losses(subject: Subject) -> None:
    """Raises ModelError when the loss of a record depends on its company, and names the module that mixes."""
    batch = subject.batch
    single = torch.cat([subject.losses(alone(batch, record)) for record in ALL])
    if not bool(torch.isfinite(single).all()):
        raise refusal("losses", "the loss of a synthetic record is not finite.", "Use another base model.")
    again = subject.losses(alone(batch, 0))
    if not torch.equal(again, single[:1]):
        raise refusal(
            "repetition",
            "the same record has another loss the second time: the model draws at random, or remembers.",
            "Put the model in evaluation mode; dropout layers (nn.Dropout) are the only randomness that is covered.",
        )
    for company, (rows, width) in COMPANIES.items():
        _compare(subject, gather(batch, rows, width), single[list(rows)], company)
    many = crowd(batch, CROWD)
    copy = subject.losses(gather(many, [1], WIDTH))
    _compare(subject, many, torch.cat([single[:1], copy.expand(CROWD), single[:1]]), f"among {CROWD} copies")


def check_capacity(subject: Subject) -> None:
    """Raises ModelError when experts that take one token only take one of the batch, not one of each record."""
    with _least_capacity(subject.model) as is_limited:
        if is_limited:
            batch = subject.batch
            single = torch.cat([subject.losses(alone(batch, record)) for record in ALL])
            for company, (rows, width) in COMPANIES.items():
                _compare(
                    subject, gather(batch, rows, width), single[list(rows)], f"{company}, expert_capacity 1"
                )


@contextmanager
def _least_capacity(model: nn.Module) -> Iterator[bool]:
    limited = {
        module: vars(module)["expert_capacity"]
        for module in model.modules()
        if isinstance(vars(module).get("expert_capacity"), int)
    }
    for module in limited:
        vars(module)["expert_capacity"] = 1
    try:
        yield bool(limited)
    finally:
        for module, capacity in limited.items():
            vars(module)["expert_capacity"] = capacity


def _compare(subject: Subject, batch: Batch, expected: Tensor, company: str) -> None:
    found = subject.losses(batch)
    wrong = ~((found - expected).abs() <= subject.tolerance * expected.abs().clamp_min(1e-3))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        where = culprit(subject.model, subject.loss, batch, row, subject.tolerance)
        raise refusal(
            "records are not independent",
            f"a record has another loss {company} than alone ({subject.precision}); {where}.",
            MIX,
        )
