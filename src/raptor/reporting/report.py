"""The report: one self-contained HTML page that says what was guaranteed, what it cost and what it gained.

Everything in it is released or public. It needs no script, loads nothing, follows the reader's light or dark
theme and prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot
from typing import TYPE_CHECKING, Any

from raptor.reporting import words
from raptor.reporting.audit import AuditNote
from raptor.reporting.comparison import Comparison
from raptor.reporting.completion_report import (
    completion_figure,
    completion_numbers,
    completion_rows,
    completion_verdict,
)
from raptor.reporting.completions import CompletionComparison
from raptor.reporting.diagnostics import Diagnosis
from raptor.reporting.figures import Bar, accuracy_comparison, calibration, confusion_matrix
from raptor.reporting.guarantee import Guarantee
from raptor.reporting.methods import LARGEST, MONOLITHIC, NONPRIVATE, NOTES, RAPTOR, TITLES
from raptor.reporting.metrics import Estimate
from raptor.reporting.privacy_figures import StreamCost, budget_curve, epsilon_composition
from raptor.reporting.style import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pydantic import BaseModel

TEMPLATES = "templates"
PRIORS = (0.01, 0.1, 0.5)
# An accuracy that the noise blurs by more than this, at two standard errors, is shown as a range.
SHARP = 0.1
UNREADABLE = "Not measurable at this noise"
NO_CLASSES = "Texts are continued: there are no classes"


@dataclass(frozen=True)
class BigNumber:
    """One of the three figures on top."""

    number: str
    what: str
    detail: str


@dataclass(frozen=True)
class ReportInputs:
    """All that the page is made of.

    labels: names of the classes, declared public.
    routing: the figure of the public layer choice, with a sentence that says what it shows.
    parameters: section -> parameter -> value; nothing that names a file of the user.
    certificate: where `raptor verify` finds the certificate, as a path relative to the project.
    audit: what attacks on the mechanism found, or that none were made.
    diagnosis: the failure modes on public text, or why they were not measured.
    """

    comparison: Comparison | CompletionComparison
    labels: Sequence[str]
    guarantee: Guarantee
    routing: Figure
    routing_headline: str
    parameters: Mapping[str, Mapping[str, Any]]
    certificate: str
    audit: AuditNote
    diagnosis: Diagnosis
    version: str


def flat_parameters(config: BaseModel) -> dict[str, Any]:
    """Dotted name -> value of a stage's parameters."""

    def leaves(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, item in value.items():
            if isinstance(item, Mapping):
                yield from leaves(item, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", item

    return dict(leaves(config.model_dump(mode="json"), ""))


def method_bars(comparison: Comparison, epsilon: float) -> list[Bar]:
    """The methods of the accuracy figure, with a remark on each."""
    notes = {**NOTES, RAPTOR: f"private, epsilon {words.round_up(epsilon)}"}
    return [
        Bar(TITLES[name], notes[name], accuracy, is_ours=name == RAPTOR)
        for name, accuracy in comparison.accuracies.items()
    ]


def verdict(comparison: Comparison | CompletionComparison, epsilon: float) -> str:
    """One sentence: what the model can do at this epsilon, compared with doing nothing and with no privacy."""
    if isinstance(comparison, CompletionComparison):
        return completion_verdict(comparison, epsilon)
    start = f"At a proven epsilon of {words.round_up(epsilon)}, the private model"
    if comparison.floor is None:
        return (
            f"{start} was trained, but how often it is right is not measurable at this noise: the held-out set is too "
            "small to stand out of it."
        )
    ours, floor = comparison.metrics[RAPTOR].accuracy, comparison.floor
    if not _is_sharp(ours):
        return (
            f"{start} gets between {_range(ours)} of held-out records right; the held-out set is too small for a "
            "sharper answer under the noise."
        )
    margin = 2 * (ours.standard_error**2 + floor.standard_error**2) ** 0.5
    if ours.value - floor.value <= margin:
        return (
            f"{start} is not measurably better than always answering the largest class: "
            f"{words.percent(ours.value)} of held-out records right, against {words.percent(floor.value)}."
        )
    sentence = (
        f"{start} gets {words.percent(ours.value)} of held-out records right, "
        f"against {words.percent(floor.value)} for always answering the largest class"
    )
    if NONPRIVATE not in comparison.accuracies:
        return f"{sentence}."
    return f"{sentence} and {words.percent(comparison.accuracies[NONPRIVATE].value)} without privacy."


def big_numbers(comparison: Comparison | CompletionComparison, guarantee: Guarantee) -> list[BigNumber]:
    """Epsilon, accuracy, gain kept; or epsilon, exact match, perplexity."""
    budget = BigNumber(
        words.round_up(guarantee.epsilon),
        f"epsilon for one {guarantee.unit}",
        f"budget {guarantee.target:g}, delta {words.small(guarantee.delta)}",
    )
    if isinstance(comparison, CompletionComparison):
        return [budget, *(BigNumber(*item) for item in completion_numbers(comparison))]
    if comparison.floor is None:
        deviation = (
            f"noise of {words.compact(round(comparison.total_noise, 1))} records, one standard deviation"
        )
        return [
            budget,
            BigNumber("not measurable", "share of held-out records right", deviation),
            BigNumber("unclear", "gain over the largest class", "model and certificate stand"),
        ]
    ours, floor = comparison.metrics[RAPTOR].accuracy, comparison.floor
    against = f"largest class {words.percent(floor.value)}"
    if NONPRIVATE in comparison.accuracies:
        against += f", without privacy {words.percent(comparison.accuracies[NONPRIVATE].value)}"
    if not _is_sharp(ours):
        against = "two standard errors, most of it noise"
    elif not comparison.records_are_public:
        against += f"; ± {200 * ours.standard_error:.1f} points"
    numbers = [
        budget,
        BigNumber(
            words.percent(ours.value) if _is_sharp(ours) else _range(ours).replace(" and ", "\N{EN DASH}"),
            "of held-out records right",
            against,
        ),
    ]
    if comparison.kept is not None:
        reference = comparison.accuracies[NONPRIVATE]
        numbers.append(
            BigNumber(
                words.percent(comparison.kept.value, 0),
                "of the gain over the largest class is kept",
                f"{100 * (ours.value - floor.value):.1f} of the {100 * (reference.value - floor.value):.1f} points "
                "that training without privacy gains over always answering the largest class; "
                f"± {200 * comparison.kept.standard_error:.0f}\N{NO-BREAK SPACE}%, two standard errors",
            )
        )
        return numbers
    gain, error = ours.value - floor.value, hypot(ours.standard_error, floor.standard_error)
    if gain <= 2 * error:
        number = BigNumber("unclear", "gain over the largest class", "the noise may be larger than the gain")
    else:
        number = BigNumber(
            words.points(gain),
            "points over the largest class",
            f"± {200 * error:.1f} points; training without privacy was not run",
        )
    return [*numbers, number]


def _is_sharp(accuracy: Estimate) -> bool:
    return 2 * accuracy.noise_error <= SHARP


def _range(accuracy: Estimate) -> str:
    low, high = (min(max(accuracy.value + sign * 2 * accuracy.standard_error, 0.0), 1.0) for sign in (-1, 1))
    return f"{100 * low:.0f} and {words.percent(high, 0)}"


def render_report(inputs: ReportInputs) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("raptor.reporting", TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=words.percent,
        up=words.round_up,
        compact=words.compact,
        sure=words.certainty_percent,
        small=words.small,
    )
    comparison, guarantee = inputs.comparison, inputs.guarantee
    belief = words.certainty(guarantee.epsilon)
    return environment.get_template("report.html.jinja").render(
        verdict=verdict(comparison, guarantee.epsilon),
        big=big_numbers(comparison, guarantee),
        figures=_figures(inputs),
        comparison=comparison,
        continues=isinstance(comparison, CompletionComparison),
        rows=completion_rows(comparison)
        if isinstance(comparison, CompletionComparison)
        else _rows(comparison),
        recall=_recall(inputs),
        evaluation=comparison.summary,
        guarantee=guarantee,
        unit=words.UNITS[guarantee.unit],
        neighbours=words.ADJACENCY[guarantee.adjacency].format(unit=words.UNITS[guarantee.unit]),
        replaces=guarantee.adjacency == "replace-one",
        factor=words.times(exp(guarantee.epsilon)),
        belief=belief,
        beliefs=[(prior, words.raised_belief(prior, guarantee.epsilon)) for prior in PRIORS],
        delta_odds=words.one_in(guarantee.delta),
        same_steps=bool({NONPRIVATE, MONOLITHIC} & set(comparison.metrics)),
        has_monolithic=MONOLITHIC in comparison.metrics,
        routing_headline=inputs.routing_headline,
        parameters=inputs.parameters,
        certificate=inputs.certificate,
        audit=inputs.audit,
        diagnosis=inputs.diagnosis,
        version=inputs.version,
    )


def _recall(inputs: ReportInputs) -> list[tuple[str, Estimate]]:
    comparison = inputs.comparison
    if isinstance(comparison, CompletionComparison) or not comparison.is_measurable:
        return []
    return list(zip(inputs.labels, comparison.metrics[RAPTOR].recall, strict=True))


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    ordered = sorted(comparison.accuracies.items(), key=lambda item: -item[1].value)
    return [
        {
            "name": TITLES[name],
            "accuracy": accuracy,
            "metrics": None if name == LARGEST else comparison.metrics[name],
            "ours": name == RAPTOR,
        }
        for name, accuracy in ordered
    ]


def _figures(inputs: ReportInputs) -> dict[str, Any]:
    from markupsafe import Markup

    comparison, guarantee = inputs.comparison, inputs.guarantee
    streams = [StreamCost(f"{stream.name} stream", stream.epsilon_alone) for stream in guarantee.streams]
    steps = [step for step, _ in guarantee.curve]
    spent = [epsilon for _, epsilon in guarantee.curve]
    drawn = {
        **(_evaluation_figures(inputs) if comparison.is_measurable else {}),
        "composition": (
            epsilon_composition(streams, guarantee.split_sum, guarantee.epsilon),
            "Epsilon of each stream alone, their sum, and of the joint ledger",
            "; ".join(f"{stream.name} {words.round_up(stream.epsilon)}" for stream in streams)
            + f"; added up {words.round_up(guarantee.split_sum)}"
            + f"; joint {words.round_up(guarantee.epsilon)}",
        ),
        "curve": (
            budget_curve(steps, spent, guarantee.target),
            "Epsilon spent over the private steps",
            f"Grows from 0 to {words.round_up(spent[-1])} in {steps[-1]} steps.",
        ),
        "routing": (inputs.routing, "Owner entropy of every sparse layer", inputs.routing_headline),
        **{
            picture.name: (picture.figure, picture.title, picture.reading)
            for picture in inputs.diagnosis.pictures
        },
    }
    if inputs.audit.figure is not None:
        drawn["audit"] = (inputs.audit.figure, "What attacks found beside what is claimed", inputs.audit.text)
    # The SVG comes from our own drawing code, which escapes the texts in it.
    return {
        name: Markup(to_svg(figure, f"figure-{name}", title, text))  # noqa: S704
        for name, (figure, title, text) in drawn.items()
    }


def _evaluation_figures(inputs: ReportInputs) -> dict[str, tuple[Figure, str, str]]:
    """Name -> figure, title, description; of an evaluation that can be read."""
    comparison, epsilon = inputs.comparison, inputs.guarantee.epsilon
    if isinstance(comparison, CompletionComparison):
        return {
            "completions": (
                completion_figure(comparison, epsilon),
                "Exact match and perplexity of every method",
                completion_verdict(comparison, epsilon),
            )
        }
    tables, metrics = comparison.tables[RAPTOR], comparison.metrics[RAPTOR]
    bars = method_bars(comparison, epsilon)
    return {
        "accuracy": (
            accuracy_comparison(bars),
            "Accuracy of every method",
            "; ".join(f"{bar.name} {words.percent(bar.accuracy.value)}" for bar in bars),
        ),
        "confusion": (
            confusion_matrix(tables, inputs.labels),
            "Confusion matrix of the private model",
            "Recall by class: "
            + "; ".join(f"{label} {words.percent(recall.value, 0)}" for label, recall in _recall(inputs)),
        ),
        "calibration": (
            calibration(tables),
            "Calibration of the private model",
            f"Expected calibration error {words.percent(metrics.calibration_error.value)}.",
        ),
    }
