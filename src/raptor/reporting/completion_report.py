"""What the report says about a model that continues texts: a sentence, three figures on top, one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raptor.reporting import style, words
from raptor.reporting.completions import CompletionComparison
from raptor.reporting.methods import BASE, NONPRIVATE, NOTES, RAPTOR, TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = tuple[float, float, float]
"""A value, and the ends of two standard errors around it."""


def completion_verdict(comparison: CompletionComparison, epsilon: float) -> str:
    """One sentence: what the model can do at this epsilon, compared with the base model and with no privacy."""
    start = f"At a proven epsilon of {words.round_up(epsilon)}, the private model"
    if not comparison.is_measurable:
        return (
            f"{start} was trained, but how well it continues texts is not measurable at this noise: the held-out set "
            "is too small to stand out of it."
        )
    ours = comparison.metrics[RAPTOR]
    against = "".join(
        f", {joint} {words.percent(other.exact_match.value)} and {_perplexity(other.perplexity)} {how}"
        for name, joint, how in ((BASE, "against", "before it"), (NONPRIVATE, "and", "without privacy"))
        if (other := comparison.metrics.get(name)) is not None
    )
    return (
        f"{start} gives {words.percent(ours.exact_match.value)} of held-out completions word for word, at a perplexity "
        f"of {_perplexity(ours.perplexity)}{against}."
    )


def completion_numbers(comparison: CompletionComparison) -> list[tuple[str, str, str]]:
    """Exact match and perplexity: number, what it is, detail."""
    if not comparison.is_measurable:
        deviation = (
            f"noise of {words.compact(round(comparison.total_noise, 1))} records, one standard deviation"
        )
        return [
            ("not measurable", "held-out completions given word for word", deviation),
            ("not measurable", "perplexity", "model and certificate stand"),
        ]
    ours, base = comparison.metrics[RAPTOR], comparison.metrics.get(BASE)
    exact, low_high = ours.exact_match, ours.perplexity_range
    of_exact = f"± {200 * exact.standard_error:.1f} points"
    of_perplexity = f"between {_perplexity(low_high[0])} and {_perplexity(low_high[1])}"
    if base is not None:
        of_exact += f"; base model {words.percent(base.exact_match.value)}"
        of_perplexity += f"; base model {_perplexity(base.perplexity)}"
    return [
        (words.percent(exact.value), "of held-out completions given word for word", of_exact),
        (_perplexity(ours.perplexity), "perplexity on held-out completions", of_perplexity),
    ]


def completion_rows(comparison: CompletionComparison) -> list[dict[str, Any]]:
    """One row a method, the best first."""
    ordered = sorted(comparison.metrics.items(), key=lambda item: item[1].loss.value)
    return [{"name": TITLES[name], "metrics": metrics, "ours": name == RAPTOR} for name, metrics in ordered]


def completion_figure(comparison: CompletionComparison, epsilon: float) -> Figure:
    """Exact match and perplexity of every method, with lines of two standard errors."""
    names = list(comparison.metrics)[::-1]
    notes = {**NOTES, BASE: "as it came", RAPTOR: f"private, epsilon {words.round_up(epsilon)}"}
    with style.drawing(7.6, 0.6 * len(names) + 0.9) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        exact: list[Interval] = []
        perplexity: list[Interval] = []
        for name in names:
            metrics = comparison.metrics[name]
            value, error = 100 * metrics.exact_match.value, 200 * metrics.exact_match.standard_error
            exact.append((value, max(value - error, 0.0), min(value + error, 100.0)))
            perplexity.append((metrics.perplexity, *metrics.perplexity_range))
        _bars(left, names, exact, "{:.1f} %", "given word for word, %")
        _bars(right, names, perplexity, "{:.3g}", "perplexity (smaller is better)")
        left.set_yticks(range(len(names)), [f"{TITLES[name]}\n{notes[name]}" for name in names])
    return figure


def _bars(axes: Axes, names: list[str], values: list[Interval], form: str, what: str) -> None:
    style.bare(axes)
    for row, (name, (value, low, high)) in enumerate(zip(names, values, strict=True)):
        axes.barh(row, value, height=0.56, color=style.ACCENT if name == RAPTOR else style.NEUTRAL)
        axes.errorbar(
            value, row, xerr=[[value - low], [high - value]], color=style.INK, linewidth=1.4, capsize=3
        )
        axes.annotate(
            form.format(value),
            (high, row),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold" if name == RAPTOR else "normal",
        )
    axes.set_xlim(0, 1.3 * max(*(high for _, _, high in values), 1.0))
    axes.set_xlabel(what)


def _perplexity(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
