"""Residual weights: what a record's expert gradient is multiplied by before it is clipped."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.gradients.engine import JointGradients
from raptor.dp.gradients.losses import causal_loss, classification_loss, residual_weights
from raptor.dp.isolation import EngineSpec, check_isolation
from raptor.dp.plan import EXPERT
from raptor.dp.records import IGNORED, Batch
from raptor.dp.trainable import TrainableSet, make_trainable
from raptor.errors import ModelError
from raptor.moe.adapters import expert_updates_off
from raptor.moe.classifier import MoEClassifier
from raptor.moe.lora import LoRAExperts
from raptor.moe.routing import record_votes
from tests.dp.float64 import keep_float64
from tests.tiny import tiny_batch, tiny_classifier

LAYER, CLASSES = 1, 3
CONFIG = {
    "device": "cpu",
    "batch_size": 6,
    "cycles": 1,
    "trainable": "lora",
    "lora": {"rank": 2},
    "residual_weights": True,
}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def prepared(owners: str = "one") -> tuple[MoEClassifier, TrainableSet, TrainingConfig]:
    """A model that was trained a little: its head and its adapters are not zero any more."""
    config = TrainingConfig.model_validate({**CONFIG, "owners": owners})
    model = tiny_classifier()
    trainable = make_trainable(model, config, [LAYER])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name in trainable.of("protected"):
            value = model.get_parameter(name)
            value.add_(torch.randn(value.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model, trainable, config


def batch_of(model: MoEClassifier, records: int = 4) -> Batch:
    ids, mask, labels = tiny_batch(records, tokens=10, padded=False)
    votes = record_votes(model.encoder, ids, mask)[LAYER]
    return Batch(ids, mask, labels, votes.argmax(dim=1))


def expert_engine(model: MoEClassifier, trainable: TrainableSet, config: TrainingConfig):
    spec = next(spec for spec in engine_specs(trainable, [LAYER], config) if spec.name == EXPERT)
    return spec, spec.build(model)


def by_hand(model: MoEClassifier, batch: Batch) -> torch.Tensor:
    """1 - softmax of a copy whose experts' second factors are zero."""
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, LoRAExperts):
                module.first_lora_b.zero_()
                module.second_lora_b.zero_()
        shares = plain(batch.input_ids, batch.attention_mask).softmax(dim=1)
    return 1.0 - shares[torch.arange(len(batch)), batch.labels]


def test_a_weight_is_what_the_model_without_its_experts_updates_leaves() -> None:
    model, _, _ = prepared()
    batch = batch_of(model)
    found = residual_weights(model, batch)
    assert torch.allclose(found, by_hand(model, batch), rtol=1e-9)
    with_updates = 1.0 - model(batch.input_ids, batch.attention_mask).softmax(dim=1)[range(4), batch.labels]
    assert not torch.allclose(found, with_updates.detach(), rtol=1e-3)
    # Alone, in another company: a weight is the record's own.
    for row in range(4):
        assert torch.allclose(residual_weights(model, batch.part(row, row + 1)), found[row : row + 1])


@pytest.mark.parametrize("owners", ["one", "active"])
@pytest.mark.parametrize("norm", [1e-2, 1e9])
def test_the_sum_is_that_of_weighted_gradients_clipped_one_by_one(owners: str, norm: float) -> None:
    model, trainable, config = prepared(owners)
    batch = batch_of(model)
    _, engine = expert_engine(model, trainable, config)
    found = engine.clipped_sum(batch, ClippingRule(norm))
    weights = by_hand(model, batch)
    _, plain = expert_engine(model, trainable, config.model_copy(update={"residual_weights": False}))
    expected = {name: torch.zeros_like(value) for name, value in found.tensors.items()}
    for row in range(len(batch)):
        # The engine without weights has its own tests against autograd.
        single = plain.clipped_sum(batch.part(row, row + 1), ClippingRule(1e12)).tensors
        weighted = {name: weights[row] * value for name, value in single.items()}
        length = torch.cat([value.flatten() for value in weighted.values()]).norm()
        for name, value in weighted.items():
            expected[name] += value * min(1.0, norm * (1 - 2**-12) / float(length))
    whole = torch.cat([value.flatten() for value in expected.values()]).norm()
    for name, value in expected.items():
        assert float((found.tensors[name] - value).norm() / whole) < 1e-6


def test_one_record_moves_the_sum_by_at_most_the_norm() -> None:
    model, trainable, config = prepared()
    batch = batch_of(model)
    _, engine = expert_engine(model, trainable, config)
    rule = ClippingRule(1e-3)
    whole, rest = engine.clipped_sum(batch, rule), engine.clipped_sum(batch.part(1, 4), rule)
    assert whole.sensitivity.norm == 1e-3
    moved = torch.cat([(whole.tensors[name] - rest.tensors[name]).flatten() for name in rest.tensors]).norm()
    assert 0.999e-3 < moved <= 1e-3


def test_the_gate_passes_weights_of_single_records_and_refuses_weights_of_a_batch() -> None:
    model, trainable, config = prepared()
    specs = engine_specs(trainable, [LAYER], config)
    assert check_isolation(model, specs, classes=CLASSES).groups == ("shared", "expert")

    def relative(model, batch):
        weights = residual_weights(model, batch)
        return weights / weights.mean()

    for build_with, stated in ((relative, residual_weights), (relative, relative), (None, residual_weights)):
        faulty = EngineSpec(
            EXPERT,
            lambda model, kept=build_with: JointGradients(model, trainable.expert, weights=kept),
            weights=stated,
        )
        with pytest.raises(ModelError, match="Isolation gate, expert parameters"):
            check_isolation(model, [faulty], classes=CLASSES)


def test_rows_of_a_user_are_weighted_one_by_one() -> None:
    model, _, _ = prepared()
    batch = batch_of(model)
    labels = batch.labels.clone()
    labels[3] = IGNORED
    users = Batch(batch.input_ids, batch.attention_mask, labels, torch.tensor([0, 1]), members=2)
    weights = residual_weights(model, users)
    losses = classification_loss(model, replace(users, weights=weights))
    single = functional.cross_entropy(model(batch.input_ids, batch.attention_mask), labels, reduction="none")
    assert torch.allclose(losses, torch.stack([(weights * single)[:2].mean(), (weights * single)[2]]))
    assert torch.isfinite(weights).all()
    assert replace(users, weights=weights).part(1, 2).weights.tolist() == weights[2:].tolist()


def test_updates_are_switched_on_again_whatever_happens() -> None:
    model, _, _ = prepared()
    batch = batch_of(model)
    before = model(batch.input_ids, batch.attention_mask)
    with pytest.raises(ZeroDivisionError), expert_updates_off(model):
        raise ZeroDivisionError
    assert torch.equal(model(batch.input_ids, batch.attention_mask), before)
    with (
        pytest.raises(ModelError, match="The experts have no adapters"),
        expert_updates_off(tiny_classifier()),
    ):
        pass


def test_what_has_no_residual_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training\.residual_weights asks for the model without"):
        TrainingConfig.model_validate({**CONFIG, "trainable": "full", "lora": {}})
    model, trainable, _ = prepared()
    with pytest.raises(ModelError, match="classification head only"):
        JointGradients(model, trainable.expert, loss=causal_loss, weights=residual_weights)
