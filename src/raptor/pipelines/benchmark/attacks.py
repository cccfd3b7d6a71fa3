"""Membership inference on final models of the benchmark: which models, their answers, and what attacks find in them.

Each model is trained on the records that fair coins of its own chose, at the rate and the delta of half of all records,
so that with and without a record are the two neighbours of add-remove. Sets, coins and seeds are public.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raptor.accounting.types import Adjacency, Event
from raptor.audit.curves import ClaimCurve, Curve, LedgerCurve, most_found
from raptor.audit.membership import (
    ATTACKS,
    Models,
    area,
    breaks,
    epsilon_found,
    label_margins,
    operating_points,
)
from raptor.dp.records import EncodedRecords
from raptor.dp.training import resolve_device
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.benchmark.cells import Bed, Cell, events_of, spent_of
from raptor.pipelines.benchmark.config import AttackConfig
from raptor.pipelines.benchmark.recipes import RECIPES
from raptor.pipelines.benchmark.sets import BenchmarkSet, set_name

# The coins are public, and the same for all methods, so that these are compared on the same halves.
SEED = 11
BATCH = 512
# Points of a curve, and how many false positives its first one has at least.
POINTS = 40
FEWEST = 10


@dataclass(frozen=True)
class Arm:
    """Models that are attacked together: one method on one set at one budget, in the usual or the control training."""

    dataset: str
    method: str
    epsilon: float | None
    is_control: bool

    def cell(self, model: int) -> Cell:
        """The cell of one of its models; the seed is the number of the model."""
        return Cell(self.dataset, self.method, self.epsilon, model)


def arms_of(config: AttackConfig, datasets: Iterable[str]) -> list[Arm]:
    """All arms on the sets of the comparison that are to be attacked."""
    return [
        Arm(dataset, method, epsilon, is_control)
        for dataset in datasets
        if dataset in map(set_name, config.sets)
        for is_control, methods in ((False, config.methods), (True, config.control_methods))
        for method in methods
        for epsilon in (sorted(config.epsilons) if RECIPES[method].is_private else [None])
    ]


def control_bed(bed: Bed, config: AttackConfig) -> Bed:
    """The same bed with the training that is far too long."""
    training = bed.training.model_copy(
        update={"cycles": config.control_cycles, "batch_size": config.control_batch_size}
    )
    return replace(bed, training=training, plans={}, isolated=set())


def members_of(model: int, records: int) -> NDArray[np.bool_]:
    """(records,) fair coins of one model."""
    return np.random.default_rng([SEED, model]).random(records) < 0.5


def answers(bed: Bed, cell: Cell, data: BenchmarkSet) -> dict[str, Any]:
    """Train one model on its records and ask it about all of them.

    Returns:
        `members` and `margins` of all records in their order, the share of right answers on either side, delta, and
        the events that the mechanism wrote down.

    Raises:
        BudgetError: the releases that were made cost more than the cell's budget.
    """
    started = time.perf_counter()
    members = members_of(cell.seed, len(data.train))
    trained = bed.train(cell, data.part(torch.from_numpy(members.nonzero()[0])), len(data.train) // 2)
    spent_of(cell, trained.releases, trained.plan.delta)
    trained.trainer.finish()
    logits = _logits(trained.model, data.train, resolve_device(bed.training.device))
    labels = data.train.labels.numpy()
    right = logits.argmax(axis=1) == labels
    return {
        "members": members.astype(int).tolist(),
        "margins": label_margins(logits, labels).tolist(),
        "accuracy_in": float(right[members].mean()),
        "accuracy_out": float(right[~members].mean()),
        "delta": trained.plan.delta,
        "events": [
            [event.rate, event.noise_multiplier, event.steps] for event in events_of(trained.releases)
        ],
        "seconds": time.perf_counter() - started,
    }


def _logits(model: MoEClassifier, records: EncodedRecords, device: torch.device) -> NDArray[np.float64]:
    """(records, classes) in the records' order; those of like length share a pass, which changes no answer."""
    model = model.to(device).eval()
    found = np.empty((len(records), model.num_labels))
    order = records.lengths.argsort(stable=True)
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            batch = records.take(rows, device)
            found[rows.numpy()] = model(*batch.inputs).cpu().double().numpy()
    return found


def collect(
    arms: Sequence[Arm], cell_of: Callable[[Arm, int], Mapping[str, Any]], config: AttackConfig
) -> dict[str, list[dict[str, Any]]]:
    """Attack all models of all arms.

    Args:
        cell_of: arm and number of the model -> what `answers` gave.

    Returns:
        `attacks`: a row for each arm and attack; `points`: a row for each of these and each false-positive rate, with
        what the claim and the ledger allow there at most (None without privacy).
    """
    attacks: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for arm in arms:
        cells = [cell_of(arm, model) for model in range(config.models)]
        found = Models(
            np.array([cell["margins"] for cell in cells]), np.array([cell["members"] for cell in cells]) == 1
        )
        delta = float(cells[0]["delta"])
        # Shared out evenly, so that it holds for all attacks on an arm together.
        sure = 1 - (1 - config.confidence) / len(ATTACKS)
        rates = curve_rates(int((~found.members).sum()), config.false_rates)
        claim, ledger = _curves(arm, cells[0]["events"], delta)
        bounds = [_bound(curve, rates) for curve in (claim, ledger)]
        for name, attack in ATTACKS.items():
            scores = attack(found)
            key = {
                "dataset": arm.dataset,
                "method": arm.method,
                "epsilon": arm.epsilon or 0.0,
                "control": arm.is_control,
                "attack": name,
            }
            attacks.append(
                {
                    **key,
                    "delta": delta,
                    "models": config.models,
                    "records": scores.shape[1],
                    "area": area(scores, found.members),
                    "epsilon_found": epsilon_found(scores, found.members, delta, sure),
                    "breaks_ledger": ledger is not None and breaks(ledger, scores, found.members, sure),
                    "accuracy_in": float(np.mean([cell["accuracy_in"] for cell in cells])),
                    "accuracy_out": float(np.mean([cell["accuracy_out"] for cell in cells])),
                }
            )
            for place, point in enumerate(operating_points(scores, found.members, rates)):
                low, high = point.interval(config.confidence)
                points.append(
                    {
                        **key,
                        "false_rate": rates[place],
                        "false_positives": point.false_positives,
                        "non_members": point.non_members,
                        "true_positives": point.true_positives,
                        "members": point.members,
                        "true_rate": point.true_rate,
                        "low": low,
                        "high": high,
                        "claim_bound": bounds[0][place],
                        "ledger_bound": bounds[1][place],
                    }
                )
    return {"attacks": attacks, "points": points}


def curve_rates(non_members: int, asked: Sequence[float]) -> list[float]:
    """False-positive rates of a curve, even on a log scale, with those that were asked for among them."""
    even = np.geomspace(min(FEWEST / non_members, 0.5), 1.0, POINTS, endpoint=False)
    return sorted({*(float(f"{rate:.4g}") for rate in even), *asked})


def _curves(arm: Arm, events: Sequence[Sequence[float]], delta: float) -> tuple[Curve | None, Curve | None]:
    """What the budget promises, and what the ledger of the releases does."""
    if arm.epsilon is None:
        return None, None
    made = [Event(rate, noise, int(steps)) for rate, noise, steps in events]
    return ClaimCurve(arm.epsilon, delta), LedgerCurve(made, Adjacency.ADD_REMOVE)


def _bound(curve: Curve | None, rates: Sequence[float]) -> list[float | None]:
    return [None if curve is None else most_found(curve, rate) for rate in rates]
