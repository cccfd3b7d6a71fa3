"""Figures of what the guarantee costs. All inputs are public: they follow from the plan and the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor.reporting import style
from raptor.reporting.words import round_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StreamCost:
    """What one stream would cost alone."""

    name: str
    epsilon: float


def epsilon_composition(streams: Sequence[StreamCost], added: float, joint: float) -> Figure:
    """What each stream costs alone, what adding up promises, and what one ledger proves for all of them."""
    rows = [(f"{stream.name} alone", stream.epsilon, style.NEUTRAL) for stream in streams]
    if len(streams) > 1:
        rows.append(("added up", added, style.SECOND))
    rows.append(("one joint ledger", joint, style.ACCENT))
    with style.drawing(6.2, 0.5 * len(rows) + 0.8) as figure:
        axes = figure.subplots()
        style.bare(axes)
        for row, (_, value, colour) in enumerate(rows):
            ours = row == len(rows) - 1
            axes.barh(-row, value, height=0.58, color=colour)
            axes.annotate(
                round_up(value),
                (value, -row),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontweight="bold" if ours else "normal",
            )
        axes.set_yticks([-row for row in range(len(rows))], [name for name, _, _ in rows])
        for label in axes.get_yticklabels():
            label.set_color(style.INK)
        axes.get_yticklabels()[-1].set_fontweight("bold")
        axes.set_xlim(0, 1.14 * max(value for _, value, _ in rows))
        axes.set_xlabel("epsilon")
    return figure


def budget_curve(steps: Sequence[int], epsilons: Sequence[float], target: float) -> Figure:
    """Joint epsilon after a number of private steps, from the public plan."""
    with style.drawing(6.2, 3.0) as figure:
        axes = figure.subplots()
        style.bare(axes, grid="y")
        axes.axhline(target, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.annotate(
            f"budget {target:g}",
            (0, target),
            (4, 5),
            textcoords="offset points",
            color=style.MUTED,
        )
        axes.plot(steps, epsilons, color=style.ACCENT, linewidth=2.2, marker="o", markersize=4)
        axes.annotate(
            round_up(epsilons[-1]),
            (steps[-1], epsilons[-1]),
            (0, 5),
            textcoords="offset points",
            ha="right",
            fontweight="bold",
        )
        axes.set_xlim(0, 1.02 * steps[-1])
        axes.set_ylim(0, 1.18 * max(target, *epsilons))
        axes.set_xlabel("private steps taken")
        axes.set_ylabel("epsilon spent")
    return figure
