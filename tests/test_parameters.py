"""Every parameter is known and valid, or the message says which is not and what was meant."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from raptor.errors import ParameterError
from raptor.parameters import MODELS, load_models, validate


class Stream(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sigma: float = Field(gt=0, allow_inf_nan=False)


class Training(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(gt=0)
    population: int | Literal["auto"] = "auto"
    layers: list[int] | Literal["auto"] = "auto"
    expert: Stream | None = None

    @model_validator(mode="after")
    def _few_steps(self) -> Training:
        if self.steps > 1000:
            raise ValueError("training.steps is above 1000; use fewer steps.")
        return self


class Selection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    words: int = 3


KEYS: dict[str, type[BaseModel]] = {"training": Training, "selection": Selection}


def told(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        validate(raw, KEYS)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_valid_parameters_are_typed_and_completed() -> None:
    valid = validate({"training": {"steps": "7", "expert": {"sigma": 1}}}, KEYS)
    assert valid == {"training": Training(steps=7, expert=Stream(sigma=1.0)), "selection": Selection()}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"training": {"steps": 1, "stesp": 3}}, "training.stesp is unknown; did you mean training.steps?"),
        (
            {"training": {"steps": 1, "expert": {"sigma": 1, "sgima": 1}}},
            "training.expert.sgima is unknown; did you mean training.expert.sigma?",
        ),
        (
            {"training": {"steps": 1}, "trainig": {"steps": 2}},
            "trainig.steps is unknown; did you mean training.steps?",
        ),
        ({"training": {"steps": 1}, "sigma": 2}, "sigma is unknown; did you mean training.expert.sigma?"),
        ({"training": {"steps": 1}, "qqqq": {"zzzz": 2}}, "qqqq.zzzz is unknown"),
        ({"training": {}}, "training.steps is missing. Set it in conf or with --params training.steps=VALUE"),
        ({}, "training.steps is missing. Set it in conf or with --params training.steps=VALUE"),
        ({"training": {"steps": 0}}, "training.steps = 0: input should be greater than 0"),
        (
            {"training": {"steps": 1, "expert": {"sigma": math.nan}}},
            "training.expert.sigma = nan: input should be",
        ),
        ({"training": {"steps": 2000}}, "training: training.steps is above 1000; use fewer steps"),
        ({"training": 5}, "training = 5: input should be a valid dictionary"),
        ({"training": None}, "training = None: input should be a valid dictionary"),
    ],
)
def test_each_mistake_has_its_message(raw: dict[str, Any], message: str) -> None:
    lines = told(raw)
    assert len(lines) == 1
    assert lines[0].startswith(message)


def test_a_union_is_one_line_and_all_mistakes_are_told_at_once() -> None:
    lines = told({"training": {"steps": -1, "population": "some", "layers": ["a", "b"], "x": 1}})
    assert len(lines) == 4
    assert "integer" in lines[1]
    assert "'auto'" in lines[1]
    assert lines[2].startswith("training.layers")


def test_long_values_are_cut() -> None:
    assert all(len(line) < 300 for line in told({"training": {"steps": "x" * 5000}}))


def test_every_stage_has_a_model_that_forbids_unknown_keys() -> None:
    models = load_models(MODELS)
    assert set(models) == set(MODELS)
    for model in models.values():
        assert model.model_config.get("extra") == "forbid"
        assert model.model_config.get("frozen") is True
