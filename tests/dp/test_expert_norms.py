"""Clipping norms and step sizes of single experts: one Gaussian release, whatever the norms are."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from raptor.accounting.plan import StreamPlan, read_plan
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import RoleGradients, engine_specs
from raptor.dp.isolation import check_isolation
from raptor.dp.plan import EXPERT, MONOLITHIC
from raptor.dp.records import Batch
from raptor.dp.trainable import make_trainable
from raptor.dp.training import Trainer, random_source
from raptor.errors import ModelError, ParameterError
from raptor.moe.families import sparse_layer
from raptor.moe.routing import record_votes
from tests.dp import oracle
from tests.dp.float64 import keep_float64
from tests.dp.test_methods import CONFIG, EXPERTS, LAYER, RECORDS, plan_of, records
from tests.tiny import tiny_batch, tiny_classifier

# Relative norms of the four experts.
NORMS = (0.5, 1.0, 2.0, 4.0)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def config_of(trainable: str, owners: str = "one") -> TrainingConfig:
    given = {**CONFIG.model_dump(exclude_unset=True), "trainable": trainable, "owners": owners}
    return TrainingConfig.model_validate({**given, **({"lora": {"rank": 2}} if trainable == "lora" else {})})


def prepared(config: TrainingConfig):
    """Model, trainable set and batch; nothing that is trained is zero."""
    model = tiny_classifier()
    trainable = make_trainable(model, config, [LAYER])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name in trainable.of("protected"):
            value = model.get_parameter(name)
            value.add_(torch.randn(value.shape, generator=generator, dtype=value.dtype) * 0.1)
    ids, mask, labels = tiny_batch(6, tokens=10, padded=False)
    owner = record_votes(model.encoder, ids, mask)[LAYER].argmax(dim=1)
    return model, trainable, Batch(ids, mask, labels, owner)


def expert_of(model, name: str):
    """Function that gives each expert's part of a tensor of this name."""
    for stack in sparse_layer(model, LAYER).bank().stacks:
        if name in stack.names:
            if stack.is_fused:
                return list
            return lambda value: [
                value if name == other else torch.zeros_like(value) for other in stack.names
            ]
    raise AssertionError(name)


def lengths(model, tensors) -> list[float]:
    """Norm of each expert's block."""
    parts = [
        [part.square().sum() for part in expert_of(model, name)(value)] for name, value in tensors.items()
    ]
    return [float(sum(column)) ** 0.5 for column in zip(*parts, strict=True)]


@pytest.mark.parametrize("owners", ["one", "active"])
@pytest.mark.parametrize("trainable_kind", ["full", "lora"])
def test_a_record_is_clipped_in_the_scaled_norm(trainable_kind: str, owners: str) -> None:
    config = config_of(trainable_kind, owners)
    model, trainable, batch = prepared(config)
    (spec,) = [
        spec for spec in engine_specs(trainable, [LAYER], config, expert_norms=NORMS) if spec.name == EXPERT
    ]
    engine = spec.build(model)
    truth = oracle.record_gradients(
        model, engine.parameters, batch, owner_layers=(LAYER,) if owners == "one" else ()
    )
    for record in truth:
        for name, value in record.items():
            for expert, part in enumerate(expert_of(model, name)(value)):
                if value.ndim == 3:
                    part.div_(NORMS[expert])
                elif part is value:
                    value.div_(NORMS[expert])
    rule = ClippingRule(float(oracle.norms(truth).median()))
    expected = oracle.clipped_sum(truth, rule)
    total = engine.clipped_sum(batch, rule)
    whole = torch.stack([value.norm() for value in expected.values()]).norm()
    for name, value in expected.items():
        assert float((total.tensors[name] - value).norm() / whole) < 1e-6
    # The parts of the release are those of plain gradients again.
    back = total.unscaled(total.tensors)
    for expert, (scaled, plain) in enumerate(
        zip(lengths(model, total.tensors), lengths(model, back), strict=True)
    ):
        assert plain == pytest.approx(NORMS[expert] * scaled)


