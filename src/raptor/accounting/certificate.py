"""The certificate: what a ledger proves, in numbers and in words."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.accounting.accountant import epsilon
from raptor.accounting.assumptions import assumptions
from raptor.accounting.audit_section import audit_section
from raptor.accounting.calibration import SplitSum, split_sum
from raptor.accounting.chain import canonical
from raptor.accounting.ledger import Ledger, read_ledger
from raptor.accounting.plan import BLOCKWISE, Accounting
from raptor.accounting.search import search_epsilon
from raptor.accounting.selection import NEEDS, Selection
from raptor.accounting.totals import StreamTotal
from raptor.accounting.types import Adjacency, EpsilonBound, Mode
from raptor.accounting.words import NOT_COVERED, statement, theorems
from raptor.errors import BudgetError, LedgerError

FORMAT = "raptor-certificate/4"
PAPERS = (
    "README.md",
    "privacy_certificate.json",
    "privacy_certificate.md",
    "privacy_ledger.jsonl",
    "audit.json",
)
_ROUNDING = 1e-9
_PLAN_TOLERANCE = 1e-4


def build_certificate(
    lines: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The certificate of a ledger. Everything in it follows from the ledger, the accountant and the audit.

    Args:
        lines: the ledger.
        audit: results of the audit; one of another plan counts as not made.

    Raises:
        LedgerError: the ledger is broken, or the audit contradicts itself.
        BudgetError: the releases cost more than the plan allowed, or the accountants disagree.
    """
    ledger = read_ledger(lines)
    plan = ledger.plan
    bound = epsilon(ledger.events, plan.delta, plan.adjacency)
    if bound.epsilon > plan.epsilon_target * (1 + _ROUNDING):
        raise BudgetError(
            f"the ledger costs epsilon {bound.epsilon:.6g} at delta {plan.delta:g}, above the target "
            f"{plan.epsilon_target:g} of its plan: no certificate can be given for it"
        )
    split = split_sum([total.events for total in ledger.totals], plan.delta, plan.adjacency)
    _require_plan_figures(ledger)
    search = None
    if plan.search.selection is not Selection.NONE:
        search = search_epsilon(ledger.events, plan.search, plan.delta, plan.adjacency)
    fields = {
        "format": FORMAT,
        "private": plan.mode is not Mode.SEEDED,
        "status": ledger.status,
        "epsilon": bound.epsilon,
        "delta": plan.delta,
        "adjacency": plan.adjacency.value,
        "unit": plan.unit.value,
        "epsilon_target": plan.epsilon_target,
        "epsilon_planned": plan.epsilon_planned,
        "epsilon_split_sum": split.epsilon,
        "accounting": {"calibration": plan.accounting.value, "rho": plan.rho},
        "search": None if search is None else _search(ledger, search),
        "statement": statement(ledger, bound, split.epsilon, search),
        "theorems": theorems(ledger),
        "assumptions": assumptions(ledger),
        "not_covered": list(NOT_COVERED),
        "taken_as_public": list(plan.taken_as_public),
        "population": plan.population,
        "population_source": plan.population_source,
        "layers": list(plan.layers),
        "trainable": plan.trainable,
        "generator": {"name": plan.generator, "mode": plan.mode.value},
        "streams": [
            _stream(total, plan.delta, plan.adjacency, split, number)
            for number, total in enumerate(ledger.totals)
        ],
        "accountant": _accountant(bound, ledger),
        "audit": audit_section(audit, plan),
        "ledger": {"digest": ledger.digest, "lines": ledger.lines},
        "model": {"digest": ledger.model},
        "code": _code(ledger),
        **_processes(ledger),
        "versions": ledger.versions,
    }
    return {**fields, "digest": fields_digest(fields)}


def fields_digest(certificate: Mapping[str, Any]) -> str:
    """SHA-256 over all fields of a certificate but `digest`.

    Figures are computed anew with a tolerance, as machines differ in the last digits; this shows a change within it.
    """
    return hashlib.sha256(
        canonical({key: value for key, value in certificate.items() if key != "digest"})
    ).hexdigest()


