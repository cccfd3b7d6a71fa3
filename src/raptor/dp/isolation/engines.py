"""An engine's sums, alone and in company, against plain autograd and against the clipping norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import GradientEngine
from raptor.dp.isolation import truth
from raptor.dp.isolation.specs import EngineSpec, refusal
from raptor.dp.isolation.structure import State, check_router
from raptor.dp.isolation.subject import ALL, COMPANIES, MIX, WIDTH, Subject
from raptor.dp.isolation.synthetic import alone, gather, routings, with_owners
from raptor.dp.records import Batch
from raptor.errors import ModelError

FEW = ("with other records", "with more padding")
# No factor is below 1, whatever the norm.
UNCLIPPED = ClippingRule(1e12)
SMALL = 0.1
INEXACT = "Leave these parameters out of training (training.frozen), or use a model whose layers are covered."


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
        self._last: tuple[tuple[tuple[int, ...], float], dict[str, Tensor]] = (((), 0.0), {})
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
        if not all(math.isfinite(norm) for norm in plain) or largest == 0.0:
            raise self._refuse(
                "gradients",
                "the gradient of a synthetic record is not finite, or all are zero, so that nothing is shown.",
                INEXACT,
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

    def _refuse(self, check: str, found: str, advice: str) -> ModelError:
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
        single = alone(self._batch, record)
        if self._spec.weights is not None:
            single = replace(single, weights=self._spec.weights(self._model, single))
        found = truth.plain_gradient(
            self._model,
            self._engine.parameters,
            single,
            self._subject.loss,
            self._spec.owner_layers,
        )
        # What the engine says is in its sums is what is taken out of its releases.
        for name, scale in self._engine.scales.items():
            found[name].mul_(scale)
        return found

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
        expected = self._expected(tuple(sorted(rows)), rule)
        self._require_close(
            "sum over records",
            f"the sum of records {company} is not the sum of what each gives alone",
            truth.distances(found, expected),
            expected,
            sum(min(norms[record], rule.norm) for record in rows),
            is_norm=rule is not UNCLIPPED,
        )

    def _expected(self, rows: tuple[int, ...], rule: ClippingRule) -> dict[str, Tensor]:
        """Sum in float64 of what each record gives alone."""
        key = (rows, rule.norm)
        # The last one only: several companies in a row are made of the same records.
        if self._last[0] != key:
            total: dict[str, Tensor] = {}
            for record in sorted(set(rows)):
                for name, value in self._alone(record, rule).items():
                    if name not in total:
                        total[name] = torch.zeros_like(value, dtype=torch.float64)
                    total[name].add_(value, alpha=rows.count(record))
            self._last = (key, total)
        return self._last[1]

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
