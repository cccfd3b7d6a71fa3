"""Adapters of every family, in every role, against a loop over records with ordinary autograd."""

from __future__ import annotations

import pytest
import torch

from raptor.accounting.types import Unit
from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.records import Batch, EncodedRecords
from raptor.moe.adapters import lora_parameters
from raptor.moe.families import sparse_layer
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import expert_parameters
from raptor.moe.routing import record_votes
from raptor.pipelines.training.records import user_groups
from tests.dp import oracle
from tests.dp.engines import EVERY_FAMILY
from tests.dp.float64 import keep_float64
from tests.families import FAMILY_NAMES, family_classifier
from tests.moe.test_lora import LAYER, adapted
from tests.tiny import tiny_batch

ROLES = ("shared", "expert", "monolithic")
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
HEAD = ("head.weight", "head.bias")


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def make_batch(model, *, padded: bool) -> Batch:
    ids, mask, labels = tiny_batch(records=5, tokens=6, padded=padded)
    return Batch(ids, mask, labels, assign_owners(record_votes(model.encoder, ids, mask)[LAYER]))


def engine_for(model, role: str, **options):
    prefix = sparse_layer(model, LAYER).experts_prefix
    names = lora_parameters(model)
    experts = [name for name in names if name.startswith(prefix)]
    if role == "expert":
        return OwnerExpertGradients(model, LAYER, parameters=experts, **options)
    shared = [name for name in names if name not in experts]
    return JointGradients(model, [*shared, *HEAD, *(experts if role == "monolithic" else [])], **options)


def error_of(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest error of a parameter, relative to the norm of the whole sum."""
    assert set(found) == set(expected)
    whole = torch.stack([value.norm() for value in expected.values()]).norm()
    assert whole > 0
    return max(float((found[name] - value).norm() / whole) for name, value in expected.items())


def compare(model, engine, batch: Batch, tolerance: float, *, owned: bool = False) -> None:
    truth = oracle.record_gradients(model, engine.parameters, batch, owner_layers=(LAYER,) if owned else ())
    # Half of the records are scaled.
    rule = ClippingRule(float(oracle.norms(truth).median()) + 1e-12)
    assert error_of(engine.clipped_sum(batch, rule).tensors, oracle.clipped_sum(truth, rule)) <= tolerance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_clipped_sums_are_those_of_a_loop_over_records(family, role, padded, dtype) -> None:
    model = adapted(family, dtype)
    engine = engine_for(model, role)
    compare(model, engine, make_batch(model, padded=padded), TOLERANCE[dtype], owned=role == "expert")


@pytest.mark.parametrize("padded", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("way", ["ghost", "direct"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_both_ways_to_the_norms_agree(family, role, way, padded) -> None:
    model = adapted(family)
    engine = engine_for(model, role, way=way)
    compare(model, engine, make_batch(model, padded=padded), TOLERANCE[torch.float64], owned=role == "expert")


@pytest.mark.parametrize("family", ["switch_transformers", "olmoe"])
def test_an_engine_trains_weights_and_their_adapters_together(family) -> None:
    """All stacks of the bank: an adapter's frozen weight is a parameter like any other when it is named."""
    model = adapted(family)
    engine = OwnerExpertGradients(model, LAYER)
    assert any(".base." in name for name in engine.parameters)
    compare(model, engine, make_batch(model, padded=True), TOLERANCE[torch.float64], owned=True)


@pytest.mark.parametrize("role", ROLES)
def test_new_adapters_have_exact_gradients_too(role) -> None:
    """With second factors of zero, first factors get none."""
    model = adapted("qwen2_moe", trained=False)
    engine = engine_for(model, role)
    batch = make_batch(model, padded=True)
    compare(model, engine, batch, TOLERANCE[torch.float64], owned=role == "expert")
    found = engine.clipped_sum(batch, ClippingRule(1.0)).tensors
    assert all(value.any() == ("lora_a" not in name) for name, value in found.items())


@pytest.mark.parametrize("role", ROLES)
def test_a_record_that_is_not_finite_harms_no_other(role) -> None:
    model = adapted("olmoe")
    batch = make_batch(model, padded=True)
    engine = engine_for(model, role)
    rule = ClippingRule(0.5)
    expected = engine.clipped_sum(batch.part(1, len(batch)), rule).tensors
    ids = batch.input_ids.clone()
    ids[0, 0] = 49
    assert not (ids[1:] == 49).any()
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[49] = float("nan")
    found = engine.clipped_sum(Batch(ids, batch.attention_mask, batch.labels, batch.owners), rule).tensors
    assert error_of(found, expected) <= 1e-9


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "family",
    [name if name == "olmoe" else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILY_NAMES],
)
def test_users_have_the_mean_of_their_records(family, role) -> None:
    """Users of one, two and three records, not in order, whose adapters are clipped once."""
    users = torch.tensor([0, 1, 0, 2, 2, 2, 1, 0, 3])
    model = adapted(family)
    ids, mask, labels = tiny_batch(records=len(users), tokens=6)
    votes = record_votes(model.encoder, ids, mask)[LAYER]
    owners = assign_owners(torch.zeros(4, votes.shape[1], dtype=votes.dtype).index_add_(0, users, votes))
    records = EncodedRecords(ids.int(), mask.sum(1), labels, owners, user_groups(users.numpy()))
    engine = engine_for(model, role)
    truth = []
    for user in range(4):
        own = (users == user).nonzero().squeeze(1)
        batch = Batch(ids[own], mask[own], labels[own], owners[user].repeat(len(own)))
        layers = (LAYER,) if role == "expert" else ()
        parts = oracle.record_gradients(model, engine.parameters, batch, owner_layers=layers)
        truth.append({name: sum(part[name] for part in parts) / len(own) for name in parts[0]})
    rule = ClippingRule(float(oracle.norms(truth).median()) + 1e-12, unit=Unit.USER)
    found = engine.clipped_sum(records.take(torch.arange(4), torch.device("cpu")), rule).tensors
    # Looser than for records: means of several passes are compared.
    assert error_of(found, oracle.clipped_sum(truth, rule)) <= 10 * TOLERANCE[torch.float64]


PEFT_TARGETS = {"switch_transformers": ["q", "v"], "deepseek_v2": ["kv_b_proj", "o_proj"]}


@pytest.mark.parametrize("padded", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "way", ["auto", *(pytest.param(way, marks=pytest.mark.exhaustive) for way in ("ghost", "direct"))]
)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_adapters_of_peft_on_attention_are_covered_as_they_are(family, role, way, padded) -> None:
    """Alone, beside experts that are trained too, and frozen in a step of the experts."""
    peft = pytest.importorskip("peft", reason="PEFT is not a dependency")
    model = family_classifier(family)
    targets = PEFT_TARGETS.get(family, ["q_proj", "v_proj"])
    peft.inject_adapter_in_model(peft.LoraConfig(r=3, target_modules=targets, init_lora_weights=False), model)
    model.double().eval()
    names = [name for name, _ in model.named_parameters() if ".lora_" in name]
    assert len(names) == 12
    assert all(name.endswith((".lora_A.default.weight", ".lora_B.default.weight")) for name in names)
    engine: JointGradients | OwnerExpertGradients
    if role == "expert":
        engine = OwnerExpertGradients(model, LAYER, way=way)
    else:
        experts = expert_parameters(model) if role == "monolithic" else ()
        engine = JointGradients(model, [*names, *HEAD, *experts], way=way)
    batch = make_batch(model, padded=padded)
    compare(model, engine, batch, TOLERANCE[torch.float64], owned=role == "expert")
