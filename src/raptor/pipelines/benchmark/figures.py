"""Accuracy against epsilon, and gains over the best baseline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raptor.pipelines.benchmark.recipes import RAPTOR, RECIPES
from raptor.pipelines.benchmark.summary import Results
from raptor.reporting.style import ACCENT, MUTED, NEUTRAL, SECOND, bare, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = {
    RAPTOR: (ACCENT, "-", "o"),
    "raptor_together": (ACCENT, ":", "P"),
    "raptor_split": (ACCENT, "--", "s"),
    "monolithic": (SECOND, "-", "^"),
    "monolithic_lora": (SECOND, "--", "v"),
    "scope_a": (NEUTRAL, "-", "D"),
    "scope_b": (NEUTRAL, "--", "x"),
}
"""Methods that are drawn: colour, line, mark."""


def accuracy_by_epsilon(results: Results) -> Figure:
    """One panel for each set, one line for each method, bars for 95 % intervals."""
    number = max(len(results.datasets), 1)
    with drawing(min(3.4 * number, 16.0), 4.2) as figure:
        panels = figure.subplots(1, number, squeeze=False)[0]
        for axes, dataset in zip(panels, results.datasets, strict=False):
            _panel(axes, results, dataset)
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _panel(axes: Axes, results: Results, dataset: str) -> None:
    places = {epsilon: place for place, epsilon in enumerate(results.epsilons)}
    for shift, (method, (colour, line, mark)) in enumerate(LINES.items()):
        found = [(places[e], results.accuracy(dataset, method, e)) for e in results.epsilons]
        known = [(place + 0.04 * (shift - 3), value) for place, value in found if value is not None]
        if known:
            axes.errorbar(
                [place for place, _ in known],
                [value.mean for _, value in known],
                yerr=[0.0 if math.isinf(value.half_width) else value.half_width for _, value in known],
                color=colour,
                linestyle=line,
                marker=mark,
                markersize=5,
                capsize=2,
                label=RECIPES[method].title,
            )
    bare(axes, grid="y")
    axes.set_xticks(list(places.values()), [f"{epsilon:g}" for epsilon in places])
    axes.set_xlabel("epsilon")
    axes.set_title(dataset, loc="left")
    if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        axes.set_ylabel("accuracy, percent")


def gains(results: Results) -> Figure:
    """Gains over the best baseline in each cell, with 95 % intervals paired by seed: alternating, and on one sample."""
    shown = [name for name in (RAPTOR, "raptor_together") if name in results.methods]
    cells = [(epsilon, data) for epsilon in reversed(results.epsilons) for data in reversed(results.datasets)]
    with drawing(7.5, 1.4 + 0.4 * max(len(cells), 1)) as figure:
        axes = figure.add_subplot()
        for number, method in enumerate(shown):
            for place, (epsilon, dataset) in enumerate(cells):
                gain = results.gain_over_best(dataset, epsilon, method)
                if gain is None:
                    continue
                sure = gain.is_above_zero or gain.is_below_zero
                axes.errorbar(
                    gain.mean,
                    place - 0.22 * number,
                    xerr=0.0 if math.isinf(gain.half_width) else gain.half_width,
                    color=(ACCENT if gain.mean > 0 else SECOND) if sure else NEUTRAL,
                    marker=LINES[method][2],
                    capsize=3,
                )
        axes.axvline(0.0, color=MUTED, linewidth=1.0)
        bare(axes)
        axes.set_yticks(range(len(cells)), [f"{dataset}, epsilon {epsilon:g}" for epsilon, dataset in cells])
        axes.set_xlabel(
            "points over the best baseline; grey: the interval holds zero, or fewer than three seeds"
        )
        for method in shown:
            axes.plot(
                [], [], color=NEUTRAL, marker=LINES[method][2], linestyle="", label=RECIPES[method].title
            )
        if shown:
            axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    return figure
