"""Matched scope B through Opacus itself: a head on features that stay as they are is what Opacus covers exactly."""

from __future__ import annotations

import pytest
import torch

from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.records import Batch
from raptor.dp.trainable import make_trainable
from tests.tiny import tiny_batch, tiny_classifier

LAYER = 1


@pytest.mark.parametrize("norm", [1e-2, 1e3])
@pytest.mark.filterwarnings("ignore")
def test_clipped_sums_of_the_head_are_those_of_opacus(norm: float) -> None:
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="needs the extra bench")
    optimizers = pytest.importorskip("opacus.optimizers", reason="needs the extra bench")
    model = tiny_classifier()
    config = TrainingConfig.model_validate(
        {"device": "cpu", "trainable": "lora", "lora": {"rank": 2}, "frozen": ["*SelfAttention*"]}
    )
    trainable = make_trainable(model, config, [LAYER])
    (spec,) = engine_specs(trainable, [LAYER], config, "shared_only")
    engine = spec.build(model)
    assert engine.parameters == ("head.weight", "head.bias")
    ids, mask, labels = tiny_batch(records=9)
    ours = engine.clipped_sum(Batch(ids, mask, labels, torch.zeros(9, dtype=torch.int64)), ClippingRule(norm))

    features: list[torch.Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _module, given: features.append(given[0].detach()))
    with torch.no_grad():
        model(ids, mask)
    handle.remove()
    # Opacus keeps activations of modules in training mode only.
    head = model.head.requires_grad_(True).train()
    wrapped = grad_sample.GradSampleModule(head, loss_reduction="sum")
    optimizer = optimizers.DPOptimizer(
        torch.optim.SGD(head.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=norm,
        expected_batch_size=9,
        loss_reduction="sum",
    )
    torch.nn.functional.cross_entropy(wrapped(features[0]), labels, reduction="sum").backward()
    optimizer.clip_and_accumulate()
    for name, parameter in head.named_parameters():
        # Each keeps a little below the norm: Opacus by adding 1e-6 to it, this package by a share of 2^-12.
        assert torch.allclose(ours.tensors[f"head.{name}"], parameter.summed_grad, rtol=1e-3, atol=1e-9)
