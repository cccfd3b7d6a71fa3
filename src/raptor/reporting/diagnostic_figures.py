"""Figures of the failure modes. All that they show was measured on public text at a released model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raptor.diagnostics.load import EntropyBounds, entropy_bounds
from raptor.diagnostics.load import dilution as left_by
from raptor.reporting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.6, 3.5
ROLES = {"shared": ("shared layers", style.NEUTRAL), "expert": ("experts", style.ACCENT)}
# Experts with a name of their own under a bar.
NAMED = 16


@dataclass(frozen=True)
class LayerBounds:
    """A sparse layer and the bounds of its bias."""

    layer: int
    bounds: EntropyBounds


def interference(found: Mapping[str, Any]) -> Figure:
    """Sorted over texts, how much of a role's gradient one clip leaves beside a clip of its own."""
    with style.drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        style.bare(axes, grid="y")
        shares = 100 * np.array(found["quantiles"])
        for role, (name, colour) in ROLES.items():
            values = _numbers(found["roles"][role]["ratios"])
            axes.plot(shares, 100 * values, color=colour, linewidth=2.2)
            place = len(shares) // 2
            axes.annotate(
                name,
                (shares[place], 100 * values[place]),
                (0, -14),
                textcoords="offset points",
                color=style.INK,
                ha="left",
                fontweight="bold" if role == "expert" else "normal",
            )
        axes.axhline(100, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.text(1, 101.5, "a clip of its own", color=style.MUTED, fontsize=9.5, va="bottom")
        axes.set_ylim(0, 115)
        axes.set_xlim(0, 100)
        axes.set_xlabel("texts, those that lose most first, %")
        axes.set_ylabel("kept under one clip, %")
    return figure


def signal(found: Mapping[str, Any]) -> Figure:
    """Signal to noise of every expert against its load, with the most that is possible."""
    loads, measured, ceiling = (
        _numbers(values)
        for values in (found["loads"], found["signal"]["measured"], found["signal"]["ceiling"])
    )
    with style.drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        style.bare(axes, grid="y")
        known = loads > 0
        order = np.argsort(loads[known])
        axes.plot(
            100 * loads[known][order], ceiling[known][order], color=style.SECOND, linewidth=1.8, marker="_"
        )
        axes.scatter(100 * loads[known], measured[known], color=style.ACCENT, s=36, zorder=3)
        axes.axhline(1.0, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.annotate(
            "signal as large as the noise",
            (0, 1.0),
            (3, 4),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=style.MUTED,
            fontsize=9.5,
        )
        last = order[-1]
        _label(axes, "most possible", 100 * loads[known][last], ceiling[known][last], -14)
        _label(axes, "these texts", 100 * loads[known][last], measured[known][last], 8)
        axes.set_yscale("log")
        values = np.concatenate([ceiling[known], measured[known], [1.0]])
        axes.set_ylim(values[values > 0].min() / 2.2, 2.6 * values.max())
        _plain_ticks(axes)
        axes.set_xlabel("share of the records that the expert owns, %")
        axes.set_ylabel("signal / noise")
    return figure


def dilution(found: Mapping[str, Any]) -> Figure:
    """What either denominator leaves of each expert's mean gradient."""
    loads = _numbers(found["loads"])
    experts = np.arange(len(loads))
    with style.drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        style.bare(axes, grid="y")
        axes.bar(experts, 100 * left_by(loads, "owner"), width=0.72, color=style.ACCENT)
        axes.bar(experts, 100 * left_by(loads, "batch"), width=0.72, color=style.NEUTRAL)
        axes.axhline(100, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        top = 1.3 * max(100.0, 100 * float(left_by(loads, "owner").max()))
        axes.set_ylim(0, top)
        axes.text(
            0.01, 0.98, "blue: divided by B/E, as here", transform=axes.transAxes, va="top", fontsize=9.5
        )
        axes.text(
            0.99, 0.98, "grey: divided by B", transform=axes.transAxes, va="top", ha="right", fontsize=9.5
        )
        _expert_ticks(axes, len(loads))
        axes.set_ylabel("left of the mean gradient, %")
    return figure


def errors(found: Mapping[str, Any]) -> Figure:
    """Mean squared error by source: a dot for each expert."""
    names = {"noise": "noise", "sampling": "which records\nwere drawn", "bias": "public\ndenominator"}
    with style.drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        style.bare(axes)
        largest = max(float(np.nanmax(_numbers(found["errors"][key]))) for key in names)
        # A bias of nothing has no place on a log axis; it stands at its left end.
        floor = 1e-9 * largest
        least = largest
        for row, key in enumerate(names):
            values = np.clip(_numbers(found["errors"][key]), floor, None)
            values = values[np.isfinite(values)]
            least = min(least, float(values.min()))
            axes.scatter(values, np.full(len(values), -row), color=style.ACCENT, s=30, zorder=3)
            axes.annotate(
                f"{values.mean():.2g} on average",
                (float(np.sqrt(values.min() * values.max())), -row),
                (0, 10),
                textcoords="offset points",
                ha="center",
                fontsize=9.5,
            )
        axes.set_xscale("log")
        axes.set_xlim(least / 30, 30 * largest)
        axes.set_ylim(-len(names) + 0.5, 0.5)
        _plain_ticks(axes, "x")
        axes.set_yticks([-row for row in range(len(names))], list(names.values()))
        for label in axes.get_yticklabels():
            label.set_color(style.INK)
        axes.set_xlabel("mean squared error of each expert's update, in units of C²")
    return figure


def layer_bounds(routing_profile: Mapping[str, Any]) -> list[LayerBounds]:
    """Bounds of every sparse layer of a routing profile."""
    rows = []
    for row in routing_profile["layers"]:
        counts = np.array(row["counts"], dtype=np.float64)
        rows.append(LayerBounds(int(row["layer"]), entropy_bounds(counts / counts.sum())))
    return rows


def bounds(rows: Sequence[LayerBounds], chosen: int) -> Figure:
    """chi2 of each layer between its bounds."""
    with style.drawing(WIDTH, max(HEIGHT, 1.4 + 0.32 * len(rows))) as figure:
        axes = figure.subplots()
        style.bare(axes)
        for place, row in enumerate(rows):
            is_chosen = row.layer == chosen
            low, high = row.bounds.lower, min(row.bounds.tight, row.bounds.upper)
            axes.plot([low, high], [-place, -place], color=style.NEUTRAL, linewidth=7, solid_capstyle="butt")
            axes.scatter(
                [row.bounds.chi2], [-place], color=style.ACCENT if is_chosen else style.INK, s=42, zorder=3
            )
            axes.annotate(
                f"{row.bounds.chi2:.2g}" + (", chosen" if is_chosen else ""),
                (high, -place),
                (8, 0),
                textcoords="offset points",
                va="center",
                fontweight="bold" if is_chosen else "normal",
            )
        axes.set_yticks([-place for place in range(len(rows))], [f"layer {row.layer}" for row in rows])
        for label in axes.get_yticklabels():
            label.set_color(style.INK)
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        highest = [min(row.bounds.tight, row.bounds.upper) for row in rows]
        axes.set_xlim(0, 1.45 * max([*highest, 1e-6]))
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("bias by uneven loads (chi2), and where its entropy lets it lie")
    return figure


def drift(found: Mapping[str, Any]) -> Figure:
    """Share of texts whose owner may change, or does, against how far the router's inputs move."""
    stability, norm = found["stability"], found["norm"]
    with style.drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        style.bare(axes, grid="y")
        moves = 100 * _numbers(stability["drifts"]) / norm
        axes.plot(moves, 100 * _numbers(stability["unsure"]), color=style.SECOND, linewidth=1.8)
        axes.plot(
            moves,
            100 * _numbers(stability["moved"]),
            color=style.NEUTRAL,
            marker="o",
            markersize=4,
            linestyle=(0, (1, 2)),
        )
        if found["median"] > 0:
            median = 100 * found["median"] / norm
            axes.axvline(median, color=style.ACCENT, linewidth=1.4)
            axes.scatter([median], [100 * found["moved"]], color=style.ACCENT, s=44, zorder=3)
            axes.annotate(
                "this training",
                (median, 108),
                (4 if median < 30 else -4, 0),
                textcoords="offset points",
                ha="left" if median < 30 else "right",
                va="center",
                fontsize=9.5,
                fontweight="bold",
            )
        axes.text(0.02, 0.87, "line: at most", transform=axes.transAxes, fontsize=9.5, va="top")
        axes.text(0.02, 0.79, "dots: random moves", transform=axes.transAxes, fontsize=9.5, va="top")
        axes.set_xscale("log")
        _plain_ticks(axes, "x")
        axes.set_ylim(0, 115)
        axes.set_xlabel("how far a word moves at the router, % of its length")
        axes.set_ylabel("texts that change owner, %")
    return figure


def _numbers(values: Sequence[float | None]) -> Any:
    """What was not measured counts as not a number, and is not drawn."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _label(axes: Axes, text: str, x: float, y: float, above: int) -> None:
    axes.annotate(text, (x, y), (-4, above), textcoords="offset points", ha="right", fontsize=9.5)


def _expert_ticks(axes: Axes, experts: int) -> None:
    if experts <= NAMED:
        axes.set_xticks(range(experts), [str(number) for number in range(experts)])
    axes.set_xlabel("expert")


def _plain_ticks(axes: Axes, which: str = "y") -> None:
    """Powers of ten as people write them on a log axis, six of them at most."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(LogLocator(numticks=6))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
