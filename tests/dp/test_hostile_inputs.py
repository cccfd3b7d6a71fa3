"""Values, callers and modules that would make a norm too small, leave something behind, or tell a secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients import kernels
from raptor.dp.gradients.engine import JointGradients
from raptor.dp.gradients.fused import FusedRms, is_rms_norm
from raptor.dp.gradients.losses import classification_loss
from raptor.dp.isolation import EngineSpec, check_isolation
from raptor.errors import ModelError
from raptor.moe.roles import shared_parameters
from tests.dp.engines import MAIN_ROLES, assert_same, engine_for, make_batch, total_norm
from tests.families import family_classifier


def exact_norms(activations: Tensor, gradients: Tensor) -> Tensor:
    return torch.bmm(gradients.double().transpose(1, 2), activations.double()).flatten(1).norm(dim=1)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("way", ["ghost", "direct", "auto"])
@pytest.mark.parametrize(("large", "small"), [(1e18, 1e-23), (1e-23, 1e18)])
def test_squares_that_are_too_small_for_float32(rows: int, way: Any, large: float, small: float) -> None:
    activations, gradients = torch.full((2, rows, 256), large), torch.full((2, rows, 256), small)
    found = kernels.linear_squared_norms(activations, gradients, way).double().sqrt()
    assert bool((found >= 0.999 * exact_norms(activations, gradients)).all())


@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-22, 1e-30])
def test_no_record_exceeds_a_tiny_clipping_norm(role: str, dtype: torch.dtype, scale: float) -> None:
    model = family_classifier("olmoe").to(dtype)
    batch = make_batch(model, role, records=3, tokens=5)
    engine = engine_for(model, role, loss=lambda model, batch: scale * classification_loss(model, batch))
    for norm in (1e-8, 1e-20, 1e-24, 1e-26, 1e-38, 1e-42):
        for record in range(3):
            found = engine.clipped_sum(batch.part(record, record + 1), ClippingRule(norm))
            assert total_norm(found.tensors) <= norm


def test_a_transposed_square_matrix_is_another_matrix() -> None:
    values = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    grams, turned = kernels.Grams(), values.transpose(1, 2)
    grams.of(values)
    for kept, fresh in zip(grams.of(turned), kernels.Grams().of(turned), strict=True):
        assert torch.equal(kept, fresh)


@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("way", ["ghost", "direct"])
def test_what_the_caller_allows_to_products_does_not_reach_norms(role: str, way: Any) -> None:
    model = family_classifier("olmoe").float()
    batch = make_batch(model, role, records=5, tokens=6)
    engine, rule = engine_for(model, role, way=way), ClippingRule(1e-3)
    expected = engine.clipped_sum(batch, rule)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = engine.clipped_sum(batch, rule)
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert {value.dtype for value in found.tensors.values()} == {torch.float32}
    assert_same(found, expected)


@pytest.mark.parametrize("role", MAIN_ROLES)
def test_a_parameter_that_asks_for_a_gradient_again_gets_none(role: str) -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, role, records=5, tokens=6)
    engine, rule = engine_for(model, role), ClippingRule(1e-3)
    expected = engine.clipped_sum(batch, rule)
    model.requires_grad_(True)
    assert_same(engine.clipped_sum(batch, rule), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_experts_whose_parameters_were_replaced_are_refused() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "expert", records=5, tokens=6)
    engine = engine_for(model, "expert")
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(ModelError, match="replaced after the engine was made"):
        engine.clipped_sum(batch, ClippingRule(1.0))
    assert all("forward" not in vars(module) for module in model.modules())
    engine_for(model, "expert").clipped_sum(batch, ClippingRule(1.0))


def test_inference_mode_is_refused() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", records=5, tokens=6)
    engine = engine_for(model, "shared")
    with torch.inference_mode(), pytest.raises(ModelError, match="inference_mode"):
        engine.clipped_sum(batch, ClippingRule(1.0))


@pytest.mark.parametrize("part", ["labels", "input_ids"])
def test_an_error_does_not_tell_the_label_of_a_record(part: str) -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", records=5, tokens=6)
    getattr(batch, part)[0] = 7654
    with pytest.raises(ModelError, match="token or label") as refused:
        engine_for(model, "shared").clipped_sum(batch, ClippingRule(1.0))
    assert "7654" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert all("forward" not in vars(module) for module in model.modules())


def test_an_error_does_not_tell_how_many_records_were_drawn() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", records=5, tokens=6)
    engine = engine_for(model, "shared", loss=lambda model, batch: classification_loss(model, batch).mean())
    with pytest.raises(ModelError, match="one number for each record") as refused:
        engine.clipped_sum(batch, ClippingRule(1.0))
    assert "5" not in str(refused.value)


class SomeNorm(nn.Module):
    """The usual root-mean-square norm; the others differ from it where usual values do not show it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def forward(self, values: Tensor) -> Tensor:
        return self.weight * values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps)


