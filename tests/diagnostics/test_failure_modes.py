"""Interference, norms and the whole diagnosis, on figures whose answer is known, and on a small model."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from raptor.accounting.plan import PrivacyPlan
from raptor.diagnostics.failure_modes import diagnose, plain
from raptor.diagnostics.gradients import RecordingRule, expert_blocks, gradient_pass
from raptor.diagnostics.interference import interference, role_mismatch
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import TrainableSet, make_trainable
from raptor.errors import DataError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.roles import expert_parameters
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.training.planning import raptor_plan
from tests.tiny import expert_of, tiny_batch, tiny_classifier

LAYER, RECORDS, EXPERTS = 1, 24, 4


def records() -> EncodedRecords:
    ids, mask, labels = tiny_batch(RECORDS)
    return EncodedRecords(ids.int(), mask.sum(dim=1), labels, torch.arange(RECORDS) % EXPERTS)


def plan_of(training: TrainingConfig) -> PrivacyPlan:
    return raptor_plan(
        {"layers": [LAYER], "experts": EXPERTS},
        {"population": 400, "population_source": "declared", "taken_as_public": [], "source": "embedded"},
        PrivacyConfig(epsilon=4.0, delta=1e-4),
        training,
        EvaluationConfig(),
        EvaluationScope(records_are_public=True, baselines=()),
    )


def perturbed(config: TrainingConfig) -> tuple[MoEClassifier, TrainableSet]:
    """A model with its trainable parameters in place, none of which is at a point without a gradient."""
    model = tiny_classifier(dtype=torch.float32)
    trained = make_trainable(model, config, [LAYER])
    with torch.no_grad():
        for name in trained.expert:
            # A new adapter's second factor is zero, and then so is the gradient of the first.
            parameter = model.get_parameter(name)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    return model, trained


def test_interference_is_the_share_of_the_norm_where_both_clip() -> None:
    found = interference(np.array([5.0, 10.0]), np.array([3.0, 6.0]), 1.0)
    assert (found.mean, found.retained, found.hit) == (pytest.approx(0.6), pytest.approx(0.6), 1.0)
    # Only the joint clip binds: C over the joint norm. Neither binds: nothing is lost.
    assert interference(np.array([2.0]), np.array([0.5]), 1.0).mean == pytest.approx(0.5)
    none = interference(np.array([0.8]), np.array([0.5]), 1.0)
    assert (none.mean, none.hit) == (1.0, 0.0)
    assert math.isnan(interference(np.array([1.0]), np.array([0.0]), 1.0).mean)


def test_roles_that_have_the_norm_of_their_size_do_not_mismatch() -> None:
    norms = {"shared": np.array([3.0, 3.0]), "expert": np.array([1.0, 1.0])}
    assert role_mismatch(norms, {"shared": 300, "expert": 100}) == pytest.approx(0.0)
    assert role_mismatch(norms, {"shared": 0, "expert": 100}) == pytest.approx(0.75)


def test_norms_are_those_of_a_loop_over_records_and_in_their_order() -> None:
    model, given = tiny_classifier(), records()
    found = gradient_pass(JointGradients(model, ["head.weight", "head.bias"]), given, 1.0)
    for row in range(RECORDS):
        batch = given.take(torch.tensor([row]), torch.device("cpu"))
        model.head.requires_grad_(True)
        logits = model(batch.input_ids, batch.attention_mask)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        parts = torch.autograd.grad(loss, list(model.head.parameters()))
        model.head.requires_grad_(False)
        assert found.norms[row] == pytest.approx(
            math.sqrt(sum(float(p.square().sum()) for p in parts)), rel=1e-6
        )


def test_a_recording_rule_clips_as_the_rule_does_and_counts_what_it_cuts() -> None:
    squared = torch.tensor([0.25, 1.0, 4.0, torch.inf, torch.nan])
    rule = RecordingRule(1.5)
    assert torch.equal(rule.factors(squared), ClippingRule(1.5).factors(squared))
    assert rule.cut == 3
    assert rule.sensitivity == ClippingRule(1.5).sensitivity


def test_blocks_hold_what_their_experts_got() -> None:
    model, given = tiny_classifier(), records()
    names = expert_parameters(model, [LAYER])
    total = gradient_pass(OwnerExpertGradients(model, LAYER, parameters=names), given, 0.5).total
    squares, sizes = expert_blocks(model, LAYER, total)
    for expert in range(EXPERTS):
        own = [value for name, value in total.items() if expert_of(name) == expert]
        assert squares[expert] == pytest.approx(sum(float(value.square().sum()) for value in own))
        assert sizes[expert] == sum(value.numel() for value in own)


def test_users_are_refused() -> None:
    given = records()
    grouped = EncodedRecords(*given.tensors(), groups=torch.arange(RECORDS)[:, None])
    with pytest.raises(DataError, match="their own units"):
        gradient_pass(JointGradients(tiny_classifier(), ["head.weight"]), grouped, 1.0)
    with pytest.raises(DataError, match="without users"):
        grouped.first(2)


@pytest.mark.parametrize("trainable", ["full", "lora"])
@pytest.mark.parametrize("owners", ["one", "active"])
def test_a_diagnosis_holds_both_roles(trainable: str, owners: str) -> None:
    lora = {"lora": {"rank": 2}} if trainable == "lora" else {}
    config = TrainingConfig.model_validate(
        {"device": "cpu", "trainable": trainable, "owners": owners, "batch_size": 40, "cycles": 2, **lora}
    )
    model, trained = perturbed(config)
    loads = np.full(EXPERTS, 1 / EXPERTS)
    found = diagnose(model, records(), loads, trained, config, plan_of(config))
    expert, shared = found.roles["expert"], found.roles["shared"]
    assert 0 < expert.interference.tenth <= expert.interference.mean <= 1
    assert 0 < shared.interference.retained <= 1
    assert expert.ratios[0] <= expert.ratios[10] <= expert.ratios[-1] <= 1 + 1e-6
    # Owners are given here, not routed to: one whose records send it no token has no signal.
    assert found.signal.measured.max() > 0
    # The spread of 24 records may pass for a common direction a little longer than the ceiling.
    assert (found.signal.aligned <= 1.1 * found.signal.ceiling).all()
    assert found.bounds.chi2 == pytest.approx(0.0)
    assert found.check.variance < 0.15
    assert found.numbers == trained.count(trained.expert) / EXPERTS
    written = json.loads(json.dumps(plain(found), allow_nan=False))
    # All experts own alike here, so there is no slope to speak of.
    assert written["signal"]["slope"] is None
    assert len(written["errors"]["noise"]) == EXPERTS
