"""The methods that are compared: what each trains, by how many releases, and what a record may move."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from raptor.accounting.plan import PrivacyPlan
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import RoleGradients, engine_specs
from raptor.dp.gradients.engine import JointGradients
from raptor.dp.methods import ONE_STREAM, Method
from raptor.dp.records import Batch, EncodedRecords
from raptor.dp.trainable import make_trainable
from raptor.dp.training import Trainer, random_source
from raptor.errors import BudgetError, ModelError
from raptor.moe.routing import record_votes
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.training.config import PrivacyConfig
from raptor.pipelines.training.planning import (
    monolithic_plan,
    raptor_plan,
    require_isolated,
    require_planned,
)
from tests.tiny import tiny_batch, tiny_classifier

LAYER, EXPERTS, RECORDS = 1, 4, 12
CONFIG = TrainingConfig(
    device="cpu", batch_size=6, cycles=2, randomness="seeded", seed=3, expert={"learning_rate": 1e-2}
)


def records() -> EncodedRecords:
    ids, mask, labels = tiny_batch(RECORDS)
    return EncodedRecords(ids.int(), mask.sum(dim=1), labels, torch.arange(RECORDS) % EXPERTS)


def plan_of(method: Method, config: TrainingConfig) -> PrivacyPlan:
    layers = {"layers": [LAYER], "experts": EXPERTS}
    constants = {"population": RECORDS, "population_source": "declared", "taken_as_public": []}
    privacy = PrivacyConfig(epsilon=4.0, delta=1e-2)
    if method in ONE_STREAM:
        return monolithic_plan(layers, constants, privacy, config, method)
    scope = EvaluationScope(records_are_public=True, baselines=())
    return raptor_plan(layers, constants, privacy, config, EvaluationConfig(), scope)


@pytest.mark.parametrize("method", get_args(Method))
def test_method_moves_its_own_scope_and_pays_for_each_step(method: Method) -> None:
    model = tiny_classifier(dtype=torch.float32)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    sink: list = []
    trainer = Trainer(model, records(), plan_of(method, CONFIG), CONFIG, random_source(CONFIG), sink)
    trainer.train(method)
    single = ONE_STREAM.get(method)
    expected = trainer.trainable.of("protected" if single is None else single.scope)
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    if single is None or single.is_private:
        assert moved == set(expected)
        assert len(sink) == 4
    else:
        # Without noise, what no record reaches has no gradient.
        assert moved
        assert moved <= set(expected)
        assert not sink


def test_gate_passes_every_private_method() -> None:
    for method in ("matched", "shared_only", "experts_only"):
        found = require_isolated(tiny_classifier(), [LAYER], CONFIG, method)
        assert found.groups == ("monolithic",)
    active = CONFIG.model_copy(update={"owners": "active"})
    assert require_isolated(tiny_classifier(), [LAYER], active).groups == ("shared", "expert")


@pytest.mark.parametrize("owners", ["one", "active"])
def test_roles_on_one_sample_have_a_clip_each_and_one_sensitivity(owners: str) -> None:
    model = tiny_classifier(dtype=torch.float64)
    streams = {"shared": {"clipping_norm": 3e-3}, "expert": {"clipping_norm": 4e-3}}
    config = TrainingConfig.model_validate(
        {**CONFIG.model_dump(exclude_unset=True), **streams, "owners": owners}
    )
    trainable = make_trainable(model, config, [LAYER])
    specs = engine_specs(trainable, [LAYER], config, "together")
    engine = RoleGradients({spec.name: spec.build(model) for spec in specs}, config)
    assert set(engine.parameters) == set(trainable.of("protected"))
    assert plan_of("together", config).stream("monolithic").clipping_norm == pytest.approx(5e-3)
    ids, mask, labels = tiny_batch(1, tokens=12, padded=False)
    owner = record_votes(model.encoder, ids, mask)[LAYER].argmax(dim=1)
    total = engine.clipped_sum(Batch(ids, mask, labels, owner), ClippingRule(5e-3))
    norms = {
        role: torch.cat([total.tensors[name].flatten() for name in trainable.of(role)]).norm()
        for role in ("shared", "expert")
    }
    assert 0.999 * 3e-3 < norms["shared"] <= 3e-3
    assert 0.999 * 4e-3 < norms["expert"] <= 4e-3
    assert total.sensitivity.norm == 5e-3


def weighted(shared: float, expert: float, owners: str = "one") -> TrainingConfig:
    """Unequal clipping norms, and noise multipliers of the roles in a ratio of their own."""
    streams = {
        "shared": {"clipping_norm": 3e-3, "noise_weight": shared},
        "expert": {"clipping_norm": 4e-3, "noise_weight": expert},
    }
    return TrainingConfig.model_validate(
        {**CONFIG.model_dump(exclude_unset=True), **streams, "owners": owners, "role_noise": "weighted"}
    )


@pytest.mark.parametrize("owners", ["one", "active"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 2.0), (5.0, 0.5)])
def test_roles_with_noise_of_their_own_keep_one_sensitivity(
    weights: tuple[float, float], owners: str
) -> None:
    config = weighted(*weights, owners)
    model = tiny_classifier(dtype=torch.float64)
    trainable = make_trainable(model, config, [LAYER])
    specs = engine_specs(trainable, [LAYER], config, "together")
    engine = RoleGradients({spec.name: spec.build(model) for spec in specs}, config)
    rule = ClippingRule(plan_of("together", config).stream("monolithic").clipping_norm)
    ids, mask, labels = tiny_batch(3, tokens=12, padded=False)
    owner = record_votes(model.encoder, ids, mask)[LAYER].argmax(dim=1)
    whole = engine.clipped_sum(Batch(ids, mask, labels, owner), rule)
    rest = engine.clipped_sum(Batch(ids[1:], mask[1:], labels[1:], owner[1:]), rule)
    moved = {name: value - rest.tensors[name] for name, value in whole.tensors.items()}

    # The planted record's gradient is far above both norms, so that it moves the scaled sum by just C.
    distance = torch.cat([value.flatten() for value in moved.values()]).norm()
    assert 0.999 * rule.norm < distance <= whole.sensitivity.norm == pytest.approx(5e-3)
    norms = {"shared": 3e-3, "expert": 4e-3}
    back = whole.unscaled(moved)
    for role, norm in norms.items():
        assert 0.999 * norm < torch.cat([back[name].flatten() for name in trainable.of(role)]).norm() <= norm
    # Noise of C sigma on the scaled sum is noise of sigma_r C_r on a role's own sum.
    multipliers = {
        role: whole.unscaled({trainable.of(role)[0]: torch.tensor(rule.norm)})[trainable.of(role)[0]] / norm
        for role, norm in norms.items()
    }
    assert float(multipliers["expert"] / multipliers["shared"]) == pytest.approx(weights[1] / weights[0])
    assert sum(float(value) ** -2 for value in multipliers.values()) == pytest.approx(1.0)


def test_noise_of_roles_is_by_default_the_same_on_all_coordinates() -> None:
    model = tiny_classifier(dtype=torch.float32)
    common = weighted(1.0, 1.0).model_copy(update={"role_noise": "common"})
    # Weights in the inverse ratio of the norms give the same noise again.
    by_hand = weighted(1 / 3e-3, 1 / 4e-3)
    found = []
    for config in (common, by_hand):
        trainable = make_trainable(model, config, [LAYER])
        specs = engine_specs(trainable, [LAYER], config, "together")
        engine = RoleGradients({spec.name: spec.build(model) for spec in specs}, config)
        ids, mask, labels = tiny_batch(3)
        batch = Batch(ids, mask, labels, torch.tensor([0, 1, 2]))
        found.append(engine.clipped_sum(batch, ClippingRule(5e-3)))
    assert not found[0].scales
    for name, value in found[0].tensors.items():
        assert torch.allclose(value, found[1].tensors[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("config", [weighted(1.0, 1.0), weighted(1.0, 3.0), weighted(4.0, 1.0)])
def test_releases_of_both_roles_cost_the_same_whatever_their_weights(config: TrainingConfig) -> None:
    plan = plan_of("together", config).stream("monolithic")
    assert plan == plan_of("together", config.model_copy(update={"role_noise": "common"})).stream(
        "monolithic"
    )
    trainer_of = tiny_classifier(dtype=torch.float32)
    released: list = []
    updates: list[dict[str, torch.Tensor]] = []
    trainer = Trainer(
        trainer_of, records(), plan_of("together", config), config, random_source(config), released
    )
    trainer.begin("together")
    optimizer = trainer._running[0]._optimizer  # type: ignore[attr-defined]
    optimizer.apply = updates.append  # type: ignore[method-assign]
    next(trainer.remaining())
    assert [(one.noise_multiplier, one.sensitivity.norm) for one in released] == [
        (plan.noise_multiplier, pytest.approx(5e-3))
    ]
    ratio = {}
    for role, norm in (("shared", 3e-3), ("expert", 4e-3)):
        noise = torch.cat([updates[0][name].flatten() for name in trainer.trainable.of(role)]).std()
        ratio[role] = float(noise) * plan.denominator / norm
    assert ratio["expert"] / ratio["shared"] == pytest.approx(
        config.expert.noise_weight / config.shared.noise_weight, rel=0.05
    )


def test_a_parameter_with_both_roles_is_refused() -> None:
    model = tiny_classifier()
    engine = JointGradients(model, ["head.bias"])
    with pytest.raises(ModelError, match="clipped twice"):
        RoleGradients({"shared": engine, "expert": engine}, CONFIG)


def test_with_active_owners_a_record_moves_several_experts_within_one_clip() -> None:
    model = tiny_classifier(dtype=torch.float64)
    norms = {}
    touched = {}
    for owners in ("one", "active"):
        config = CONFIG.model_copy(update={"owners": owners})
        trainable = make_trainable(model, config, [LAYER])
        engine = engine_specs(trainable, [LAYER], config)[1].build(model)
        ids, mask, labels = tiny_batch(1, tokens=12, padded=False)
        total = engine.clipped_sum(Batch(ids, mask, labels, torch.tensor([0])), ClippingRule(1e-3))
        norms[owners] = torch.cat([value.flatten() for value in total.tensors.values()]).norm()
        touched[owners] = {
            name.split("expert_")[1][0] for name, value in total.tensors.items() if value.any()
        }
    assert touched["one"] <= {"0"} < touched["active"]
    assert 0.9e-3 < norms["active"] <= 1e-3


def test_streams_sample_at_the_rate_of_their_own_batch_size() -> None:
    config = CONFIG.model_copy(update={"expert": CONFIG.expert.model_copy(update={"batch_size": 12})})
    plan = plan_of("raptor", config)
    assert (plan.stream("shared").rate, plan.stream("expert").rate) == (0.5, 1.0)
    assert plan.stream("expert").denominator == 12 / EXPERTS
    log: list = []
    trainer = Trainer(
        tiny_classifier(dtype=torch.float32), records(), plan, config, random_source(config), log
    )
    trainer.begin()
    for stream in set(trainer._running):
        rate = plan.stream(stream.name).rate  # type: ignore[attr-defined]
        drawn = [len(stream._sampler.draw()) for _ in range(60)]  # type: ignore[attr-defined]
        assert sum(drawn) / 60 == pytest.approx(rate * RECORDS, abs=1.5)
    trainer.train()
    assert {(one.stream, one.rate, one.denominator) for one in log} == {
        ("shared", 0.5, 6.0),
        ("expert", 1.0, 12 / EXPERTS),
    }
    require_planned(plan, config)
    with pytest.raises(BudgetError, match=r"denominator of stream expert, from batch_size is 1\.5"):
        require_planned(plan, CONFIG)


def test_step_sizes_go_by_role_in_every_method() -> None:
    for method in ("raptor", "matched"):
        model = tiny_classifier(dtype=torch.float32)
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        config = CONFIG.model_copy(
            update={
                "cycles": 1,
                "shared": CONFIG.shared.model_copy(update={"learning_rate": 1e-3, "steps_per_cycle": 0})
                if method == "raptor"
                else CONFIG.shared.model_copy(update={"learning_rate": 1e-3}),
            }
        )
        trainer = Trainer(model, records(), plan_of(method, config), config, random_source(config), [])
        next(trainer.steps(method))
        # Adam's first step has the step size in every coordinate, whatever the gradient.
        for name in trainer.trainable.expert:
            step = (model.get_parameter(name).detach() - before[name]).abs()
            assert torch.allclose(step, torch.full_like(step, 1e-2), rtol=1e-2)
