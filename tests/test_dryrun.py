"""Dry runs: known counts of known models, memory against what passes really keep, and words on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModel, OlmoeConfig, PretrainedConfig, SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
)

from raptor.accounting.accountant import epsilon
from raptor.accounting.types import Adjacency, Event
from raptor.cli import cli
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import LoRAConfig, TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.records import Batch
from raptor.dp.trainable import make_trainable
from raptor.dryrun import EXPERT, HEAD, SHARED, sizes
from raptor.errors import ModelError
from raptor.moe.classifier import MoEClassifier, deterministic, read_config
from raptor.moe.families import sparse_layers
from raptor.pipelines.base_model.source import PUBLISHED
from tests.checkpoints import save_checkpoint
from tests.families import FAMILY_NAMES
from tests.live import Live

LORA = TrainingConfig(trainable="lora", lora=LoRAConfig(rank=128, alpha=256.0))
SMALL = TrainingConfig(trainable="lora", lora=LoRAConfig(rank=2))


def test_switch_base_8_has_the_published_numbers() -> None:
    """The paper reports 307.85 million for the encoder, and 17.30 million trained numbers."""
    found = sizes(read_config(PUBLISHED / "google/switch-base-8"), "google/switch-base-8", LORA)
    head = 2 * 768 + 2
    assert found.total - head == 307_846_272
    assert sum(found.trained.values()) - head == 17_301_504
    assert found.roles[EXPERT] == 6 * 8 * 2 * 768 * 3072
    assert (found.layers, found.experts, found.top_k) == ((1, 3, 5, 7, 9, 11), 8, 1)


def test_olmoe_has_the_published_numbers() -> None:
    """6.92 billion with the head of the language model, 1.3 billion of them active."""
    found = sizes(read_config(PUBLISHED / "allenai/OLMoE-1B-7B-0924"), "olmoe", SMALL)
    assert found.total - found.roles[HEAD] + 50_304 * 2048 == 6_919_161_856
    assert 1.05e9 < found.active < 1.3e9
    assert (len(found.layers), found.experts, found.top_k) == (16, 64, 8)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_counts_are_those_of_the_loaded_model(family: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, family)
    found = sizes(read_config(tmp_path), family, SMALL, classes=3)
    model = MoEClassifier.from_encoder(tmp_path, 3)
    assert found.total == sum(parameter.numel() for parameter in model.parameters())
    trainable = make_trainable(model, SMALL, [sparse_layers(model)[-1].index])
    assert found.trained == {
        SHARED: trainable.count(trainable.shared),
        EXPERT: trainable.count(trainable.expert),
    }
    assert found.active_trained < found.active < found.total


def test_a_language_model_has_its_own_head_and_no_new_one() -> None:
    found = sizes(read_config(PUBLISHED / "allenai/OLMoE-1B-7B-0924"), "olmoe", SMALL, classes=0)
    assert found.total == 6_919_161_856
    assert found.roles[HEAD] == 0


def olmoe(width: int = 64, inner: int = 32, top_k: int = 2) -> PretrainedConfig:
    return OlmoeConfig(
        vocab_size=100,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=8,
        num_experts_per_tok=top_k,
        eos_token_id=2,
    )


def switch() -> PretrainedConfig:
    return SwitchTransformersConfig(
        vocab_size=100,
        d_model=64,
        d_ff=128,
        d_kv=16,
        num_layers=4,
        num_heads=4,
        num_sparse_encoder_layers=2,
        num_experts=8,
    )


@pytest.mark.parametrize(
    ("make", "tokens", "trainable"),
    [
        (olmoe, 16, "lora"),
        (lambda: olmoe(inner=96, top_k=4), 64, "lora"),
        (olmoe, 16, "full"),
        (switch, 64, "lora"),
    ],
)
def test_what_a_pass_keeps_is_foreseen(
    make: Callable[[], PretrainedConfig], tokens: int, trainable: str
) -> None:
    training = TrainingConfig.model_validate({"device": "cpu", "trainable": trainable})
    config = make()
    found = sizes(config, "a config", training)
    kind: Any = SwitchTransformersEncoderModel if make is switch else AutoModel._model_mapping[type(config)]
    model = MoEClassifier(kind(deterministic(config)), 2).eval()
    torch.nn.init.normal_(model.head.weight)
    layer = sparse_layers(model)[-1].index
    engine = engine_specs(make_trainable(model, training, [layer]), [layer], training)[0].build(model)
    ids = torch.randint(1, 100, (32, tokens), generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros(32, dtype=torch.int64)
    batch = Batch(ids, torch.ones_like(ids), zeros, zeros)
    with Live(model) as live:
        engine.clipped_sum(batch, ClippingRule(1.0))
    assert 0.75 < found.kept(32, tokens) / live.peak < 1.33


@pytest.mark.parametrize(
    "odd",
    [
        {"hidden_size": 0},
        {"num_attention_heads": 0},
        {"num_experts": 0},
        {"num_experts_per_tok": 65},
        {"num_hidden_layers": 0},
        {"vocab_size": 0},
    ],
)
def test_a_config_that_makes_no_model_is_refused(tmp_path: Path, odd: dict[str, int]) -> None:
    known = json.loads((PUBLISHED / "allenai/OLMoE-1B-7B-0924/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**known, **odd}))
    with pytest.raises(ModelError, match=r"makes no model|not a readable|no sparse layer"):
        sizes(read_config(tmp_path), str(tmp_path), SMALL)


def test_a_config_of_no_covered_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ModelError, match="not covered"):
        sizes(read_config(tmp_path), "some/model", SMALL)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "olmoe", "hidden_size": "wide"}))
    with pytest.raises(ModelError, match="not a readable model config"):
        read_config(tmp_path)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("went to the hub"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("env", "steps", "most"),
    [("glue-switch", 1320, 4.0), ("glue-olmoe", 1320, 4.0), ("scienceqa-vl2", 72, 8.0)],
)
@pytest.mark.usefixtures("no_hub")
def test_each_environment_is_described_offline(
    env: str, steps: int, most: float, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    done = CliRunner().invoke(cli, ["plan", "--env", env, "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    streams = {stream["name"]: stream for stream in shown["privacy"]["streams"]}
    assert streams["shared"]["steps"] + streams["expert"]["steps"] == steps
    assert shown["privacy"]["epsilon"] <= most
    assert shown["base_model"]["total"] == sum(shown["base_model"]["roles"].values())
    assert shown["memory"]["device"] > 4 * shown["base_model"]["total"]
    assert shown["seconds"]["training"] > shown["work"]["training"] / shown["speeds"]["operations"] * 0.999


@pytest.mark.usefixtures("no_hub")
def test_parameters_of_the_command_line_and_speed_of_another_machine_count(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At epsilon 1 and rho 0.9, each stream alone at its share and half of delta."""
    monkeypatch.chdir(repository)
    given = "privacy.epsilon=1.0,evaluation.records_are_public=true"
    done = CliRunner().invoke(
        cli, ["plan", "--env", "glue-switch", "--dry-run", "--tflops", "30", "--params", given, "--json"]
    )
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    noise = {stream["name"]: stream["noise_multiplier"] for stream in shown["privacy"]["streams"]}
    rate, half = 1024 / 67_349, 4.88e-6 / 2
    for name, share in (("shared", 0.9), ("expert", 0.1)):
        found = epsilon(
            [Event(rate, noise.pop(name), 660)], half, Adjacency.ADD_REMOVE, confirm=False
        ).epsilon
        assert found == pytest.approx(share, rel=1e-3)
    assert not noise
    assert shown["speeds"]["operations"] == 3e13


@pytest.mark.usefixtures("no_hub")
def test_kedro_run_describes_a_run_of_ones_own_checkpoint_too(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, "qwen3_moe")
    monkeypatch.chdir(repository)
    done = CliRunner().invoke(
        cli,
        [
            "run",
            "--env",
            "glue-olmoe",
            "--dry-run",
            "--params",
            f"base_model.source={tmp_path},training.cycles=3",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "(qwen3_moe), from its own config" in done.output
    assert "3 sparse layers of 4 experts, 2 for each token" in done.output
    assert "Nothing was downloaded" in done.output


def test_speed_of_another_machine_goes_with_a_dry_run() -> None:
    done = CliRunner().invoke(cli, ["plan", "--tflops", "30"])
    assert done.exit_code == 2
    assert "--dry-run" in done.output
