"""The certificate: what a ledger proves, in numbers and in words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.accounting.accountant import epsilon
from raptor.accounting.calibration import split_sum
from raptor.accounting.ledger import Ledger, StreamTotal, read_ledger
from raptor.accounting.types import Adjacency, EpsilonBound, Mode, Unit
from raptor.errors import BudgetError, LedgerError

FORMAT = "raptor-certificate/1"
_ROUNDING = 1e-9
_PLAN_TOLERANCE = 1e-4

NOT_COVERED = (
    "facts that were taken as public, listed in this certificate",
    "what can be learned about a person without that person's record, such as what holds for everybody",
    "the private data themselves, where they are stored, and who may read them",
    "results computed from the private records in other ways than by the releases of the ledger",
)


def build_certificate(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The certificate of a ledger. Everything in it follows from the ledger and the accountant.

    Raises:
        LedgerError: the ledger is broken.
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
    return {
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
        "statement": statement(ledger, bound),
        "not_covered": list(NOT_COVERED),
        "taken_as_public": list(plan.taken_as_public),
        "assumptions": [dict(item) for item in ledger.assumptions],
        "population": plan.population,
        "population_source": plan.population_source,
        "layer": plan.layer,
        "generator": {"name": plan.generator, "mode": plan.mode.value},
        "streams": [_stream(total, plan.delta, plan.adjacency) for total in ledger.totals],
        "accountant": _accountant(bound, ledger),
        "ledger": {"digest": ledger.digest, "lines": ledger.lines},
        "model": {"digest": ledger.model},
        "versions": ledger.versions,
    }


def statement(ledger: Ledger, bound: EpsilonBound) -> list[str]:
    """What is guaranteed, sentence by sentence."""
    plan = ledger.plan
    change = {
        Adjacency.ADD_REMOVE: f"one {plan.unit.value} is added or removed",
        Adjacency.REPLACE_ONE: f"one {plan.unit.value} is replaced by any other",
    }[plan.adjacency]
    sentences = []
    if plan.mode is Mode.SEEDED:
        sentences.append(
            "Not private: the noise came from a seed, and whoever knows or guesses the seed can remove it. "
            "This run is a test; what follows would hold for secure noise."
        )
    if ledger.status == "incomplete":
        done = ", ".join(
            f"{total.planned.name} {total.executed} of {total.planned.steps}" for total in _trained(ledger)
        )
        sentences.append(f"The training stopped early ({done} releases). The figures cover what was spent.")
    sentences += [
        f"All releases of the ledger together are ({_up(bound.epsilon)}, {plan.delta:g})-differentially private "
        f"when {change}.",
        "In words: whatever somebody does with the released model, the probability of any outcome grows by at "
        f"most the factor {_factor(bound.epsilon)} when {change}, except with probability {plan.delta:g}.",
        f"Somebody who knows all other records and guesses, at even odds, whether one {plan.unit.value} was used "
        f"for training is right in at most {_success(bound.epsilon, plan.delta)} % of the cases.",
        f"All streams ({', '.join(total.planned.name for total in ledger.totals)}) are counted together in one "
        "ledger; what is reserved for the evaluation is counted whether it is used or not.",
    ]
    if plan.delta * plan.population >= 1:
        sentences.append(
            f"Weak: delta is not below 1/{plan.population}, so publishing one whole record would satisfy it."
        )
    if plan.unit is Unit.RECORD:
        sentences.append("A person who appears in several records is protected less than one record is.")
    return sentences


def model_digest(directory: Path) -> str:
    """SHA-256 over the names and contents of all files of a model directory.

    Raises:
        LedgerError: there is no such directory, or it is empty.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []
    if not files:
        raise LedgerError(f"{directory} holds no model: run the training stage again")
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(directory).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def _require_plan_figures(ledger: Ledger) -> None:
    """The figures that the plan states must be those of its own streams."""
    plan = ledger.plan
    streams = [stream.events(stream.steps) for stream in plan.streams]
    together = epsilon(
        [event for events in streams for event in events], plan.delta, plan.adjacency, confirm=False
    )
    figures = {
        "epsilon_planned": (plan.epsilon_planned, together.epsilon),
        "epsilon_split_sum": (plan.epsilon_split_sum, split_sum(streams, plan.delta, plan.adjacency).epsilon),
    }
    for name, (stated, actual) in figures.items():
        if not math.isclose(stated, actual, rel_tol=_PLAN_TOLERANCE, abs_tol=_ROUNDING):
            raise LedgerError(f"{name} of the privacy plan is {stated}, its streams give {actual}")


def _trained(ledger: Ledger) -> list[StreamTotal]:
    return [total for total in ledger.totals if not total.planned.is_reserved]


def _stream(total: StreamTotal, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    planned = total.planned
    return {
        "name": planned.name,
        "rate": planned.rate,
        "noise_multiplier": planned.noise_multiplier,
        "clipping_norm": planned.clipping_norm,
        "noise_deviation": planned.noise_deviation,
        "denominator": planned.denominator,
        "blocks": planned.blocks,
        "dimension": total.dimension,
        "steps_planned": planned.steps,
        "steps_executed": total.executed,
        "steps_charged": total.charged,
        # At the full delta, as if nothing else were released: these do not add up to the joint figure.
        "epsilon_alone": epsilon(total.events, delta, adjacency, confirm=False).epsilon,
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


def _up(value: float) -> str:
    """Four significant digits, rounded up."""
    if value == 0:
        return "0"
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale - 1e-6) / scale:.4g}"


def _factor(value: float) -> str:
    return _up(math.exp(value)) if value < 30 else f"e^{_up(value)}"


def _success(epsilon_value: float, delta: float) -> str:
    """Best accuracy of a membership guess, in percent rounded up to one digit: 1 - (1 - delta) / (1 + e^eps)."""
    wrong = (1 - delta) * math.exp(-epsilon_value) / (1 + math.exp(-epsilon_value))
    return f"{math.ceil(1000 * (1 - wrong) - 1e-6) / 10:.1f}"
