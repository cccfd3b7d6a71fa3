"""The failure modes in words and pictures: readings carry the figures, and say where something was not measured."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from raptor.reporting.diagnostic_figures import layer_bounds
from raptor.reporting.diagnostics import OFF, Diagnosis, read_diagnosis
from tests.reporting.samples import SAMPLE_PROFILE, sample_failure_modes


def readings(**changes: Any) -> dict[str, str]:
    found = read_diagnosis(sample_failure_modes(**changes), SAMPLE_PROFILE)
    return {picture.name: picture.reading for picture in found.pictures}


def test_each_picture_has_a_reading_with_its_figures() -> None:
    found = readings()
    assert list(found) == ["interference", "signal", "dilution", "errors", "bounds", "drift"]
    assert "keep 66\N{NO-BREAK SPACE}% of what a limit of their own leaves" in found["interference"]
    assert "0.61 times" in found["signal"]
    assert "Loads are too alike here" in found["signal"]
    assert "96\N{NO-BREAK SPACE}% to 104\N{NO-BREAK SPACE}%" in found["dilution"]
    assert "Most of it is noise" in found["errors"]
    assert "less than 0.1\N{NO-BREAK SPACE}%" in found["errors"]
    assert "the layer of the largest entropy also has the smallest bias" in found["bounds"]
    assert "moved what the router sees by 8\N{NO-BREAK SPACE}%" in found["drift"]


def test_the_denominator_is_called_a_no_op_only_where_it_is_one() -> None:
    assert "makes no difference" in readings()["dilution"]
    assert "in units of the noise" in readings(optimizer="sgd", adam_epsilon=1e-3)["dilution"]
    large = readings(adam_epsilon=1e-3)["dilution"]
    assert "makes no difference" not in large
    assert "the choice counts" in large


def test_what_was_not_measured_is_left_out_and_said() -> None:
    assert read_diagnosis({"enabled": False}, SAMPLE_PROFILE) == Diagnosis(OFF)
    assert read_diagnosis({"enabled": True, "left_out": "No experts."}, SAMPLE_PROFILE).text == "No experts."
    found = read_diagnosis(sample_failure_modes(drift={"left_out": "No margins."}), SAMPLE_PROFILE)
    assert "drift" not in {picture.name for picture in found.pictures}
    assert "Drift was not measured. No margins." in found.notes


def test_an_expert_without_a_text_has_no_dot_and_stops_nothing() -> None:
    uneven = copy.deepcopy(sample_failure_modes())
    uneven["loads"] = [0.5, 0.3, 0.2, 0.0]
    uneven["signal"] = {
        "measured": [0.1, 0.08, 0.07, 0.0],
        "aligned": [0.0] * 4,
        "ceiling": [1.0, 0.6, 0.4, 0.0],
        "slope": None,
    }
    uneven["errors"]["bias"][3] = None
    uneven["empty"][3] = 1.0
    found = read_diagnosis(uneven, SAMPLE_PROFILE)
    assert len(found.pictures) == 6
    assert found.experts[3].empty == 1.0


def test_layers_are_bounded_by_their_entropy() -> None:
    rows = {row.layer: row.bounds for row in layer_bounds(SAMPLE_PROFILE)}
    assert rows[3].chi2 < rows[1].chi2 < rows[5].chi2
    for bounds in rows.values():
        assert bounds.lower <= bounds.chi2 <= min(bounds.tight, bounds.upper)


@pytest.mark.parametrize("slope", [None, 0.9])
def test_a_slope_is_told_where_there_is_one(slope: float | None) -> None:
    signal = {**sample_failure_modes()["signal"], "slope": slope}
    reading = readings(signal=signal, loads=[0.5, 0.3, 0.15, 0.05])["signal"]
    assert ("to the power" in reading) is (slope is not None)
