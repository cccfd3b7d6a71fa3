"""The gate itself: which copies of the model are checked, in which types, and what has been shown by it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from raptor.dp.gradients.losses import RecordLoss, classification_loss
from raptor.dp.isolation.engines import EngineChecks
from raptor.dp.isolation.losses import check_capacity, check_losses
from raptor.dp.isolation.specs import EngineSpec, refusal
from raptor.dp.isolation.structure import Attributes, active_dropout, check_structure
from raptor.dp.isolation.subject import Subject
from raptor.dp.isolation.synthetic import generator, routings, synthetic_batch
from raptor.moe.precision import DoubleThroughout

# Public constants. A model of at most so many parameters is checked on copies, one of them in float64.
COPY_LIMIT = 16_000_000
TIGHT = 1e-6
LOOSE = {torch.float64: TIGHT, torch.float32: 1e-2}
# In half precision a token near the border of two experts often changes sides with the shape of a batch.
HALF = 2e-1
FAILURES = (RuntimeError, ValueError, IndexError, TypeError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Isolation:
    """What a passed gate has shown; public, as it rests on synthetic records alone.

    Attributes:
        groups: names of the parameter groups that were checked.
        precisions: number types in which they were.
        notes: what was set aside.
    """

    groups: tuple[str, ...]
    precisions: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        notes = "".join(f" {note}" for note in self.notes)
        return (
            f"Isolation gate passed for the {' and '.join(self.groups)} parameters, in "
            f"{' and '.join(self.precisions)}: records are independent and their gradients exact.{notes}"
        )


def check_isolation(
    model: nn.Module,
    specs: Sequence[EngineSpec],
    loss: RecordLoss = classification_loss,
    *,
    classes: int | None,
) -> Isolation:
    """Show that this model, loss and these engines treat each record on its own, before anything is spent.

    Guarantee:
        Nothing is released and no private record is read; records are synthetic with a fixed public seed, so the
        result is public. Shown, on these records: a record's loss and clipped gradient are the same alone, in any
        order and company, among copies, with more padding, and with experts that take one token; leaving one
        record out moves the sum of a group by at most C; an engine's sum is that of plain autograd on single
        records, so that norm and gradient belong together; no pass changes a buffer, a parameter or a number or
        tensor in an attribute of a module, or leaves a gradient. Not shown: that it is so for every record (a
        module that couples records only where a rare value occurs), or beyond 256 records; and with more than
        `COPY_LIMIT` parameters only couplings above the tolerance of the model's own type. Parameters that are
        zero altogether (a new head) are given small values for the checks, as nothing below them would have a
        gradient.

    In the model's own type a norm may differ from that in float64 by 1e-2 with the same routing: norm and sum use
    the same kept values, so that a record's contribution is bounded by C all the same. A larger difference says
    that rounding, which depends on the shape of the batch, is of the size of the gradient; that is refused.

    Args:
        model: in the mode, on the device and in the type that training uses. It is left as it was; above
            `COPY_LIMIT` it is then frozen.
        specs: all engines of the schedule.
        loss: the loss they use.
        classes: number of classes of the loss, or None when labels are token ids.

    Raises:
        ModelError: says which check failed, on which group or module, and what to do.
    """
    check_structure(model)
    notes: list[str] = []
    if active_dropout(model):
        notes.append(
            "Dropout was off in the checks; in one pass every token draws its own, which couples none."
        )
    is_small = sum(parameter.numel() for parameter in model.parameters()) <= COPY_LIMIT
    own = next(model.parameters()).dtype
    norms: dict[str, list[tuple[float, ...]]] = {}
    precisions: list[str] = []
    routes = []
    with ExitStack() as stack:
        subjects = []
        if is_small:
            exact = _float64(model)
            stack.enter_context(_prepared(exact))
            subjects.append(Subject(exact, synthetic_batch(exact, classes), loss, TIGHT))
        if not subjects or own != torch.float64:
            mine = copy.deepcopy(model) if is_small else model
            stack.enter_context(_prepared(mine))
            subjects.append(
                Subject(
                    mine,
                    synthetic_batch(mine, classes),
                    loss,
                    LOOSE.get(own, HALF),
                    is_thorough=not subjects,
                    keeps=is_small,
                )
            )
        for subject in subjects:
            attributes = Attributes(subject.model)
            # Where a model's own code falls back to float32, float64 would show the rounding of float32.
            precision = DoubleThroughout() if subject.precision == "float64" else nullcontext()
            try:
                with precision:
                    check_losses(subject)
                    check_capacity(subject)
                    for spec in specs:
                        norms.setdefault(spec.name, []).append(EngineChecks(subject, spec).run())
                    routes.append(routings(subject.model, subject.loss, subject.batch))
                attributes.require_same()
            except FAILURES as error:
                raise refusal(
                    "running the model",
                    f"it fails on synthetic records in {subject.precision}: {type(error).__name__}: {error}.",
                    "Use a model of a covered family, with its own code unchanged.",
                ) from error
            precisions.append(subject.precision)
        if len(subjects) == 2:
            same = [
                all(torch.equal(first[layer].cpu(), second[layer].cpu()) for layer in first)
                for first, second in zip(*routes, strict=True)
            ]
            for group, (tight, loose) in norms.items():
                _require_scale(group, tight, loose, same, subjects[1])
        elif not is_small:
            notes.append(
                f"It has more than {COPY_LIMIT:,} parameters, so that there was no check in float64."
            )
    return Isolation(tuple(spec.name for spec in specs), tuple(precisions), tuple(notes))


def _require_scale(
    group: str, tight: Sequence[float], loose: Sequence[float], same: Sequence[bool], subject: Subject
) -> None:
    """Raises ModelError when rounding is of the size of a record's gradient."""
    errors = [
        abs(second - first) / first
        for first, second, is_same in zip(tight, loose, same, strict=True)
        if is_same and first > 1e-6 * max(tight)
    ]
    if not errors or max(errors) > subject.tolerance:
        found = "no record routes as it does" if not errors else f"a norm is {max(errors):.2g} away from that"
        raise refusal(
            f"{group} parameters, rounding",
            f"in {subject.precision} {found} in float64: the model's weights are scaled so badly that rounding, which "
            "changes with the other records of a batch, is of the size of a gradient.",
            "Use another base model, or a more exact type.",
        )


def _float64(model: nn.Module) -> nn.Module:
    """A copy in float64."""
    exact = copy.deepcopy(model).double()
    if next(model.parameters()).device.type == "mps":
        exact = exact.cpu()
    for module in exact.modules():
        # Routers that compute in a type of their own; in a float32 one, float64 would show float32 rounding.
        if isinstance(vars(module).get("dtype"), torch.dtype):
            vars(module)["dtype"] = torch.float64
        # The grouped kernels take no float64.
        config = vars(module).get("config")
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"  # type: ignore[union-attr]
    return exact


@contextmanager
def _prepared(model: nn.Module) -> Iterator[None]:
    """Without dropout, and with small values in parameters that are zero altogether; put back afterwards."""
    dropouts = {module: module.p for module in active_dropout(model)}
    zeros = [parameter for parameter in model.parameters() if not bool(parameter.detach().any())]
    random = generator()
    with torch.no_grad():
        for module in dropouts:
            module.p = 0.0
        for parameter in zeros:
            deviation = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.01
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64) * deviation)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in zeros:
                parameter.zero_()
        for module, share in dropouts.items():
            module.p = share
