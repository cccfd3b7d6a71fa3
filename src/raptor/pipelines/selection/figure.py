"""The routing figure: how evenly each sparse layer shares the public records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raptor.moe.statistics import STANDARD_ERRORS
from raptor.pipelines.selection.profile import headline
from raptor.reporting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELLED_LAYERS = 12
"""With more layers than this, only the chosen bar carries its entropy."""
SEPARATED_EXPERTS = 16
"""With more experts than this, their bars touch."""


def draw(profile: dict[str, Any], plan: dict[str, Any]) -> Figure:
    """Entropy of each layer, its distance from the even load with errors, and the load of every expert.

    Args:
        profile: the routing profile of public records.
        plan: the layer plan; its layers are drawn in the accent colour.
    """
    rows, chosen = profile["layers"], plan["layers"]
    width = min(max(6.6, 1.6 + 0.9 * len(rows)), 13.0)
    with style.drawing(width, 7.4) as figure:
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(1.0, 0.75, 1.0))
        _entropies(top, rows, chosen)
        _deficits(middle, rows, chosen)
        _loads(bottom, rows, chosen)
        # A single bar would otherwise fill the whole width.
        spare = max(0.6, 1.5 - len(rows) / 2)
        bottom.set_xlim(-spare, len(rows) - 1 + spare)
        bottom.set_xticks(range(len(rows)), [str(row["layer"]) for row in rows])
        bottom.set_xlabel(f"sparse layer, by the index of its block ({profile['records']:,} public records)")
        top.set_title(headline(plan), loc="left", fontsize=11)
        figure.align_ylabels()
    return figure


def _colour(row: dict[str, Any], chosen: Sequence[int]) -> str:
    return style.ACCENT if row["layer"] in chosen else style.NEUTRAL


def _entropies(axes: Axes, rows: list[dict[str, Any]], chosen: Sequence[int]) -> None:
    # A share of log E, so that layers with different numbers of experts stand on one scale.
    style.bare(axes, grid="y")
    for place, row in enumerate(rows):
        value = row["normalised_entropy"]
        error = STANDARD_ERRORS * row["entropy_standard_error"] / np.log(max(row["experts"], 2))
        axes.bar(place, value, width=0.6, color=_colour(row, chosen))
        axes.errorbar(place, value, yerr=error, color=style.INK, linewidth=1.2, capsize=3)
        is_chosen = row["layer"] in chosen
        if is_chosen or len(rows) <= LABELLED_LAYERS:
            axes.annotate(
                f"{row['entropy']:.3f} nats" + ("\nchosen" if is_chosen else ""),
                (place, max(value + error, 1.0)),
                (0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=9.5,
                fontweight="bold" if is_chosen else "normal",
            )
    axes.axhline(1.0, color=style.MUTED, linewidth=1.0, linestyle="--")
    axes.set_ylim(0, 1.3)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel("entropy / log E")


def _deficits(axes: Axes, rows: list[dict[str, Any]], chosen: Sequence[int]) -> None:
    # Good layers differ in the third digit of their entropy; here that digit can be seen.
    style.bare(axes, grid="y")
    for place, row in enumerate(rows):
        error = STANDARD_ERRORS * row["entropy_standard_error"]
        axes.bar(place, row["entropy_deficit"], width=0.6, color=_colour(row, chosen))
        axes.errorbar(place, row["entropy_deficit"], yerr=error, color=style.INK, linewidth=1.2, capsize=3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("log E - entropy, nats\n(± 2 standard errors)")


def _loads(axes: Axes, rows: list[dict[str, Any]], chosen: Sequence[int]) -> None:
    style.bare(axes, grid="y")
    for place, row in enumerate(rows):
        experts = row["experts"]
        slot = 0.72 / experts
        axes.bar(
            place + slot * (np.arange(experts) - (experts - 1) / 2),
            experts * np.sort(row["counts"])[::-1] / row["records"],
            width=slot if experts > SEPARATED_EXPERTS else 0.8 * slot,
            color=_colour(row, chosen),
        )
    axes.axhline(1.0, color=style.MUTED, linewidth=1.0, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share of each expert × E\n(sorted; 1 is even)")
