"""The checks that compare numbers: records alone, in batches of all kinds, and by plain autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.gradients.losses import RecordLoss
from raptor.dp.isolation import truth
from raptor.dp.isolation.blame import culprit
from raptor.dp.isolation.specs import EngineSpec, refusal
from raptor.dp.isolation.structure import State, check_router
from raptor.dp.isolation.synthetic import LENGTHS, alone, crowd, gather, routings, with_owners
from raptor.dp.records import Batch

ALL = tuple(range(len(LENGTHS)))
WIDTH = max(LENGTHS)
# name -> records and padded length. What a record gives must be the same in each of them as alone.
COMPANIES: Mapping[str, tuple[tuple[int, ...], int]] = {
    "with other records": (ALL, WIDTH),
    "in another order": (ALL[::-1], WIDTH),
    "with other companions": ((0, 4, 2), WIDTH),
    "among copies": ((0,) * 9 + (1,), WIDTH),
    "with more padding": (ALL, WIDTH + 3),
    "in a batch of as many records as tokens": ((*ALL, 1), WIDTH),
}
FEW = ("with other records", "with more padding")
CROWD = 256
# No factor is below 1, whatever the norm.
UNCLIPPED = ClippingRule(1e12)
SMALL = 0.1
MIX = "Every record's loss must be a function of that record alone; replace what mixes records."
INEXACT = "Leave these parameters out of training (training.frozen), or use a model whose layers are covered."


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


class EngineChecks:
    """All checks of one engine on one subject."""

    def __init__(self, subject: Subject, spec: EngineSpec) -> None:
        """Raises ModelError when the engine cannot be built for this model, or would train a router."""
        self._subject = subject
        self._spec = spec
        self._model = subject.model
        self._batch = with_owners(
            subject.batch, routings(subject.model, subject.loss, subject.batch), spec.owner_layers
        )
        self._engine: GradientEngine = spec.build(subject.model)
        check_router(subject.model, spec.name, self._engine.parameters)
        self._kept: dict[tuple[int, float], dict[str, Tensor]] = {}

    def run(self) -> tuple[float, ...]:
        """Norm of each record's gradient, (records,).

        Raises:
            ModelError: names the check that failed and a parameter.
        """
        self._state()
        self._aliasing()
        plain = [truth.length(self._plain(record)) for record in ALL]
        largest = max(plain)
        if largest == 0.0:
            raise self._refuse(
                "no gradient", "no synthetic record has a gradient, so that nothing is shown.", INEXACT
            )
        small = ClippingRule(SMALL * min(norm for norm in plain if norm > 1e-6 * largest))
        # Two rounds: a norm that an earlier pass left behind is then that of another record.
        norms = tuple(self._exact(record, norm, largest) for record, norm in enumerate(plain))
        for record, norm in enumerate(plain):
            self._clipped(record, norm, largest, small)
        companies = COMPANIES if self._subject.is_thorough else {name: COMPANIES[name] for name in FEW}
        for rule in (UNCLIPPED, small):
            for company, (rows, width) in companies.items():
                self._additive(company, rows, width, rule, norms)
        for rule in (small, ClippingRule(largest)) if self._subject.is_thorough else (small,):
            self._bounded(rule)
        self._forgetful()
        return norms

    def _refuse(self, check: str, found: str, advice: str) -> Exception:
        return refusal(
            f"{self._spec.name} parameters, {check}", f"in {self._subject.precision}, {found}", advice
        )

    def _sum(self, batch: Batch, rule: ClippingRule) -> dict[str, Tensor]:
        return self._engine.clipped_sum(batch, rule).tensors

    def _alone(self, record: int, rule: ClippingRule) -> dict[str, Tensor]:
        key = (record, rule.norm)
        if key in self._kept:
            return self._kept[key]
        found = self._sum(alone(self._batch, record), rule)
        if self._subject.keeps:
            self._kept[key] = found
        return found

    def _plain(self, record: int) -> dict[str, Tensor]:
        return truth.plain_gradient(
            self._model,
            self._engine.parameters,
            alone(self._batch, record),
            self._subject.loss,
            self._spec.owner_layers,
        )

    def _state(self) -> None:
        state = State(self._model)
        self._sum(self._batch, UNCLIPPED)
        state.require_same(self._spec.name)

    def _aliasing(self) -> None:
        """Sums that were handed out stay as they are, and physical batches add up as training adds them."""
        first = self._sum(alone(self._batch, 0), UNCLIPPED)
        copy = {name: value.clone() for name, value in first.items()}
        self._sum(alone(self._batch, 2), UNCLIPPED)
        whole = self._sum(self._batch, UNCLIPPED)
        total = self._engine.clipped_sum(gather(self._batch, [], WIDTH), UNCLIPPED)
        if any(bool(value.any()) for value in total.tensors.values()):
            raise self._refuse("empty batch", "a batch without records has a sum that is not zero.", INEXACT)
        for rows in (ALL[:4], ALL[4:]):
            total.add(self._engine.clipped_sum(gather(self._batch, rows, WIDTH), UNCLIPPED))
        for found, expected in ((first, copy), (total.tensors, whole)):
            self._require_close(
                "accumulation",
                "the sum of a physical batch changes, or is lost, when another is computed",
                truth.distances(found, expected),
                expected,
                truth.length(expected),
            )

    def _exact(self, record: int, norm: float, largest: float) -> float:
        """The engine alone against autograd alone, nothing clipped."""
        plain, found = self._plain(record), self._alone(record, UNCLIPPED)
        self._require_close(
            "per-record gradient",
            "the gradient of a record is not that of plain autograd",
            truth.distances(found, plain),
            plain,
            norm + 1e-6 * largest,
        )
        return truth.length(found)

    def _clipped(self, record: int, norm: float, largest: float, rule: ClippingRule) -> None:
        """The same with a clipping norm below the record's: what differs now is the norm that it is clipped by."""
        plain, found = self._plain(record), self._alone(record, rule)
        factor = float(rule.factors(torch.tensor(norm**2, dtype=torch.float64)))
        self._require_close(
            "per-record norm",
            "the clipped gradient of a record is not its gradient, scaled",
            truth.distances(found, plain, factor),
            {name: factor * value for name, value in plain.items()},
            factor * (norm + 1e-6 * largest),
            is_norm=True,
        )
        length = truth.length(found)
        if length > rule.norm:
            raise self._refuse(
                "per-record norm",
                f"a record adds {length / rule.norm:.6f} times the clipping norm: its norm is under-estimated.",
                "The model is scaled too badly for this type; use another one, or a more exact type.",
            )

    def _additive(
        self, company: str, rows: Sequence[int], width: int, rule: ClippingRule, norms: Sequence[float]
    ) -> None:
        found = self._sum(gather(self._batch, rows, width), rule)
        expected: dict[str, Tensor] = {}
        for record in sorted(set(rows)):
            for name, value in self._alone(record, rule).items():
                share = value.double() * rows.count(record)
                expected[name] = expected[name] + share if name in expected else share
        self._require_close(
            "sum over records",
            f"the sum of records {company} is not the sum of what each gives alone",
            truth.distances(found, expected),
            expected,
            sum(min(norms[record], rule.norm) for record in rows),
            is_norm=rule is not UNCLIPPED,
        )

    def _bounded(self, rule: ClippingRule) -> None:
        whole = self._sum(self._batch, rule)
        dropped = ALL if self._subject.is_thorough else ALL[:1]
        for record in dropped:
            others = [other for other in ALL if other != record]
            moved = truth.total(truth.distances(self._sum(gather(self._batch, others, WIDTH), rule), whole))
            if not moved <= rule.norm * (1.0 + self._subject.tolerance):
                raise self._refuse(
                    "sensitivity",
                    f"leaving out one record moves the sum by {moved / rule.norm:.4g} times the clipping norm.",
                    MIX,
                )

    def _forgetful(self) -> None:
        """The first record alone once more, after all other passes."""
        found = self._sum(alone(self._batch, 0), UNCLIPPED)
        expected = self._plain(0)
        self._require_close(
            "memory",
            "the gradient of a record has changed after passes over others",
            truth.distances(found, expected),
            expected,
            truth.length(expected),
        )

    def _require_close(
        self,
        check: str,
        what: str,
        errors: Mapping[str, float],
        expected: Mapping[str, Tensor],
        scale: float,
        is_norm: bool = False,
    ) -> None:
        if not errors or scale == 0.0 == truth.total(errors):
            return
        # Where rounding allows it each parameter is held to its own size, so that small ones are not overlooked.
        sizes = {name: float(value.double().norm()) + 1e-3 * scale for name, value in expected.items()}
        shares: Callable[[str], float] = lambda name: errors[name] / sizes[name]  # noqa: E731
        worst = max(errors, key=shares)
        error = shares(worst) if self._subject.precision == "float64" else truth.total(errors) / scale
        if not error <= self._subject.tolerance:
            # A wrong norm puts all parameters out, as all share a record's factor.
            where = "unclipped it is, so that a norm is wrong" if is_norm else f"most wrong is {worst}"
            raise self._refuse(check, f"{what}; {where} (relative error {error:.2g}).", INEXACT)