@pytest.mark.parametrize("trainable_kind", ["full", "lora"])
def test_a_record_moves_its_owners_sum_by_the_owners_norm_and_the_release_by_c(trainable_kind: str) -> None:
    config = config_of(trainable_kind)
    model, trainable, batch = prepared(config)
    engine = engine_specs(trainable, [LAYER], config, expert_norms=NORMS)[1].build(model)
    rule = ClippingRule(1e-5)
    whole = engine.clipped_sum(batch, rule)
    seen = set()
    for record in range(len(batch)):
        rest = [
            engine.clipped_sum(batch.part(row, row + 1), rule) for row in range(len(batch)) if row != record
        ]
        moved = {
            name: value - sum(part.tensors[name] for part in rest) for name, value in whole.tensors.items()
        }
        owner = int(batch.owners[record])
        seen.add(owner)
        distance = torch.cat([value.flatten() for value in moved.values()]).norm()
        assert 0.999 * rule.norm < float(distance) <= whole.sensitivity.norm * (1 + 1e-9)
        assert lengths(model, whole.unscaled(moved))[owner] == pytest.approx(
            NORMS[owner] * rule.norm, rel=1e-3
        )
    assert len(seen) > 1


def test_with_active_owners_the_scaled_norm_is_spent_once() -> None:
    config = config_of("full", "active")
    model, trainable, batch = prepared(config)
    engine = engine_specs(trainable, [LAYER], config, expert_norms=NORMS)[1].build(model)
    single = engine.clipped_sum(batch.part(0, 1), ClippingRule(1e-5))
    scaled = lengths(model, single.tensors)
    assert sum(part > 0 for part in scaled) > 1
    assert 0.999e-5 < sum(part**2 for part in scaled) ** 0.5 <= 1e-5


def test_the_gate_passes_scales_that_are_stated_and_refuses_others() -> None:
    config = config_of("lora")
    model, trainable, _ = prepared(config)
    specs = engine_specs(trainable, [LAYER], config, expert_norms=NORMS)
    assert check_isolation(model, specs, classes=3).groups == ("shared", "expert")

    def unstated(model):
        engine = specs[1].build(model)
        engine.scales = {}
        return engine

    with pytest.raises(ModelError, match="Isolation gate, expert parameters"):
        check_isolation(model, [replace(specs[1], build=unstated)], classes=3)
    for norms, words in ((NORMS[:3], "3 numbers for 4 experts"), ((0.0, 1.0, 1.0, 1.0), "above 0")):
        with pytest.raises((ModelError, ZeroDivisionError), match=f"{words}|division"):
            engine_specs(trainable, [LAYER], config, expert_norms=norms)[1].build(model)


@pytest.mark.parametrize("method", ["raptor", "together"])
@pytest.mark.parametrize("trainable_kind", ["full", "lora"])
def test_each_expert_gets_noise_by_its_norm_and_the_ledger_says_one_gaussian(
    method: str, trainable_kind: str
) -> None:
    # Norms so small that what is released is the noise.
    config = config_of(trainable_kind)
    streams = {
        name: getattr(config, name).model_copy(update={"clipping_norm": 1e-7})
        for name in ("shared", "expert")
    }
    config = config.model_copy(update=streams)
    name = EXPERT if method == "raptor" else MONOLITHIC
    common = plan_of(method, config)
    changed = [
        replace(stream, block_norms=NORMS) if stream.name == name else stream for stream in common.streams
    ]
    plan = replace(common, streams=tuple(changed))
    logs = []
    for each in (common, plan):
        log: list = []
        model = tiny_classifier(dtype=torch.float32)
        trainer = Trainer(model, records(), each, config, random_source(config), log)
        trainer.begin(method)
        found: list = []
        for stream in set(trainer._running):
            if stream.name == name:
                stream._optimizer.apply = found.append
        for number in trainer.remaining():
            if number == 1:
                break
        logs.append([(one.stream, one.rate, one.noise_multiplier, one.sensitivity) for one in log])
    assert logs[0] == logs[1]
    experts = {key: value for key, value in found[0].items() if key in trainer.trainable.expert}
    sizes = [0] * EXPERTS
    for key, value in experts.items():
        for expert, part in enumerate(expert_of(model, key)(value)):
            sizes[expert] += part.numel() if part.any() else 0
    stream = plan.stream(name)
    for expert, length in enumerate(lengths(model, experts)):
        deviation = length / sizes[expert] ** 0.5
        expected = NORMS[expert] * stream.noise_deviation / stream.denominator
        assert deviation == pytest.approx(expected, rel=0.2 if trainable_kind == "lora" else 0.1)


