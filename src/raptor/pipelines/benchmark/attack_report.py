"""What membership attacks have found, as tables and as curves beside what is promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raptor.audit.membership import ATTACKS
from raptor.pipelines.benchmark.config import AttackConfig
from raptor.pipelines.benchmark.figures import LINES
from raptor.pipelines.benchmark.recipes import RECIPES
from raptor.reporting.audit import round_down
from raptor.reporting.style import INK, MUTED, NEUTRAL, SECOND, bare, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Results = Mapping[str, Sequence[Row]]
TITLES = {"loss": "loss threshold", "offline": "LiRA, offline", "online": "LiRA, online"}
# The attack that is drawn.
DRAWN = "online"


def attack_section(results: Results, config: AttackConfig) -> list[str]:
    """Lines of Markdown for the page of results; none where nothing was attacked."""
    if not results["attacks"]:
        return []
    first = results["attacks"][0]
    lines = [
        "## Attacks",
        "",
        f"Membership inference. For each method and budget {first['models']} models were trained, each on the records "
        "that its own fair coins chose (about half of them), at the rate and delta of half of the set. Each model is "
        "attacked in turn with the others as its shadow models. Area: probability that a member scores above a "
        "non-member, 0.5 without any signal. Epsilon found: of the strongest Gaussian trade-off curve that an attack "
        f"shows not to hold for some model, at the delta of the budget and {100 * config.confidence:g} % confidence "
        "for all attacks and models together, however guesses depend on each other; a bound from below, which proves "
        "nothing where it is small. Control: a training that is far too long "
        f"({config.control_cycles} cycles of batches of {config.control_batch_size}).",
        "",
        *(f"**More than the ledger allows was found: {text}.**\n" for text in contradictions(results)),
    ]
    for dataset in _values(results["attacks"], "dataset"):
        attacks = [row for row in results["attacks"] if row["dataset"] == dataset]
        points = [row for row in results["points"] if row["dataset"] == dataset]
        lines += [f"### {dataset}, {attacks[0]['records']:,} records", ""]
        lines += _overview(attacks)
        for rate in config.false_rates:
            lines += _at_rate([row for row in points if row["false_rate"] == rate], rate, config)
    return lines


def contradictions(results: Results) -> list[str]:
    """Attacks that have shown that a training did not keep to its ledger."""
    return [
        f"{TITLES[row['attack']]} on {_name(row)}, {row['dataset']}"
        for row in results["attacks"]
        if row["breaks_ledger"]
    ]


def _overview(attacks: Sequence[Row]) -> list[str]:
    heading = ["method", "right on members", "on others", *(f"area, {TITLES[name]}" for name in ATTACKS)]
    lines = _heading([*heading, "epsilon found"])
    for rows in _groups(attacks):
        found = max(row["epsilon_found"] for row in rows.values())
        some = rows[DRAWN]
        cells = [
            _name(some),
            *(f"{100 * some[key]:.1f} %" for key in ("accuracy_in", "accuracy_out")),
            *(f"{rows[name]['area']:.3f}" for name in ATTACKS),
            round_down(found),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _at_rate(points: Sequence[Row], rate: float, config: AttackConfig) -> list[str]:
    lines = [
        f"True-positive rate at a false-positive rate of {100 * rate:g} %, with its {100 * config.confidence:g} % "
        "interval (Clopper-Pearson), and what budget and ledger allow at most, in percent:",
        "",
        *_heading(["method", *TITLES.values(), "budget allows", "ledger allows"]),
    ]
    for rows in _groups(points):
        some = rows[DRAWN]
        bounds = [some["claim_bound"], some["ledger_bound"]]
        cells = [
            _name(some),
            *(_percent(rows[name]) for name in TITLES),
            *("-" if bound is None else f"{100 * bound:.3g}" for bound in bounds),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _percent(row: Row) -> str:
    true, low, high = (f"{100 * row[key]:.2f}" for key in ("true_rate", "low", "high"))
    return f"{true} ({low} to {high})"


def _name(row: Row) -> str:
    title = RECIPES[row["method"]].title
    budget = f", epsilon {row['epsilon']:g}" if row["epsilon"] else ""
    return f"{title}{budget}{', control' if row['control'] else ''}"


def _groups(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """By what was attacked: attack -> row; those with small budgets first, the control last."""
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = (row["control"], not row["epsilon"], row["epsilon"], row["method"])
        groups.setdefault(key, {})[row["attack"]] = row
    return [groups[key] for key in sorted(groups)]


def _values(rows: Iterable[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _heading(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]


def attack_curves(results: Results) -> Figure:
    """True against false positives of the online attack on log axes: a row for each set, a panel for each budget."""
    points = [row for row in results["points"] if row["attack"] == DRAWN]
    datasets, budgets = _values(points, "dataset"), sorted(_values(points, "epsilon"), key=lambda e: e or 1e9)
    if not points:
        with drawing(6.0, 1.0) as figure:
            figure.text(0.5, 0.5, "no set was attacked", ha="center", color=MUTED)
        return figure
    with drawing(1.0 + 3.6 * len(budgets), 0.6 + 3.4 * len(datasets)) as figure:
        panels = figure.subplots(len(datasets), len(budgets), squeeze=False, sharex=True, sharey=True)
        for line, dataset in zip(panels, datasets, strict=True):
            for axes, budget in zip(line, budgets, strict=True):
                _panel(
                    axes, [row for row in points if row["dataset"] == dataset and row["epsilon"] == budget]
                )
                axes.set_title(
                    f"{dataset}, {f'epsilon {budget:g}' if budget else 'without privacy'}", loc="left"
                )
            line[0].set_ylabel("true-positive rate")
        for axes in panels[-1]:
            axes.set_xlabel("false-positive rate")
    return figure


def _panel(axes: Axes, points: Sequence[Row]) -> None:
    # Bounds first, so that they lie beneath.
    if points and points[0]["claim_bound"] is not None:
        x = [row["false_rate"] for row in points if row["method"] == points[0]["method"]]
        for key, style, label in (
            ("claim_bound", "--", "budget allows"),
            ("ledger_bound", ":", "ledger allows"),
        ):
            most = [max(row[key] for row in points if row["false_rate"] == rate) for rate in x]
            axes.plot(x, most, color=INK, linestyle=style, linewidth=1.2, label=label)
    axes.plot([1e-6, 1.0], [1e-6, 1.0], color=MUTED, linewidth=0.8, label="guessing")
    for method, control in dict.fromkeys((row["method"], row["control"]) for row in points):
        own = [row for row in points if (row["method"], row["control"]) == (method, control)]
        colour, line, _ = (SECOND, "-", "") if control else LINES.get(method, (NEUTRAL, "-", ""))
        x = [row["false_rate"] for row in own]
        label = RECIPES[method].title + (", control" if control else "")
        axes.plot(x, [row["true_rate"] for row in own], color=colour, linestyle=line, label=label)
        # An interval that reaches 0 has no end on a log axis.
        low = [max(row["low"], 1e-6) for row in own]
        axes.fill_between(x, low, [row["high"] for row in own], color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates = [row["false_rate"] for row in points]
    axes.set_xlim(min(rates), 1.0)
    axes.set_ylim(min(rates) / 3, 1.15)
    bare(axes, grid="both")
    axes.legend(loc="upper left", fontsize=7.5, frameon=False)
