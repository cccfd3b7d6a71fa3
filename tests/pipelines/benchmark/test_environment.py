"""The environment of the reported comparison: what it says is valid, and its sets are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from kedro.config import OmegaConfigLoader

from raptor.parameters import MODELS, load_models, validate
from raptor.pipelines.benchmark.recipes import BASELINES, HEADROOM, RAPTOR, RECIPES
from raptor.pipelines.benchmark.sets import locate
from raptor.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def parameters() -> dict:
    loader = OmegaConfigLoader(str(ROOT / "conf"), env="glue-cpu", **CONFIG_LOADER_ARGS)
    return validate(loader["parameters"], load_models(MODELS))


def test_every_method_has_a_valid_training(parameters: dict) -> None:
    config, bed = parameters["benchmark"], parameters["training"]
    for recipe in RECIPES.values():
        training = recipe.training(bed, 2.0, 0.5, config.full_frozen, config.full_step_sizes)
        rate = config.full_step_sizes["expert"] if recipe.trainable == "full" else bed.expert.learning_rate
        assert training.expert.learning_rate == pytest.approx(rate)
        assert training.head_learning_rate == pytest.approx(2 * bed.head_learning_rate)
        # All methods have the same schedule and the same sampling.
        assert training.steps(training.shared) == bed.steps(bed.shared)
        assert training.batch_size == bed.batch_size
        assert training.trainable == (recipe.trainable or bed.trainable)
        assert training.lora.rank == bed.lora.rank or training.trainable == "full"


def test_the_comparison_holds_what_it_needs(parameters: dict) -> None:
    config = parameters["benchmark"]
    assert {RAPTOR, "raptor_split", *HEADROOM} <= set(config.methods)
    assert {"monolithic", "scope_a", "scope_b"} <= set(config.methods) & set(BASELINES)
    # Where nothing is frozen, monolithic training of adapters is matched scope A by another name.
    training = parameters["training"]
    assert "monolithic_lora" in config.methods or (training.trainable == "lora" and not training.frozen)
    assert config.seeds == {"1": 5, "4": 3, "8": 3}


def test_its_sets_are_there(parameters: dict) -> None:
    config = parameters["benchmark"]
    folder = ROOT / config.folder
    if not folder.is_dir():
        pytest.skip(f"the sets of the comparison lie beside the repository, in {config.folder}")
    for name in config.sets:
        assert locate(folder, name).is_file()


def test_attacks_hold_what_they_need(parameters: dict) -> None:
    config = parameters["benchmark"]
    attacks = config.attacks
    assert set(attacks.sets) <= set(config.sets)
    assert {RAPTOR, "scope_a"} <= set(attacks.methods)
    # Without something that can be attacked, an attack that finds nothing says nothing.
    for methods in (attacks.methods, attacks.control_methods):
        assert any(not RECIPES[name].is_private for name in methods)
    assert len(attacks.epsilons) > 1
    assert attacks.models >= 16
