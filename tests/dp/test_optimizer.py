"""Updates that know the noise: against the formulas, and against the noise that a run has really added."""

from __future__ import annotations

import pytest
import torch

from raptor.dp.config import TrainingConfig
from raptor.dp.optimizer import ReleaseOptimizer
from raptor.dp.training import Trainer, random_source
from tests.dp.test_methods import CONFIG, EXPERTS, plan_of, records
from tests.tiny import tiny_classifier


def config_of(**changed: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"schedule": "constant", "device": "cpu", **changed})


def names_in(model) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters() if name.startswith("head."))[:2]


def gradients(model, names, steps: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        {name: torch.randn(model.get_parameter(name).shape, generator=generator).double() for name in names}
        for _ in range(steps)
    ]


@pytest.mark.parametrize("kind", ["adam_bc", "sgd"])
def test_updates_follow_the_formula(kind: str) -> None:
    model = tiny_classifier()
    names = names_in(model)
    deviations = dict(zip(names, (0.9, torch.full_like(model.get_parameter(names[1]), 0.4)), strict=True))
    config = config_of(optimizer=kind, **({"adam_bc_floor": 0.1} if kind == "adam_bc" else {}))
    optimizer = ReleaseOptimizer(model, names, config, 6, deviations=deviations)
    expected = {name: model.get_parameter(name).detach().clone() for name in names}
    m = {name: torch.zeros_like(value) for name, value in expected.items()}
    v = {name: torch.zeros_like(value) for name, value in expected.items()}
    rate, (b1, b2) = config.shared.learning_rate, config.adam_betas
    floored = 0
    for t, update in enumerate(gradients(model, names, 6), start=1):
        optimizer.apply({name: value.clone() for name, value in update.items()})
        for name in names:
            m[name] = b1 * m[name] + (1 - b1) * update[name]
            v[name] = b2 * v[name] + (1 - b2) * update[name] ** 2
            noise = torch.as_tensor(deviations[name], dtype=torch.float64) ** 2
            corrected = v[name] / (1 - b2**t) - noise
            floored += int((corrected < 0.1 * noise).sum())
            root = torch.maximum(corrected, 0.1 * noise).sqrt() + config.adam_epsilon
            root = root if kind == "adam_bc" else noise.sqrt()
            expected[name] = expected[name] - rate * m[name] / (1 - b1**t) / root
    assert floored
    for name in names:
        assert torch.allclose(model.get_parameter(name), expected[name], rtol=1e-9)


def test_without_noise_the_correction_is_adam() -> None:
    found = []
    for config, deviations in (
        (config_of(), None),
        (config_of(optimizer="adam_bc"), {"head.weight": 0.0}),
        (config_of(optimizer="sgd"), None),
    ):
        model = tiny_classifier()
        optimizer = ReleaseOptimizer(model, ["head.weight"], config, 4, deviations=deviations)
        for update in gradients(model, ["head.weight"], 4):
            optimizer.apply(update)
        found.append(model.get_parameter("head.weight").detach())
    assert torch.allclose(found[0], found[1], rtol=1e-12)
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("kind", ["adam_bc", "sgd"])
def test_an_optimizer_that_is_put_back_goes_on_as_it_would_have(kind: str) -> None:
    config = config_of(optimizer=kind, schedule="linear")
    whole, halves = tiny_classifier(), tiny_classifier()
    name = "head.weight"
    updates = gradients(whole, [name], 6)
    made = ReleaseOptimizer(whole, [name], config, 6, deviations={name: 0.5})
    first = ReleaseOptimizer(halves, [name], config, 6, deviations={name: 0.5})
    for update in updates:
        made.apply(dict(update))
    for update in updates[:3]:
        first.apply(dict(update))
    kept = {key: value.clone() for key, value in first.tensors().items()}
    fresh = tiny_classifier()
    second = ReleaseOptimizer(fresh, [name], config, 6, deviations={name: 0.5})
    second.restore(kept, first.updates)
    for update in updates[3:]:
        second.apply(dict(update))
    assert torch.equal(whole.get_parameter(name), fresh.get_parameter(name))


@pytest.mark.parametrize("method", ["raptor", "together", "matched"])
def test_what_is_taken_off_is_the_noise_that_was_added_and_nothing_more_is_released(method: str) -> None:
    weights = {
        "shared": {"clipping_norm": 3e-6, "noise_weight": 1.0},
        "expert": {"clipping_norm": 4e-6, "noise_weight": 3.0},
    }
    given = {**CONFIG.model_dump(exclude_unset=True), **weights, "role_noise": "weighted"}
    logs, updates = {}, []
    for kind in ("adam", "adam_bc"):
        config = TrainingConfig.model_validate({**given, "optimizer": kind})
        log: list = []
        plan = plan_of(method, config)
        trainer = Trainer(
            tiny_classifier(dtype=torch.float32), records(), plan, config, random_source(config), log
        )
        trainer.begin(method)
        updates.clear()
        for stream in set(trainer._running):
            optimizer = stream._optimizer  # type: ignore[attr-defined]
            optimizer.apply = lambda update, made=optimizer, kept=updates: kept.append((made, update))
        first = config.shared.steps_per_cycle + config.expert.steps_per_cycle
        for _, _step in zip(range(first), trainer.remaining(), strict=False):
            pass
        # Later releases follow other weights, and name the digest of the one before.
        logs[kind] = [(one.stream, one.rate, one.noise_multiplier, one.sensitivity) for one in log]
    assert logs["adam"] == logs["adam_bc"]
    assert len(updates) == first
    for optimizer, update in updates:
        taken = {name: optimizer._optimizer._deviations[id(optimizer._parameters[name])] for name in update}
        for role in ("shared", "expert"):
            names = [name for name in update if name in getattr(trainer.trainable, role)]
            if names:
                noise = torch.cat([(update[name] / taken[name]).flatten() for name in names])
                assert float(noise.std()) == pytest.approx(1.0, rel=0.05)
    if method == "raptor":
        stream = plan.stream("expert")
        assert set(taken.values()) == {stream.noise_deviation / (config.batch_size / EXPERTS)}


def test_a_floor_without_its_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"adam_bc_floor is set, but training\.optimizer is adam"):
        config_of(adam_bc_floor=0.5)
    with pytest.raises(ValueError, match="greater than 0"):
        config_of(optimizer="adam_bc", adam_bc_floor=0)
