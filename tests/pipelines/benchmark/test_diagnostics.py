"""The three failure modes, on figures whose answer is known, and on a small model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raptor.dp.config import TrainingConfig
from raptor.dp.gradients.engine import JointGradients
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import make_trainable
from raptor.pipelines.benchmark.diagnostics import (
    diagnose,
    finite,
    interference,
    load_figures,
    record_norms,
    section,
)
from tests.tiny import tiny_batch, tiny_classifier

LAYER, RECORDS = 1, 24


def records() -> EncodedRecords:
    ids, mask, labels = tiny_batch(RECORDS)
    return EncodedRecords(ids.int(), mask.sum(dim=1), labels, torch.arange(RECORDS) % 4)


def test_interference_is_the_share_of_the_norm_where_both_clip() -> None:
    joint, part = np.array([5.0, 10.0]), np.array([3.0, 6.0])
    found = interference(joint, part, 1.0)
    assert found["mean"] == pytest.approx(0.6)
    assert found["retained"] == pytest.approx(0.6)
    # Only the joint clip binds: C over the joint norm. Neither binds: nothing is lost.
    assert interference(np.array([2.0]), np.array([0.5]), 1.0)["mean"] == pytest.approx(0.5)
    assert interference(np.array([0.8]), np.array([0.5]), 1.0)["mean"] == 1.0
    assert math.isnan(interference(np.array([1.0]), np.array([0.0]), 1.0)["mean"])


def test_load_figures_of_even_and_of_uneven_owners() -> None:
    even = load_figures(np.full(4, 0.25), 8)
    assert (even["entropy_share"], even["chi2"]) == (pytest.approx(1.0), pytest.approx(0.0))
    assert even["empty_rate"] == pytest.approx(math.exp(-2.0))
    one = load_figures(np.array([1.0, 0.0, 0.0, 0.0]), 8)
    assert (one["entropy_share"], one["chi2"], one["smallest_load"]) == (0.0, pytest.approx(3.0), 0.0)


def test_norms_are_those_of_a_loop_over_records() -> None:
    model = tiny_classifier()
    given = records()
    found = record_norms(JointGradients(model, ["head.weight", "head.bias"]), given)
    order = given.lengths.argsort(stable=True)
    for place, row in enumerate(order.tolist()):
        batch = given.take(torch.tensor([row]), torch.device("cpu"))
        model.head.requires_grad_(True)
        logits = model(batch.input_ids, batch.attention_mask)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        parts = torch.autograd.grad(loss, list(model.head.parameters()))
        model.head.requires_grad_(False)
        norm = math.sqrt(sum(float(part.square().sum()) for part in parts))
        assert found[place] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("trainable", ["full", "lora"])
@pytest.mark.parametrize("owners", ["one", "active"])
def test_joint_norms_hold_both_roles(trainable: str, owners: str) -> None:
    lora = {"lora": {"rank": 2}} if trainable == "lora" else {}
    config = TrainingConfig.model_validate(
        {"device": "cpu", "trainable": trainable, "owners": owners, **lora}
    )
    model = tiny_classifier(dtype=torch.float32)
    trained = make_trainable(model, config, LAYER)
    with torch.no_grad():
        for name in trained.expert:
            # A new adapter's second factor is zero, and then so is the gradient of the first.
            parameter = model.get_parameter(name)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    found = diagnose(model, records(), trained, LAYER, config, 1.0)
    assert 0 < found["experts"]["tenth"] <= found["experts"]["mean"] <= 1
    assert 0 < found["shared"]["retained"] <= 1
    assert found["signal_to_noise"] > 0
    assert found["entropy_share"] == pytest.approx(1.0)
    # All experts own alike here, so there is no slope to speak of.
    row = {"dataset": "a", **finite(found)}
    assert row["signal_slope"] is None
    assert "| a | " in "\n".join(section([row]))
