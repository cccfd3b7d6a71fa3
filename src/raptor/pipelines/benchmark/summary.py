"""What the cells say together: means, intervals, and gains paired by seed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raptor.pipelines.benchmark.recipes import BASELINES, HEADROOM, OURS, RAPTOR, RECIPES

CONFIDENCE = 0.95
# Two seeds that agree by chance have an interval of no width, so nothing is said to be sure of fewer than three.
FEWEST = 3
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Estimate:
    """A mean and the half width of its 95 % interval, in percentage points; infinite for a single value."""

    mean: float
    half_width: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """By Student's t over seeds. It covers sampling and noise, and not the choice of test records."""
        from scipy import stats

        number = len(values)
        mean = sum(values) / number
        if number == 1:
            return cls(mean, math.inf, 1)
        variance = sum((value - mean) ** 2 for value in values) / (number - 1)
        quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, number - 1))
        return cls(mean, quantile * math.sqrt(variance / number), number)

    def __str__(self) -> str:
        spread = "one seed" if math.isinf(self.half_width) else f"± {self.half_width:.1f}"
        return f"{self.mean:.1f} {spread}"

    @property
    def is_above_zero(self) -> bool:
        return self.number >= FEWEST and self.mean > self.half_width

    @property
    def is_below_zero(self) -> bool:
        return self.number >= FEWEST and self.mean < -self.half_width


class Results:
    """Accuracies in percent by set, method, budget (0 for none) and seed."""

    def __init__(self, rows: Rows) -> None:
        self._values: dict[tuple[str, str, float], dict[int, float]] = defaultdict(dict)
        for row in rows:
            key = (str(row["dataset"]), str(row["method"]), float(row["epsilon"]))
            self._values[key][int(row["seed"])] = 100.0 * float(row["accuracy"])
        self.datasets = sorted({key[0] for key in self._values})
        self.epsilons = sorted({key[2] for key in self._values} - {0.0})
        self.methods = [name for name in RECIPES if any(key[1] == name for key in self._values)]

    def values(self, dataset: str, method: str, epsilon: float) -> Mapping[int, float]:
        """Seed -> accuracy; empty where nothing was run."""
        return self._values.get((dataset, method, epsilon), {})

    def accuracy(self, dataset: str, method: str, epsilon: float) -> Estimate | None:
        """Mean over seeds."""
        found = self.values(dataset, method, epsilon)
        return Estimate.of(list(found.values())) if found else None

    def gains(self, dataset: str, epsilon: float, method: str, other: str) -> dict[int, float]:
        """Seed -> accuracy of a method minus that of another with the same seed."""
        mine, theirs = self.values(dataset, method, epsilon), self.values(dataset, other, epsilon)
        return {seed: mine[seed] - theirs[seed] for seed in sorted(set(mine) & set(theirs))}

    def best_baseline(self, dataset: str, epsilon: float) -> str | None:
        """The baseline with the highest mean in a cell. It is chosen by what it is then compared on, in its favour."""
        found = {name: self.accuracy(dataset, name, epsilon) for name in BASELINES}
        known = {name: value.mean for name, value in found.items() if value is not None}
        return max(known, key=known.__getitem__) if known else None

    def gain_over_best(self, dataset: str, epsilon: float, method: str = RAPTOR) -> Estimate | None:
        """Paired gain over the best baseline of a cell."""
        best = self.best_baseline(dataset, epsilon)
        gains = {} if best is None else self.gains(dataset, epsilon, method, best)
        return Estimate.of(list(gains.values())) if gains else None

    def mean_gain(self, epsilon: float, method: str = RAPTOR, other: str | None = None) -> Estimate | None:
        """Gain averaged over sets for each seed that all of them have; `other` None is the best of each cell."""
        by_seed: list[dict[int, float]] = []
        for dataset in self.datasets:
            against = other or self.best_baseline(dataset, epsilon)
            gains = {} if against is None else self.gains(dataset, epsilon, method, against)
            if gains:
                by_seed.append(gains)
        if not by_seed:
            return None
        seeds = set.intersection(*(set(gains) for gains in by_seed))
        means = [sum(gains[seed] for gains in by_seed) / len(by_seed) for seed in sorted(seeds)]
        return Estimate.of(means) if means else None

    def headroom(self, dataset: str) -> Estimate | None:
        """What experts add to the shared part without privacy."""
        gains = self.gains(dataset, 0.0, *HEADROOM)
        return Estimate.of(list(gains.values())) if gains else None


def page(results: Results, facts: Iterable[str]) -> str:
    """Tables in Markdown: accuracies, gains, headroom."""
    lines = ["# Benchmark", "", *(f"- {fact}" for fact in facts), ""]
    lines += [
        "Accuracy on test records in percent, mean over seeds with its 95 % interval (Student's t). The interval is of "
        "sampling and noise, not of the choice of test records.",
        "",
    ]
    for epsilon in [*results.epsilons, 0.0]:
        named = [name for name in results.methods if RECIPES[name].is_private == (epsilon > 0)]
        lines += [f"## {f'Epsilon {epsilon:g}' if epsilon else 'Without privacy'}", ""]
        lines += _table(
            ["method", *results.datasets],
            [
                [
                    RECIPES[name].title,
                    *(_shown(results.accuracy(data, name, epsilon)) for data in results.datasets),
                ]
                for name in named
            ],
        )
    lines += [
        "## Gain of RAPTOR",
        "",
        "Paired by seed, in points. The best baseline is the one with the highest mean in each cell. `*`: the interval "
        "does not hold zero, by three seeds or more.",
        "",
    ]
    rows = []
    for epsilon in results.epsilons:
        for method in (name for name in results.methods if name in OURS):
            cells = [_gain(results.gain_over_best(data, epsilon, method)) for data in results.datasets]
            rows.append(
                [f"{epsilon:g}", RECIPES[method].title, *cells, _gain(results.mean_gain(epsilon, method))]
            )
    lines += _table(["epsilon", "method", *results.datasets, "mean"], rows)
    lines += ["Best baselines:", ""]
    lines += [
        f"- epsilon {epsilon:g}: "
        + ", ".join(
            f"{data}: {RECIPES[best].title}"
            for data in results.datasets
            if (best := results.best_baseline(data, epsilon))
        )
        for epsilon in results.epsilons
    ]
    known = [name for name in BASELINES if name in results.methods]
    lines += ["", "Against each baseline, mean over the sets that have it:", ""]
    lines += _table(
        ["epsilon", "method", *(RECIPES[name].title for name in known)],
        [
            [
                f"{epsilon:g}",
                RECIPES[method].title,
                *(_gain(results.mean_gain(epsilon, method, name)) for name in known),
            ]
            for epsilon in results.epsilons
            for method in results.methods
            if method in OURS
        ],
    )
    lines += [
        "## Headroom",
        "",
        "What training experts adds without privacy: shared and experts minus shared only. Where it is small, no "
        "private method can gain from experts.",
        "",
    ]
    lines += _table(["set", "points"], [[data, _gain(results.headroom(data))] for data in results.datasets])
    return "\n".join(lines)


def _shown(value: Estimate | None) -> str:
    return "-" if value is None else str(value)


def _gain(value: Estimate | None) -> str:
    if value is None:
        return "-"
    star = " *" if value.is_above_zero or value.is_below_zero else ""
    return f"{value.mean:+.1f} {str(value).split(' ', 1)[1]}{star}"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(heading)} |", f"|{'---|' * len(heading)}", *body, ""]
