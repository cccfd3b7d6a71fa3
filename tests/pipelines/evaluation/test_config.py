"""What is evaluated, and what that reserves, is settled before anything is trained."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from raptor.errors import ParameterError
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_noise, evaluation_scope


def test_embedded_records_are_public_and_need_no_release() -> None:
    scope = evaluation_scope(EvaluationConfig(), "embedded")
    assert scope.records_are_public
    assert scope.baselines == ("largest_class", "base_model", "nonprivate", "monolithic")
    assert scope.models == ("raptor", "base_model", "nonprivate", "monolithic")
    assert scope.releases == 0


def test_own_records_are_private_and_reserve_two_tables_a_model() -> None:
    scope = evaluation_scope(EvaluationConfig(), "reviews.csv")
    assert not scope.records_are_public
    assert scope.baselines == ("largest_class", "base_model")
    assert scope.releases == 4
    alone = evaluation_scope(EvaluationConfig(baselines=("largest_class",)), "reviews.csv")
    assert alone.releases == 2


def test_the_noise_follows_the_budget_unless_a_number_is_given() -> None:
    assert EvaluationConfig().noise_for(1.0) == evaluation_noise(1.0) == 30.0
    assert EvaluationConfig().noise_for(4.0) == 7.5
    assert EvaluationConfig(noise_multiplier=12).noise_for(4.0) == 12.0


@pytest.mark.parametrize("name", ["nonprivate", "monolithic"])
def test_baselines_that_need_unprotected_records_are_refused_by_name(name: str) -> None:
    config = EvaluationConfig(baselines=("base_model", name))
    with pytest.raises(ParameterError, match=rf"{name}.*records_are_public=true"):
        evaluation_scope(config, "reviews.csv")
    declared = config.model_copy(update={"records_are_public": True})
    assert evaluation_scope(declared, "reviews.csv").baselines == ("base_model", name)


def test_the_operator_may_treat_the_embedded_records_as_private() -> None:
    scope = evaluation_scope(EvaluationConfig(records_are_public=False), "embedded")
    assert not scope.records_are_public
    assert scope.releases == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"baselines": ("nonprivat",)},
        {"records_are_public": "maybe"},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": True},
        {"noise_multiplier": "little"},
        {"noise_multiplier": float("nan")},
        {"noise_multiplier": float("inf")},
        {"calibration_bins": 1},
        {"bins": 10},
    ],
)
def test_bad_parameters_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EvaluationConfig(**bad)