def test_scales_of_roles_and_of_experts_multiply() -> None:
    config = config_of("lora")
    streams = {
        "shared": config.shared.model_copy(update={"noise_weight": 3.0}),
        "role_noise": "weighted",
    }
    config = config.model_copy(update=streams)
    model, trainable, batch = prepared(config)
    specs = engine_specs(trainable, [LAYER], config, "together", NORMS)
    engine = RoleGradients({spec.name: spec.build(model) for spec in specs}, config)
    plain = RoleGradients(
        {spec.name: spec.build(model) for spec in engine_specs(trainable, [LAYER], config, "together")},
        config,
    )
    rule = ClippingRule(1e9)
    found, expected = (each.clipped_sum(batch, rule) for each in (engine, plain))
    for name, value in expected.unscaled(expected.tensors).items():
        assert torch.allclose(found.unscaled(found.tensors)[name], value)
    small = engine.clipped_sum(batch.part(0, 1), ClippingRule(1e-5))
    assert float(torch.cat([value.flatten() for value in small.tensors.values()]).norm()) <= 1e-5


def test_a_plan_keeps_norms_and_steps_of_blocks_and_old_plans_read_as_before() -> None:
    plan = plan_of("raptor", CONFIG)
    assert "block_norms" not in plan.to_json()["streams"][1]
    assert (plan.expert_norms, read_plan(plan.to_json())) == ((), plan)
    streams = (plan.streams[0], replace(plan.streams[1], block_norms=NORMS, block_steps=(1, 1, 2, 2)))
    own = replace(plan, streams=streams)
    assert own.expert_norms == NORMS
    assert own.to_json()["streams"][1]["block_steps"] == [1, 1, 2, 2]
    assert read_plan(own.to_json()) == own
    for wrong in ((1.0, 2.0), (1.0, 1.0, 1.0, -1.0), (1.0, 1.0, 1.0, float("nan"))):
        with pytest.raises(ParameterError, match="block_norms of stream expert"):
            StreamPlan(EXPERT, 0.5, 1.0, 2, 1.0, 1.5, EXPERTS, block_norms=wrong)


@pytest.mark.parametrize("trainable_kind", ["full", "lora"])
def test_a_step_is_multiplied_and_not_its_gradient(trainable_kind: str) -> None:
    config = config_of(trainable_kind)
    streams = {"shared": config.shared.model_copy(update={"steps_per_cycle": 0})}
    config = config.model_copy(update={**streams, "schedule": "constant"})
    plan = plan_of("raptor", config)
    plan = replace(plan, streams=(replace(plan.stream(EXPERT), block_steps=NORMS),))
    model = tiny_classifier(dtype=torch.float32)
    trainer = Trainer(model, records(), plan, config, random_source(config), [])
    trainer.begin()
    before = {name: model.get_parameter(name).detach().clone() for name in trainer.trainable.expert}
    next(trainer.remaining())
    for name, start in before.items():
        # Adam's first step has the step size in every coordinate, whatever the gradient.
        for expert, part in enumerate(
            expert_of(model, name)((model.get_parameter(name).detach() - start).abs())
        ):
            if part.any():
                assert torch.allclose(part, torch.full_like(part, 1e-2 * NORMS[expert]), rtol=2e-2)


def test_several_processes_are_told_what_they_cannot_do() -> None:
    config = config_of("lora")
    plan = plan_of("raptor", config)
    plan = replace(plan, streams=(plan.streams[0], replace(plan.streams[1], block_norms=NORMS)))
    model = tiny_classifier(dtype=torch.float32)
    trainer = Trainer(copy.deepcopy(model), records(), plan, config, random_source(config), [])
    trainer._team.size = 2
    with pytest.raises(ParameterError, match="train in one process"):
        trainer.begin()
    assert len(records()) == RECORDS