def model_digest(directory: Path) -> str:
    """SHA-256 over the names and contents of all files of a model directory.

    The papers that lie beside an exported model (`PAPERS`) do not count: they are made after the digest, and no
    model is loaded from them.

    Raises:
        LedgerError: there is no such directory, or it is empty.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []
    files = [path for path in files if path.parent != directory or path.name not in PAPERS]
    if not files:
        raise LedgerError(f"{directory} holds no model: run the training stage again")
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        name = os.fsencode(path.relative_to(directory).as_posix())
        total.update(name + f"\0{content}\n".encode())
    return total.hexdigest()


def _require_plan_figures(ledger: Ledger) -> None:
    """The figures that the plan states must be those of its own streams."""
    plan = ledger.plan
    streams = [stream.events(stream.steps) for stream in plan.streams]
    together = epsilon(
        [event for events in streams for event in events], plan.delta, plan.adjacency, confirm=False
    )
    added = split_sum(streams, plan.delta, plan.adjacency).epsilon
    figures = {
        "epsilon_planned": (plan.epsilon_planned, together.epsilon),
        "epsilon_split_sum": (plan.epsilon_split_sum, added),
    }
    for name, (stated, actual) in figures.items():
        if not math.isclose(stated, actual, rel_tol=_PLAN_TOLERANCE, abs_tol=_ROUNDING):
            raise LedgerError(f"{name} of the privacy plan is {stated}, its streams give {actual}")
    if plan.accounting is Accounting.SPLIT and added > plan.epsilon_target * (1 + _PLAN_TOLERANCE):
        raise LedgerError(
            f"the privacy plan says that its noise was calibrated by the split, but stream by stream it costs {added}, "
            f"above its target {plan.epsilon_target}"
        )


def _search(ledger: Ledger, bound: EpsilonBound) -> dict[str, Any]:
    search = ledger.plan.search
    return {
        **search.to_json(),
        "epsilon": bound.epsilon,
        "delta": bound.delta,
        "method": bound.method,
        "needs": list(NEEDS) if search.selection.is_random else [],
    }


def _stream(
    total: StreamTotal, delta: float, adjacency: Adjacency, split: SplitSum, number: int
) -> dict[str, Any]:
    planned = total.planned
    return {
        "name": planned.name,
        "rate": planned.rate,
        "noise_multiplier": planned.noise_multiplier,
        "clipping_norm": planned.clipping_norm,
        "noise_deviation": planned.noise_deviation,
        "denominator": planned.denominator,
        "blocks": planned.blocks,
        **{name: list(getattr(planned, name)) for name in BLOCKWISE if getattr(planned, name)},
        "dimension": total.dimension,
        "steps_planned": planned.steps,
        "steps_executed": total.executed,
        "steps_charged": total.charged,
        # At the full delta, as if nothing else were released: these do not add up to the joint figure.
        "epsilon_alone": epsilon(total.events, delta, adjacency, confirm=False).epsilon,
        # At the stream's part of delta: these are what the paper's way adds up.
        "epsilon_split": split.epsilons[number],
        "delta_split": split.deltas[number],
    }


def _accountant(bound: EpsilonBound, ledger: Ledger) -> dict[str, Any]:
    asked = [f"dp-accounting {ledger.versions['dp-accounting']} PLD"] * ("dp-accounting" in bound.library)
    return {
        "method": bound.method,
        "bound": bound.bound,
        "asked": [*asked, ledger.versions["accountant"]],
        "grid": bound.grid,
        "epsilon_renyi": bound.renyi,
        "note": bound.note,
    }


def _processes(ledger: Ledger) -> dict[str, int]:
    """How many processes trained together, where it was more than one."""
    most = max((start.processes for start in ledger.starts), default=1)
    return {"processes": most} if most > 1 else {}


def _code(ledger: Ledger) -> list[dict[str, Any]]:
    """The code of each process of the run, each once, in order; none where the run did not say."""
    found: list[dict[str, Any]] = []
    for start in ledger.starts:
        if start.code.to_json() not in found:
            found.append(start.code.to_json())
    return found
