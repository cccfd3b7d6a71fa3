"""Figures of the evaluation: accuracy of the methods, confusion matrix, calibration.

Each function takes released or public values only and returns a matplotlib figure; `style.to_svg` makes it fit
for the report, a figure dataset saves it as a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor.reporting import style
from raptor.reporting.metrics import Estimate
from raptor.reporting.tables import EvaluationTables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

CELL_LABELS_UP_TO = 12
TICK_LABELS_UP_TO = 40


@dataclass(frozen=True)
class Bar:
    """One method of the accuracy figure; `note` is a short remark under its name."""

    name: str
    note: str
    accuracy: Estimate
    is_ours: bool = False


def message(text: str) -> Figure:
    """A sentence in the place of a figure that could not be read."""
    with style.drawing(5.6, 1.4) as figure:
        figure.text(0.5, 0.5, text, ha="center", va="center", color=style.MUTED)
    return figure


def accuracy_comparison(bars: Sequence[Bar]) -> Figure:
    """Accuracy of every method as horizontal bars, best on top, lines of two standard errors."""
    ordered = sorted(bars, key=lambda bar: (bar.accuracy.value, bar.is_ours))
    with style.drawing(5.6, 0.6 * len(ordered) + 0.75) as figure:
        axes = figure.subplots()
        style.bare(axes)
        for row, bar in enumerate(ordered):
            value, error = 100 * bar.accuracy.value, 200 * bar.accuracy.standard_error
            colour = style.ACCENT if bar.is_ours else style.NEUTRAL
            axes.barh(row, value, height=0.56, color=colour)
            axes.errorbar(value, row, xerr=error, color=style.INK, linewidth=1.4, capsize=3)
            axes.annotate(
                f"{value:.1f} %",
                (min(value + error, 100), row),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontweight="bold" if bar.is_ours else "normal",
            )
        axes.set_yticks(range(len(ordered)), [f"{bar.name}\n{bar.note}" for bar in ordered])
        for label, bar in zip(axes.get_yticklabels(), ordered, strict=True):
            label.set_color(style.INK)
            label.set_fontweight("bold" if bar.is_ours else "normal")
        longest = max(bar.accuracy.value + 2 * bar.accuracy.standard_error for bar in ordered)
        axes.set_xlim(0, min(100, max(118 * longest, 1)))
        axes.set_xlabel("held-out records classified correctly, %")
    return figure


def confusion_matrix(tables: EvaluationTables, labels: Sequence[str]) -> Figure:
    """Share of each true class (row) that got each answer (column), in per cent."""
    counts = np.maximum(tables.confusion, 0.0)
    sizes = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, sizes, out=np.zeros_like(counts), where=sizes > 0)
    classes = len(counts)
    side = min(max(0.5 * classes + 1.8, 4.2), 7.5)
    with style.drawing(side, 0.95 * side) as figure:
        axes = figure.subplots()
        axes.set_aspect("equal")
        for spine in axes.spines.values():
            spine.set_visible(False)
        _draw_cells(axes, share)
        axes.set_xlim(-0.5, classes - 0.5)
        axes.set_ylim(classes - 0.5, -0.5)
        if classes <= TICK_LABELS_UP_TO:
            size = 10 if classes <= CELL_LABELS_UP_TO else 6
            axes.set_xticks(
                range(classes), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=size
            )
            axes.set_yticks(range(classes), labels, fontsize=size)
        else:
            axes.set_xticks([])
            axes.set_yticks([])
        axes.set_xlabel("answer of the model")
        axes.set_ylabel("true class")
    return figure


def _draw_cells(axes: Axes, share: NDArray[np.float64]) -> None:
    from matplotlib.patches import Rectangle

    classes = len(share)
    for row in range(classes):
        for column in range(classes):
            value = float(share[row, column])
            # The shade is the opacity of one colour, so it reads on a light and on a dark page; it stays below
            # 0.6 so that the text on it keeps a contrast of 4 to 1 on both.
            axes.add_patch(
                Rectangle(
                    (column - 0.47, row - 0.47),
                    0.94,
                    0.94,
                    facecolor=style.ACCENT,
                    alpha=0.04 + 0.54 * value,
                    linewidth=0,
                )
            )
            if classes <= CELL_LABELS_UP_TO and value >= 0.005:
                axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=10)


def calibration(tables: EvaluationTables) -> Figure:
    """Reliability diagram: accuracy against mean confidence per bin; below, where the answers lie."""
    count, confidence, correct = np.maximum(tables.reliability, 0.0).T
    bins = len(count)
    edges = np.arange(bins) / bins
    # A bin whose count does not stand out of the noise says nothing.
    shown = count > max(5 * tables.reliability_noise, 0.5)
    with style.drawing(5.4, 5.1) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        style.bare(top, grid="y")
        style.bare(bottom, grid="y")
        top.plot([0, 100], [0, 100], color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        top.text(3, 93, "above the line: too modest", color=style.MUTED, fontsize=9.5)
        top.text(98, 5, "below the line: too sure", color=style.MUTED, fontsize=9.5, ha="right")
        # The mean confidence of a bin lies in the bin; noise may have carried it out.
        mean = np.clip(confidence[shown] / count[shown], edges[shown], edges[shown] + 1 / bins)
        right = np.clip(correct[shown] / count[shown], 0, 1)
        noise = tables.reliability_noise / count[shown]
        error = np.sqrt(right * (1 - right) / count[shown] + noise**2 * (1 + right**2))
        top.errorbar(
            100 * mean,
            100 * right,
            yerr=200 * error,
            color=style.ACCENT,
            marker="o",
            markersize=6,
            linewidth=1.8,
            elinewidth=1.2,
            capsize=3,
        )
        top.set_ylim(0, 102)
        top.set_xlim(0, 100)
        top.set_ylabel("correct, %")
        share = 100 * count / count.sum() if count.sum() > 0 else count
        bottom.bar(100 * (edges + 0.5 / bins), share, width=92 / bins, color=style.NEUTRAL)
        bottom.set_ylabel("records, %")
        bottom.set_xlabel("confidence of the model, %")
    return figure
