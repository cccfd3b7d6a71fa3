"""One case: its steps, their time and memory, and the ratios as rows."""

from __future__ import annotations

import gc
import importlib.metadata
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.cases import Case, Subject, subject
from benchmarks.clock import Step, clock_of, interleaved, peak_bytes
from benchmarks.methods import EXPERT, MONOLITHIC, SHARED, Floor, Ours, OursWithNoise
from benchmarks.peers import OPACUS_GHOST, PEERS
from raptor.dp.memory import keep_freed_memory

Row = dict[str, Any]
RAPTOR, WITH_NOISE, CYCLE = "raptor", "raptor with noise and Adam", "cycle"
NON_PRIVATE = "non-private"
PLAIN_NORMS = "raptor with the library's norms"
PEER_ROUNDS = 2


@dataclass(frozen=True)
class Ratio:
    """A row to be: the sum of some steps over the sum of others."""

    method: str
    role: str
    over: tuple[str, ...]
    under: tuple[str, ...]


@dataclass
class Plan:
    """The steps of a case and the ratios asked of them."""

    steps: dict[str, Step] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    missing: list[Row] = field(default_factory=list)

    def add(self, key: str, step: Step) -> str:
        # The first run fills caches and shows whether the step runs at all.
        step.prepare()
        step.run()
        self.steps[key] = step
        return key

    def compare(self, method: str, role: str, over: str, under: str) -> None:
        self.ratios.append(Ratio(method, role, (over,), (under,)))


def _role(plan: Plan, target: Subject, role: str) -> None:
    floor = plan.add(f"{role} floor", Floor(target, role))
    ours = plan.add(f"{role} ours", Ours(target, role))
    plan.compare(RAPTOR, role, ours, floor)
    plain = plan.add(f"{role} ours, plain norms", Ours(target, role, fused=False))
    plan.compare(PLAIN_NORMS, role, plain, floor)
    floor_adam = plan.add(f"{role} floor, Adam", Floor(target, role, adam=True))
    noisy = plan.add(f"{role} ours, noise", OursWithNoise(target, role))
    plan.compare(WITH_NOISE, role, noisy, floor_adam)


def _missing_reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"not installed ({error}); pip install 'raptor[bench]'"
    return f"does not run here: {type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _peers(plan: Plan, case: Case, target: Subject) -> None:
    for name, (build, roles) in PEERS.items():
        if case.peers == "none" or (case.peers == "ghost" and name != OPACUS_GHOST):
            continue
        for role in roles:
            key = f"{role} {name}"
            try:
                plan.add(key, build(target, role))
            except Exception as error:
                # Whatever a peer fails with, the table must say that it was tried.
                plan.missing.append(
                    {"case": case.name, "method": name, "role": role, "missing": _missing_reason(error)}
                )
                continue
            plan.limits[key] = PEER_ROUNDS
            plan.compare(name, role, key, f"{role} floor")


def _growth(plan: Plan, case: Case) -> None:
    """Our steps and the floors with more and more experts, over those with the fewest."""
    base = min(case.builds)
    for experts in case.builds:
        target = subject(case, experts)
        for role in (SHARED, EXPERT):
            for method, build in ((RAPTOR, Ours), (NON_PRIVATE, Floor)):
                key = plan.add(f"{method} {role} {experts}", build(target, role))
                if experts != base:
                    plan.compare(f"{method}, E={experts} over E={base}", role, key, f"{method} {role} {base}")


def plan_of(case: Case) -> Plan:
    """Build a case: what is run and what is compared."""
    plan = Plan()
    if case.kind == "experts":
        _growth(plan, case)
        return plan
    target = subject(case, min(case.builds))
    if case.kind == "monolithic":
        _role(plan, target, MONOLITHIC)
        return plan
    for role in (SHARED, EXPERT):
        _role(plan, target, role)
    plan.ratios.append(Ratio(RAPTOR, CYCLE, ("shared ours", "expert ours"), ("shared floor", "expert floor")))
    _peers(plan, case, target)
    return plan


def _rounds(ratio: Ratio, taken: Mapping[str, Sequence[float]]) -> list[float]:
    """The ratio in every round that has all its steps."""
    over = zip(*(taken[key] for key in ratio.over), strict=False)
    under = zip(*(taken[key] for key in ratio.under), strict=False)
    return [sum(above) / sum(below) for above, below in zip(over, under, strict=False)]


def measure(case: Case, rounds: int, threads: int) -> list[Row]:
    """Rows of one case.

    Args:
        case: what to measure.
        rounds: rounds of our steps and the floors; peers and long cases take a few.
        threads: torch threads, set for the whole process.

    Returns:
        One row for each comparison, and one for each peer that is missing.
    """
    torch.set_num_threads(threads)
    # As in training; otherwise a page fault is paid by the step that happens to run when the heap grows.
    keep_freed_memory()
    plan = plan_of(case)
    # What was there before is no garbage of a step; looking for it would take longer than small steps do.
    gc.collect()
    gc.freeze()
    try:
        taken = interleaved(plan.steps, min(rounds, case.most_rounds), clock_of(threads), plan.limits)
        peaks = {key: peak_bytes(step) for key, step in plan.steps.items()}
    finally:
        gc.unfreeze()
    rows = []
    for ratio in plan.ratios:
        times = _rounds(ratio, taken)
        # The two steps of a cycle follow each other, so its peak is that of the larger.
        memory = max(peaks[key] for key in ratio.over) / max(peaks[key] for key in ratio.under)
        rows.append(
            {
                "case": case.name,
                "method": ratio.method,
                "role": ratio.role,
                "time_ratio": statistics.median(times),
                "memory_ratio": memory,
                "time_ratio_range": [min(times), max(times)],
                "floor_seconds": sum(statistics.median(taken[key]) for key in ratio.under),
                "floor_bytes": max(peaks[key] for key in ratio.under),
                "rounds": len(times),
                "threads": threads,
                "torch": importlib.metadata.version("torch"),
            }
        )
    return rows + plan.missing
