"""The empirical audit in words and as a figure: lower bounds from attacks beside the claims they are held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any

from raptor.reporting import style
from raptor.reporting.words import percent, round_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_RUN = (
    "No audit of this run is there (audit.enabled). `kedro run --pipelines audit` attacks its mechanism with made-up "
    "records, at no cost of budget; `kedro run --nodes certify,write_report` then puts the result here."
)


@dataclass(frozen=True)
class AuditNote:
    """What the report says of the audit.

    state: `not run`, `passed` or `failed`.
    figure: what each attack found beside the claim; None where no audit was made.
    """

    state: str
    text: str
    figure: Figure | None = None


def read_audit(results: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> AuditNote:
    """The audit of this plan's mechanism, in two or three sentences; one of another plan counts as not run."""
    from raptor.accounting.plan import plan_digest

    if not results or results["plan"] != plan_digest(plan) or not results["at_the_plans_noise"]:
        return AuditNote("not run", NOT_RUN)
    if not results["passed"]:
        return AuditNote(
            "failed",
            "The audit contradicts the claim: " + "; ".join(failures(results)) + ".",
            figure(results),
        )
    schedule = results["schedule"]
    confidence = percent(results["confidence"], 2 if results["confidence"] > 0.99 else 0)
    steps = " and ".join(f"{count} {name}" for name, count in results["steps"].items())
    return AuditNote(
        "passed",
        f"The best of {len(schedule['tests'])} tests on {schedule['tests'][0]['canaries']:,} made-up records found an "
        f"epsilon of at least {round_down(results['lower_bound'])} for {steps} steps "
        f"({confidence} confidence); at most {round_up(results['claim'])} is proven for them. "
        f"All {len(results['structure'])} checks of the noise passed. An attack that finds less than the claim proves "
        "nothing; one that finds more would have shown a fault.",
        figure(results),
    )


def round_down(value: float, digits: int = 2) -> str:
    """A lower bound that is shown must still be one."""
    return f"{floor(value * 10**digits + 1e-9) / 10**digits:.{digits}f}"


def failures(results: Mapping[str, Any]) -> list[str]:
    """One phrase for each claim that an attack broke, and for each check that failed."""
    broken = [
        f"{item['what']}: epsilon is at least {round_down(item['lower_bound'])}, "
        f"{round_up(item['claim'])} is claimed"
        for item in (results["schedule"], *results["releases"])
        if not item["passed"]
    ]
    return broken + [
        f"{item['check']} ({item['stream']}): {item['what']}"
        for item in results["structure"]
        if not item["passed"]
    ]


def figure(results: Mapping[str, Any]) -> Figure:
    """A bar from 0 to what each attack found, and a mark at the claim."""
    rows = [results["schedule"], *results["releases"]]
    with style.drawing(6.6, 0.62 * len(rows) + 1.1) as drawn:
        axes = drawn.subplots()
        style.bare(axes)
        for place, row in enumerate(rows):
            axes.barh(-place, row["lower_bound"], height=0.5, color=style.ACCENT)
            axes.plot([row["claim"]] * 2, [-place - 0.36, -place + 0.36], color=style.SECOND, linewidth=2.4)
            axes.annotate(
                f"found {round_down(row['lower_bound'])}, claimed {round_up(row['claim'])}",
                (max(row["claim"], row["lower_bound"]), -place),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontsize=9.5,
            )
        axes.set_yticks([-place for place in range(len(rows))], [row["what"] for row in rows])
        for label in axes.get_yticklabels():
            label.set_color(style.INK)
        axes.set_xlim(0, 1.55 * max(max(row["claim"], row["lower_bound"]) for row in rows))
        axes.set_xlabel(f"epsilon at delta {results['delta']:g}; bars are lower bounds, marks the claims")
        checks = results["structure"]
        passed = sum(item["passed"] for item in checks)
        axes.set_title(f"{passed} of {len(checks)} checks of the noise passed", loc="left", fontsize=11)
    return drawn
