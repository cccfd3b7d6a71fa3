"""Values that carry the guarantee refuse what is not a guarantee."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from raptor.accounting.types import (
    Adjacency,
    Event,
    EventShape,
    Mode,
    Release,
    Sensitivity,
    Unit,
    generator_mode,
)
from raptor.errors import ParameterError

BAD_NUMBERS = [0, -1.0, math.nan, math.inf, -math.inf, True, "1", None]


def release(**changes) -> Release:
    values = {
        "stream": "shared",
        "step": 0,
        "rate": 0.01,
        "noise_multiplier": 1.1,
        "sensitivity": Sensitivity(0.5, Adjacency.ADD_REMOVE, Unit.RECORD),
        "denominator": 512,
        "dimension": 1000,
        "generator": "secure:aes-256-ctr",
    }
    return Release(**{**values, **changes})


@pytest.mark.parametrize("value", [*BAD_NUMBERS, 1.0000001])
def test_rate_must_be_a_probability_above_zero(value) -> None:
    with pytest.raises(ParameterError, match="rate of an event"):
        Event(value, 1.0, 1)
    with pytest.raises(ParameterError, match="rate of an event to calibrate"):
        EventShape(value, 1)


@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_noise_and_weight_must_be_positive_numbers(value) -> None:
    with pytest.raises(ParameterError, match="noise_multiplier of an event"):
        Event(0.1, value, 1)
    with pytest.raises(ParameterError, match="weight"):
        EventShape(0.1, 1, value)
    with pytest.raises(ParameterError, match="norm of a sensitivity"):
        Sensitivity(value, Adjacency.ADD_REMOVE, Unit.RECORD)


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, math.nan, True, "3", None])
def test_steps_must_be_a_whole_number(value) -> None:
    with pytest.raises(ParameterError, match="steps of an event"):
        Event(0.1, 1.0, value)


def test_numbers_of_numpy_become_plain_ones() -> None:
    event = Event(np.float64(0.25), np.float32(2.0), np.int64(3))
    assert type(event.rate) is float
    assert type(event.noise_multiplier) is float
    assert type(event.steps) is int
    with pytest.raises(ParameterError):
        Event(0.1, 1.0, np.bool_(True))


@pytest.mark.parametrize(
    "field", ["rate", "noise_multiplier", "denominator", "dimension", "step", "generator"]
)
def test_a_release_names_the_field_and_the_place(field) -> None:
    bad = {"step": -1, "generator": "mersenne"}.get(field, 0)
    with pytest.raises(ParameterError, match=f"{field}.* of .*stream shared"):
        release(**{field: bad})


def test_a_release_takes_its_sensitivity_from_the_clipping_code() -> None:
    with pytest.raises(ParameterError, match="clipping code"):
        release(sensitivity=1.0)


def test_noise_deviation_is_multiplier_times_norm() -> None:
    assert release().noise_deviation == pytest.approx(0.55)


def test_distance_is_doubled_when_a_record_is_replaced() -> None:
    assert Sensitivity(0.5, Adjacency.ADD_REMOVE, Unit.RECORD).distance == 0.5
    assert Sensitivity(0.5, Adjacency.REPLACE_ONE, Unit.RECORD).distance == 1.0


def test_words_become_members_and_unknown_ones_are_listed() -> None:
    assert Sensitivity(1.0, "replace-one", "user").adjacency is Adjacency.REPLACE_ONE
    with pytest.raises(ParameterError, match="add-remove, replace-one"):
        Sensitivity(1.0, "swap", Unit.RECORD)


def test_a_release_survives_json() -> None:
    first = release(denominator=64.5)
    again = Release.from_json(json.loads(json.dumps(first.to_json(), allow_nan=False)))
    assert again == first


@pytest.mark.parametrize("change", ["missing", "unknown", "nan"])
def test_a_release_from_json_must_be_whole(change) -> None:
    data = release().to_json()
    if change == "missing":
        del data["denominator"]
    elif change == "unknown":
        data["loss"] = 1.0
    else:
        data["noise_multiplier"] = math.nan
    with pytest.raises(ParameterError, match=r"denominator|loss|noise_multiplier"):
        Release.from_json(data, "line 3")


def test_modes_of_generators() -> None:
    assert generator_mode("seeded:aes-256-ctr") is Mode.SEEDED
    assert generator_mode("secure:aes-256-ctr/os-entropy") is Mode.SECURE
    with pytest.raises(ParameterError, match="secure, fast, seeded"):
        generator_mode("aes-256-ctr")