class EpsilonOutsideNorm(SomeNorm):
    def forward(self, values: Tensor) -> Tensor:
        return self.weight * values / (values.square().mean(-1, keepdim=True).sqrt() + self.eps)


class NormalizeNorm(SomeNorm):
    def forward(self, values: Tensor) -> Tensor:
        return self.weight * nn.functional.normalize(values, dim=-1, eps=self.eps) * len(self.weight) ** 0.5


class BranchNorm(SomeNorm):
    def forward(self, values: Tensor) -> Tensor:
        usual = super().forward(values)
        return torch.where(values.abs().amax(-1, keepdim=True) > 100, 2 * usual, usual)


class HeadsNorm(SomeNorm):
    def forward(self, values: Tensor) -> Tensor:
        over = (-2, -1) if values.ndim == 4 else (-1,)
        return self.weight * values * torch.rsqrt(values.square().mean(over, keepdim=True) + self.eps)


class GatedNorm(SomeNorm):
    def forward(self, values: Tensor, gate: Tensor | None = None) -> Tensor:
        usual = super().forward(values)
        return usual if gate is None else usual * gate


class NeedsGateNorm(SomeNorm):
    def forward(self, values: Tensor, gate: Tensor) -> Tensor:
        return super().forward(values) * gate


class ImageNorm(SomeNorm):
    def forward(self, values: Tensor) -> Tensor:
        if values.ndim != 4:
            raise ValueError("images only")
        return super().forward(values)


@pytest.mark.parametrize(
    "kind",
    [EpsilonOutsideNorm, NormalizeNorm, BranchNorm, HeadsNorm, GatedNorm, NeedsGateNorm, ImageNorm],
)
def test_norms_that_only_look_like_the_usual_one(kind: Callable[[], nn.Module]) -> None:
    assert is_rms_norm(SomeNorm())
    assert not is_rms_norm(kind())


def test_a_fused_norm_takes_its_input_by_keyword_and_leaves_other_patches_alone() -> None:
    norm = SomeNorm()
    values = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    fused, expected = FusedRms(norm), norm(values)
    fused.open()
    assert torch.allclose(norm(values=values), expected)
    fused.close()
    assert "forward" not in vars(norm)
    norm.forward = patch = lambda values: 2 * SomeNorm.forward(norm, values)
    fused.open()
    assert torch.allclose(norm(values), 2 * expected)
    fused.close()
    assert vars(norm)["forward"] is patch


class Extra(nn.Module):
    """A model with one more module after it."""

    def __init__(self, encoder: nn.Module, extra: nn.Module) -> None:
        super().__init__()
        self.inner, self.extra, self.config = encoder, extra, encoder.config

    def get_input_embeddings(self) -> nn.Module:
        return self.inner.get_input_embeddings()

    def forward(self, **inputs: Tensor) -> Any:
        output = self.inner(**inputs)
        output.last_hidden_state = self.extra(output.last_hidden_state)
        return output


class MixingDropout(nn.Dropout):
    def forward(self, values: Tensor) -> Tensor:
        return values + self.p * values.mean(dim=0, keepdim=True)


class FirstPass(nn.Module):
    """Keeps something of the first records it sees, and gives it to all later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = values.detach().mean(dim=(0, 1))
        return values + self.kept


class LatePasses(nn.Module):
    """Mixes records from some later pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {"means": []}

    def forward(self, values: Tensor) -> Tensor:
        means = self.history["means"]
        means.append(float(values.detach().mean()))
        return values if len(means) < 100_000 else values + means[-2]


class Same(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.notes = {"scale": [1.0, torch.ones(2)], "name": "same", "nothing": None}

    def forward(self, values: Tensor) -> Tensor:
        return values


def gate(extra: nn.Module, training: bool = False) -> None:
    """The shared parameters alone, for what lies between embedding and layers is the same in every role."""
    model: Any = family_classifier("olmoe")
    model.encoder = Extra(model.encoder, extra)
    model.train(training)
    specs = [EngineSpec("shared", lambda model: JointGradients(model, shared_parameters(model)))]
    check_isolation(model, specs, classes=3)


def test_the_gate_looks_at_derived_dropout_and_at_what_modules_keep() -> None:
    gate(Same())
    gate(nn.Dropout(0.3), training=True)
    with pytest.raises(ModelError, match=r"not independent.*MixingDropout"):
        gate(MixingDropout(0.3), training=True)
    with pytest.raises(ModelError, match=r"memory of modules.*encoder\.extra\.kept"):
        gate(FirstPass())
    with pytest.raises(ModelError, match=r"memory of modules.*encoder\.extra\.history"):
        gate(LatePasses())


def test_a_batch_of_one_record_of_one_token() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", "none", records=3, tokens=1)
    engine, rule = engine_for(model, "shared"), ClippingRule(0.1)
    whole = engine.clipped_sum(batch, rule)
    total = engine.clipped_sum(batch.part(0, 1), rule)
    for record in (1, 2):
        total.add(engine.clipped_sum(batch.part(record, record + 1), rule))
    assert_same(total, whole)
