"""Adapters on every family: what they change, what they hold, and that folding them in loses nothing."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch

from raptor.dp.config import LoRAConfig, TrainingConfig
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.trainable import make_trainable
from raptor.errors import ModelError, ParameterError
from raptor.moe.adapters import add_lora, lora_parameters, merge_lora
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer
from raptor.moe.lora import LoRAExperts
from raptor.moe.roles import Role, parameter_roles
from tests.families import EXPERTS, FAMILY_NAMES, family_classifier
from tests.tiny import tiny_batch, tiny_classifier

LAYER, RANK, ALPHA = 1, 3, 6.0
assert RANK != EXPERTS, "equal sizes would hide factors that are laid out rank by rank"
# Input and output widths of the attention projections, in each of the three blocks.
SQUARE = [(16, 16)] * 4
ATTENTION = dict.fromkeys(FAMILY_NAMES, SQUARE) | {
    "deepseek_v2": [(16, 8), (8, 16), (16, 12), (8, 24), (16, 16)]
}
# Of the experts: first map, second map.
WIDE = [(16, 48), (24, 16)]
MAPS = dict.fromkeys(FAMILY_NAMES, WIDE) | {
    "switch_transformers": [(16, 24), (24, 16)],
    "qwen2_moe": [(16, 24), (12, 16)],
    "qwen3_moe": [(16, 24), (12, 16)],
    "deepseek_v2": [(16, 24), (12, 16)],
}


def adapted(family: str, dtype: torch.dtype = torch.float64, *, trained: bool = True) -> MoEClassifier:
    """A tiny model with adapters, whose second factors are no longer zero when it is `trained`."""
    model = family_classifier(family, dtype)
    names = add_lora(model, rank=RANK, alpha=ALPHA, expert_layers=[LAYER])
    if trained:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name in names:
                parameter = model.get_parameter(name)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def logits(model: MoEClassifier) -> torch.Tensor:
    ids, mask, _ = tiny_batch()
    with torch.no_grad():
        return model(ids, mask)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_new_adapters_change_no_output(family: str) -> None:
    before = logits(family_classifier(family))
    torch.testing.assert_close(logits(adapted(family, trained=False)), before, rtol=1e-12, atol=1e-12)
    assert (logits(adapted(family)) - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_number_of_trainable_numbers_is_that_of_the_formula(family: str) -> None:
    model = family_classifier(family)
    config = TrainingConfig(trainable="lora", lora=LoRAConfig(rank=RANK, alpha=ALPHA))
    found = make_trainable(model, config, [LAYER])
    attention = 3 * sum(RANK * (inner + out) for inner, out in ATTENTION[family])
    experts = EXPERTS * sum(RANK * (inner + out) for inner, out in MAPS[family])
    head = 16 * 3 + 3
    assert found.count(found.shared) == attention + head
    assert found.count(found.expert) == experts
    assert set(found.joint) == {*found.shared, *found.expert}
    assert set(found.joint) == {*lora_parameters(model), "head.weight", "head.bias"}
    assert f"{attention + experts + head:,} of {found.total:,} numbers" in found.table()
    assert f"{experts:,}" in found.table()
    assert re.search(rf"expert  \S*\.{LAYER}\.\S*\.experts\.first_lora_a  +1 ", found.table())


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_roles_of_adapters_and_the_router_beside_them(family: str) -> None:
    model = adapted(family)
    roles = parameter_roles(model)
    for name in lora_parameters(model):
        inside = ".experts." in name
        assert roles[name].role is (Role.EXPERT if inside else Role.SHARED)
        assert roles[name].layer == (LAYER if inside else None)
    layer = sparse_layer(model, LAYER)
    assert layer.num_experts == EXPERTS
    assert isinstance(layer.experts, LoRAExperts)
    assert any(entry.role is Role.ROUTER and entry.layer == LAYER for entry in roles.values())
    assert set(layer.bank().parameters) <= set(roles)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_merged_model_is_a_plain_one_with_the_same_logits(family: str, dtype: torch.dtype) -> None:
    model = adapted(family, dtype)
    before = logits(model)
    merge_lora(model)
    # One unit of float32 where logits are of the order of ten.
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    plain = family_classifier(family, dtype)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_copy_stands_on_its_own(family: str) -> None:
    model = adapted(family)
    before = logits(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(logits(copied), before, rtol=0, atol=0)


def test_the_start_is_the_same_everywhere_and_draws_no_random_numbers() -> None:
    first, second = (family_classifier("olmoe", dtype) for dtype in (torch.float32, torch.float64))
    state = torch.get_rng_state()
    for model in (first, second):
        add_lora(model, rank=RANK, alpha=ALPHA, expert_layers=[LAYER])
    assert torch.equal(torch.get_rng_state(), state)
    for name in lora_parameters(first):
        assert torch.equal(first.get_parameter(name).double(), second.get_parameter(name))


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        (["*.SelfAttention.q", "*.nothing"], r"'\*\.nothing'"),
        (["*.router.classifier"], "router"),
        ([], "no pattern"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_by_name(targets, named) -> None:
    model = tiny_classifier()
    with pytest.raises(ParameterError, match=f"targets has .*{named}.* no linear layer"):
        add_lora(model, rank=RANK, alpha=1.0, targets=targets, expert_layers=[LAYER])
    assert not lora_parameters(model)


def test_attention_of_an_unknown_name_is_refused() -> None:
    model = tiny_classifier()
    for block in model.encoder.encoder.block:
        block.layer[0].Other = block.layer[0].SelfAttention
        del block.layer[0].SelfAttention
    with pytest.raises(ParameterError, match="attention"):
        add_lora(model, rank=RANK, alpha=1.0, expert_layers=[LAYER])


def test_other_adapters_that_cannot_be_exact_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"rank is 17, .* has a side of 16"):
        add_lora(tiny_classifier(), rank=17, alpha=1.0, expert_layers=[LAYER])
    with pytest.raises(ModelError, match="adapters already"):
        add_lora(adapted("olmoe"), rank=RANK, alpha=1.0, expert_layers=[LAYER])
    with pytest.raises(ModelError, match="not sparse"):
        add_lora(tiny_classifier(), rank=RANK, alpha=1.0, expert_layers=[7])
    tied = tiny_classifier()
    attention = [block.layer[0].SelfAttention for block in tied.encoder.encoder.block]
    attention[1].q.weight = attention[0].q.weight
    with pytest.raises(ModelError, match=r"SelfAttention\.q shares its weight"):
        add_lora(tied, rank=RANK, alpha=1.0, expert_layers=[LAYER])
    assert not lora_parameters(tied)


def test_nothing_that_was_trained_is_dropped(tmp_path: Path) -> None:
    model = adapted("switch_transformers")
    with pytest.raises(ModelError, match="not folded"):
        model.save_pretrained(tmp_path, ["a", "b", "c"])
    model.extra = torch.nn.ModuleDict({"lora_A": torch.nn.Linear(2, 2)})
    with pytest.raises(ModelError, match=r"extra\.lora_A"):
        merge_lora(model)
    with pytest.raises(ModelError, match="no adapter to fold in"):
        merge_lora(tiny_classifier())


def test_adapters_of_peft_on_fused_experts_are_refused_by_name() -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not a dependency")
    model = family_classifier("olmoe")
    config = peft.LoraConfig(
        r=2, target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    )
    peft.inject_adapter_in_model(config, model)
    names = [name for name, _ in model.named_parameters() if "lora_" in name and ".1.mlp" in name]
    assert names
    for make in (lambda: JointGradients(model, names), lambda: OwnerExpertGradients(model, LAYER)):
        with pytest.raises(ModelError, match=r"layers\.\d\.mlp\.experts .*training\.trainable=lora"):
            make()


def test_adapters_of_peft_on_the_experts_of_switch_are_refused_by_name() -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not a dependency")
    model = tiny_classifier()
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["wi", "wo"]), model)
    with pytest.raises(ModelError, match=r"lora_A.*training\.trainable=lora"):
        OwnerExpertGradients(model, LAYER)
