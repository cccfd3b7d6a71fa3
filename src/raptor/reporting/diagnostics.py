"""The failure modes of private MoE training as the report tells them: a picture and its reading for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raptor.reporting import diagnostic_figures as figures
from raptor.reporting.words import percent, small

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OFF = (
    "The diagnostics were switched off (evaluation.failure_modes.enabled). They read public text alone and cost no "
    "budget: run the evaluation stage again with them on, and they stand here."
)
# Loads that differ by a smaller factor say nothing of a slope: chance in the signals is as large.
UNLIKE = 2.0


@dataclass(frozen=True)
class Picture:
    """One figure of the section.

    Attributes:
        name: unique in the page.
        title: heading above it.
        reading: what it shows, for a reader who knows nothing of the method.
        figure: drawn.
    """

    name: str
    title: str
    reading: str
    figure: Figure


@dataclass(frozen=True)
class ExpertRow:
    """One line of the table; all values are of public texts."""

    expert: int
    load: float
    empty: float
    empty_drawn: float
    signal: float
    ceiling: float


@dataclass(frozen=True)
class Diagnosis:
    """The section; without pictures where nothing was measured, and `text` then says why."""

    text: str
    pictures: tuple[Picture, ...] = ()
    experts: tuple[ExpertRow, ...] = ()
    notes: tuple[str, ...] = ()


def read_diagnosis(found: Mapping[str, Any], routing_profile: Mapping[str, Any]) -> Diagnosis:
    """The section from `failure_modes` and the public routing profile."""
    if not found["enabled"]:
        return Diagnosis(OFF)
    if "left_out" in found:
        return Diagnosis(found["left_out"])
    makers: tuple[Callable[[], Picture | None], ...] = (
        lambda: _interference(found),
        lambda: _signal(found),
        lambda: _dilution(found),
        lambda: _errors(found),
        lambda: _bounds(found, routing_profile),
        lambda: _drift(found),
    )
    pictures = tuple(picture for make in makers if (picture := make()) is not None)
    return Diagnosis(_lead(found), pictures, _experts(found), _notes(found))


def _lead(found: Mapping[str, Any]) -> str:
    caveats = "".join(f" {caveat}" for caveat in found["caveats"])
    return (
        f"Measured at the trained model on {found['records']:,} public texts (selection.corpus): no private record was "
        "read and no budget spent. The texts have no labels of this task, so each has one drawn from the model's own "
        f"answers.{caveats} The figures hold for the private records as far as these texts resemble them."
    )


def _interference(found: Mapping[str, Any]) -> Picture:
    shared, expert = (found["roles"][role]["interference"] for role in ("shared", "expert"))
    return Picture(
        "interference",
        "If one clip covered everything",
        "Before noise is added, each record's gradient is shortened to a fixed length. With one length for all "
        f"parameters together, the experts would keep {percent(expert['retained'], 0)} of what a limit of their own "
        f"leaves them (the worst tenth of the texts {percent(expert['tenth'], 0)} or less) and the shared layers "
        f"{percent(shared['retained'], 0)}. RAPTOR gives each role a limit of its own.",
        figures.interference(found),
    )


def _signal(found: Mapping[str, Any]) -> Picture:
    measured, ceiling = (_mean(found["signal"][name]) for name in ("measured", "ceiling"))
    slope = found["signal"]["slope"]
    known = [load for load in found["loads"] if load > 0]
    if slope is None or max(known) < UNLIKE * min(known):
        growth = " Loads are too alike here to see how it grows with them."
    else:
        growth = f" It grows with the load to the power {slope:.2f}: 1 where texts agree on a direction, 0.5 where not."
    return Picture(
        "signal",
        "An expert's signal against its noise, in one step",
        f"In one step an expert hears {_times(ceiling)} as much from its records as from the noise at the very most, "
        f"if all of them pointed one way (line), and {_times(measured)} from these texts (dots).{growth} Drawn labels "
        "leave little direction in common, so real records lie between dots and line. What is above 1 shows in a "
        "single step; what is below, only over many.",
        figures.signal(found),
    )


def _dilution(found: Mapping[str, Any]) -> Picture:
    experts = len(found["loads"])
    low, high = (experts * pick(found["loads"]) for pick in (min, max))
    noise, floor = found["noise_of_a_number"], found["adam_epsilon"]
    if found["optimizer"] != "adam":
        step = (
            "With the optimizer of this run that makes no difference: its steps are in units of the noise, which "
            "shrinks by the same factor. It counts for plain SGD."
        )
    elif noise > 1e3 * floor:
        step = (
            "With the optimizer of this run that makes no difference: Adam divides by the size of what it is fed, and "
            f"the noise on each number ({small(noise)}) is far above Adam's epsilon ({small(floor)}), so that a "
            "constant factor cancels. It counts for plain SGD."
        )
    else:
        step = (
            f"With Adam's epsilon of {small(floor)}, not far below the noise on each number ({small(noise)}), a "
            "constant factor does not cancel, so the choice counts."
        )
    return Picture(
        "dilution",
        "What is left of an expert's update",
        f"Divided by the whole batch, an expert's update shrinks to its share of the records, about 1/{experts}. "
        f"Divided by the public number B/{experts}, as here, {percent(low, 0)} to {percent(high, 0)} are left. {step}",
        figures.dilution(found),
    )


def _errors(found: Mapping[str, Any]) -> Picture:
    bias, sampling, noise = (_mean(found["errors"][name]) for name in ("bias", "sampling", "noise"))
    check = found["check"]
    largest = "noise" if noise >= sampling else "the draw of the records"
    return Picture(
        "errors",
        "Where the error of an expert's update comes from",
        f"Most of it is {largest}. Dividing by a public number instead of the private count adds "
        f"{_share(bias, bias + sampling + noise)} of it. By formula; {check['repetitions']:,} repetitions on made-up "
        f"gradients with these loads agree within {percent(check['variance'], 0)} of the variance and "
        f"{check['mean']:.1f} standard errors of the mean.",
        figures.errors(found),
    )


def _bounds(found: Mapping[str, Any], routing_profile: Mapping[str, Any]) -> Picture:
    rows = figures.layer_bounds(routing_profile)
    most_even = min(rows, key=lambda row: row.bounds.deficit)
    least = min(rows, key=lambda row: row.bounds.chi2)
    same = (
        "the layer of the largest entropy also has the smallest bias"
        if most_even.layer == least.layer
        else f"the largest entropy is layer {most_even.layer}'s and the smallest bias layer {least.layer}'s"
    )
    return Picture(
        "bounds",
        "Even loads, little bias",
        "For each sparse layer, the dot is the mean squared relative error that uneven loads put on the experts' "
        f"updates. The bar is where it can lie, given the entropy by which the layer was chosen; here {same}.",
        figures.bounds(rows, int(found["layer"])),
    )


def _drift(found: Mapping[str, Any]) -> Picture | None:
    drift = found["drift"]
    if "left_out" in drift:
        return None
    return Picture(
        "drift",
        "Do records keep their expert?",
        f"Training has moved what the router sees by {percent(drift['median'] / drift['norm'], 0)} of its length "
        f"(median word). By the trained model {percent(drift['moved'])} of the texts would get another expert, and "
        f"{percent(drift['missed'])} send no word to theirs any more. The line is the most that could change under "
        "such a move, dots what does under random ones. Owners are fixed before training: the guarantee does not "
        "depend on this.",
        figures.drift(drift),
    )


def _experts(found: Mapping[str, Any]) -> tuple[ExpertRow, ...]:
    columns = (
        found["loads"],
        found["empty"],
        found["empty_drawn"],
        found["signal"]["measured"],
        found["signal"]["ceiling"],
    )
    return tuple(ExpertRow(number, *values) for number, values in enumerate(zip(*columns, strict=True)))


def _notes(found: Mapping[str, Any]) -> tuple[str, ...]:
    bounds = found["bounds"]
    notes = [
        f"Median norm of a record's gradient: shared {found['roles']['shared']['median_norm']:.3g}, experts "
        f"{found['roles']['expert']['median_norm']:.3g}. Role mismatch {found['mismatch']:.2f}: half the sum of the "
        "distances between a role's share of the norm and its share of the numbers; 0 is none, 1 the most.",
        f"Loads of layer {found['layer']}: chi2 {bounds['chi2']:.4g}, entropy {bounds['deficit']:.4g} nats below even. "
        f"It follows that chi2 lies between {bounds['lower']:.4g} and {bounds['tight']:.4g}.",
    ]
    drift = found["drift"]
    if "left_out" in drift:
        return (*notes, f"Drift was not measured. {drift['left_out']}")
    return (
        *notes,
        f"chi2 of these texts by the public model {drift['chi2_before']:.4g}, by the trained one "
        f"{drift['chi2_after']:.4g}.",
    )


def _mean(values: Sequence[float | None]) -> float:
    """Mean of what was measured."""
    known = [value for value in values if value is not None]
    return sum(known) / max(len(known), 1)


def _times(factor: float) -> str:
    return f"{factor:.2g} times"


def _share(part: float, whole: float) -> str:
    if whole <= 0:
        return "nothing"
    share = part / whole
    return f"less than {percent(0.001)}" if share < 0.001 else percent(share)
