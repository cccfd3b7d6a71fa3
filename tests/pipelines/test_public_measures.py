"""What the mechanism takes from public records: norms, step sizes, and where they stand in the plan."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from raptor.accounting.plan import read_plan
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.public_measures import load_steps, surrogate_labels
from raptor.dp.records import EncodedRecords
from raptor.errors import BudgetError, DataError, ParameterError
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.evaluation.config import EvaluationConfig
from raptor.pipelines.training.measured import NOTHING, Measured, measure
from raptor.pipelines.training.nodes import measure_public, plan_privacy
from raptor.pipelines.training.planning import require_planned
from tests.pipelines.directories import save_base_model

LAYER_PLAN = {"layers": [0], "experts": 4}
CONSTANTS = {
    "population": 400,
    "population_source": "declared",
    "num_classes": 3,
    "source": "embedded",
    "taken_as_public": ["n"],
}
PRIVACY = PrivacyConfig(epsilon=4.0, delta=1e-4)
AUTO = {
    "device": "cpu",
    "batch_size": 40,
    "cycles": 2,
    "trainable": "lora",
    "lora": {"rank": 2},
    "shared": {"clipping_norm": "auto"},
    "expert": {"clipping_norm": "auto"},
    "expert_norms": "auto",
    "expert_steps": "public",
}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    generator = np.random.default_rng(1)
    return [" ".join(generator.choice(list("abcdefghijklmnop"), 6)) for _ in range(160)]


@pytest.fixture(scope="module")
def measured(base_model: Path, texts: list[str]) -> Measured:
    return measure(base_model, texts, [0], 3, TrainingConfig.model_validate(AUTO), "weight", 12)


def planned(base_model: Path, training: TrainingConfig, measured: Measured | None):
    measures = None if measured is None else measured.to_json()
    return read_plan(
        plan_privacy(base_model, LAYER_PLAN, CONSTANTS, PRIVACY, training, EvaluationConfig(), measures)
    )


def test_measures_are_a_function_of_public_things_alone(
    base_model: Path, texts: list[str], measured: Measured
) -> None:
    training = TrainingConfig.model_validate(AUTO)
    torch.manual_seed(99)
    again = measure_public(base_model, {"text": texts}, LAYER_PLAN, CONSTANTS, training, "weight", 12)
    assert Measured.from_json(again) == measured
    assert 0 < measured.shared < math.inf
    assert 0 < measured.expert < math.inf
    assert len(measured.experts) == len(measured.steps) == 4
    lower = measure(
        base_model, texts, [0], 3, training.model_copy(update={"clipping_quantile": 0.1}), "weight", 12
    )
    assert lower.shared < measured.shared
    assert lower.expert < measured.expert
    # An expert with too few public records has the norm of all.
    few = measure(base_model, texts[:30], [0], 3, training, "weight", 12)
    assert few.expert in few.experts


def test_nothing_is_measured_where_nothing_is_asked(base_model: Path) -> None:
    plain = TrainingConfig.model_validate({"device": "cpu"})
    assert measure_public(base_model, None, LAYER_PLAN, CONSTANTS, plain, "weight", 12) == {}
    assert measure(base_model, (), [0], 3, plain, "weight", 12) is NOTHING


def test_the_plan_states_what_was_measured(base_model: Path, measured: Measured) -> None:
    training = TrainingConfig.model_validate(AUTO)
    plan = planned(base_model, training, measured)
    assert plan.stream(SHARED).clipping_norm == measured.shared
    expert = plan.stream(EXPERT)
    assert expert.clipping_norm == measured.expert
    assert [norm * measured.expert for norm in expert.block_norms] == pytest.approx(measured.experts)
    assert expert.block_steps == measured.steps
    require_planned(plan, training)
    # Noise multipliers are relative to the norms: the budget does not know them.
    common = planned(base_model, TrainingConfig.model_validate({**AUTO, "expert_norms": "common"}), measured)
    assert [s.noise_multiplier for s in plan.streams] == [s.noise_multiplier for s in common.streams]
    assert Measured.of_plan(plan).settle(training).shared.norm == measured.shared
    for changed, words in (
        ({"expert_norms": "common"}, "expert_norms"),
        ({"expert_norms": [1, 2, 3, 4]}, "expert_norms"),
        ({"shared": {"clipping_norm": 0.1}}, r"shared\.clipping_norm"),
    ):
        with pytest.raises(BudgetError, match=words):
            require_planned(plan, TrainingConfig.model_validate({**AUTO, **changed}))


def test_norms_of_experts_may_be_given(base_model: Path) -> None:
    given = {**AUTO, "shared": {}, "expert": {"clipping_norm": 2.0}, "expert_norms": [1.0, 2.0, 3.0, 4.0]}
    training = TrainingConfig.model_validate({**given, "expert_steps": "same"})
    plan = planned(base_model, training, None)
    assert plan.expert_norms == (0.5, 1.0, 1.5, 2.0)
    require_planned(plan, training)
    wrong = TrainingConfig.model_validate({**given, "expert_steps": "same", "expert_norms": [1.0, 2.0]})
    with pytest.raises(ParameterError, match="block_norms of stream expert of the privacy plan must be 4"):
        planned(base_model, wrong, None)


def test_what_was_not_measured_is_refused(base_model: Path) -> None:
    for changed, words in (
        ({}, "clipping_norm is auto here"),
        ({"shared": {}, "expert": {}}, "training.expert_norms=auto and training.expert_steps=public need"),
        ({"shared": {}, "expert": {}, "expert_norms": "common"}, "need public records"),
    ):
        with pytest.raises(ParameterError, match=words):
            planned(base_model, TrainingConfig.model_validate({**AUTO, **changed}), None)
    with pytest.raises(ParameterError, match="prompts with completions"):
        measure_public(
            base_model,
            {"text": []},
            LAYER_PLAN,
            {**CONSTANTS, "num_classes": 0},
            TrainingConfig.model_validate(AUTO),
            "weight",
            12,
        )
    with pytest.raises(DataError, match="public corpus is empty"):
        measure(base_model, (), [0], 3, TrainingConfig.model_validate(AUTO), "weight", 12)
    for wrong in ("automatic", 0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="clipping_norm"):
            TrainingConfig.model_validate({"shared": {"clipping_norm": wrong}})


def test_surrogate_labels_use_all_classes_and_leave_the_model_alone(base_model: Path) -> None:
    model = MoEClassifier.from_encoder(base_model, 3)
    ids = torch.randint(3, 20, (90, 8), generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros(90, dtype=torch.int64)
    records = EncodedRecords(ids.int(), torch.full((90,), 8), zeros, zeros)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    labels = surrogate_labels(model, records)
    assert set(labels.tolist()) == {0, 1, 2}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(labels, surrogate_labels(model, records))


@pytest.mark.parametrize("signal", [0.1, 1.0, 10.0])
def test_steps_by_load_are_those_of_the_least_squared_error(signal: float) -> None:
    counts = [10, 40, 400, 3, 0, 90, 160, 97]
    found = load_steps(counts, signal)
    assert load_steps([25] * 8, signal) == pytest.approx([1.0] * 8)
    shares = [8 * (count + 1) / (sum(counts) + 8) for count in counts]
    factors = np.linspace(0.0, 1.0, 100_001)
    for share, weight in zip(shares, found, strict=True):
        # A mean of size sqrt(s) x with noise 1: E (w (mean + noise) - mean)^2.
        mean = signal * share**2
        best = factors[((factors - 1.0) ** 2 * mean + factors**2).argmin()]
        assert weight * signal / (1 + signal) == pytest.approx(best, abs=2e-5)
        assert 0 < weight < (1 + signal) / signal
    assert sorted(found) == [weight for _, weight in sorted(zip(counts, found, strict=True))]
