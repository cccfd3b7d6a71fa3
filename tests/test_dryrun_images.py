"""Dry runs of models that read images: counts of the published model, and memory against what passes really keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from raptor.cli import cli
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import LoRAConfig, TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.trainable import make_trainable
from raptor.dryrun import sizes
from raptor.errors import ModelError, ParameterError
from raptor.moe.classifier import read_config
from raptor.moe.vl2 import Vl2Config
from raptor.pipelines.base_model.source import PUBLISHED
from tests.dp.test_image_gradients import make_batch, make_model
from tests.live import Live
from tests.vl2 import CONFIG

TINY = "deepseek-ai/deepseek-vl2-tiny"
ADAPTERS = TrainingConfig(
    trainable="lora", lora=LoRAConfig(rank=2, targets=["*.language.layers.*.self_attn.*_proj"])
)
TOWER = ["*.vision.*"]


def with_frozen(*patterns: str) -> TrainingConfig:
    return TrainingConfig(frozen=list(patterns))


def test_deepseek_vl2_tiny_has_the_published_numbers() -> None:
    """3.37 billion with the head of the language model and the tower's pooling, neither of which is used."""
    found = sizes(read_config(PUBLISHED / TINY), TINY, ADAPTERS, images=True, image_tiles=1)
    width, inner, hidden = 1152, 4304, 1280
    pooling = 4 * (width**2 + width) + 2 * width * inner + inner + width + 3 * width
    published = found.total - found.roles["head"] + 129_280 * hidden + pooling
    assert round(published / 1e9, 2) == 3.37
    assert (len(found.layers), found.experts, found.top_k) == (11, 64, 6)
    # The whole image and one tile: 14 lines of 14 features and a sign, twice, and what parts the two.
    assert found.pictures is not None
    assert (found.pictures.tokens, found.pictures.views, found.pictures.patches) == (
        2 * 14 * 15 + 1,
        2,
        27**2,
    )
    assert found.pictures.trained == 0


def test_an_image_is_work_and_a_trained_tower_more() -> None:
    config = Vl2Config(**CONFIG)
    plain, still = sizes(config, "x", ADAPTERS), sizes(config, "x", ADAPTERS, images=True)
    assert plain.pictures is None
    assert still.pictures is not None
    assert still.active == plain.active
    more = still.pictures.tokens
    assert still.forward_work(10) == plain.forward_work(10 + more) + still.pictures.forward_work
    assert still.step_work(10) == plain.step_work(10 + more) + still.pictures.forward_work
    moved = sizes(config, "x", with_frozen("*.vision.embeddings.*"), images=True).pictures
    frozen = sizes(config, "x", with_frozen(*TOWER), images=True).pictures
    assert moved is not None
    assert frozen is not None
    assert (frozen.back_work, frozen.kept) == (0, 0)
    assert moved.back_work > moved.forward_work
    assert moved.kept > 0


def test_fewer_tiles_are_fewer_tokens_and_none_are_refused() -> None:
    config = read_config(PUBLISHED / TINY)
    all_tiles = sizes(config, TINY, ADAPTERS, images=True).pictures
    assert all_tiles is not None
    assert all_tiles.views == 10
    with pytest.raises(ParameterError, match="image_tiles is 0"):
        sizes(config, TINY, ADAPTERS, images=True, image_tiles=0)


def test_a_model_of_text_alone_is_refused(repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    done = CliRunner().invoke(
        cli, ["plan", "--env", "glue-switch", "--dry-run", "--params", "ingestion.image=picture"]
    )
    assert done.exit_code == 1
    assert "reads text alone" in done.output


@pytest.mark.parametrize(
    "training",
    [
        ADAPTERS,
        with_frozen(*TOWER),
        with_frozen("*.vision.embeddings.*"),
    ],
    ids=["lora", "tower frozen", "tower trained"],
)
def test_what_a_pass_keeps_is_foreseen(training: TrainingConfig) -> None:
    model = make_model(torch.float32)
    batch = make_batch(model, [(2, 2)] * 8, text=10)
    found = sizes(Vl2Config(**CONFIG), "x", training, classes=3, images=True)
    assert found.pictures is not None
    assert found.places(11) == batch.input_ids.shape[1]
    engine = engine_specs(make_trainable(model, training, [2]), [2], training)[0].build(model)
    with Live(model) as live:
        engine.clipped_sum(batch, ClippingRule(1.0))
    assert 0.67 < found.kept(8, 11) / live.peak < 1.5


@pytest.mark.parametrize(
    "odd",
    [
        {"candidate_resolutions": []},
        {"candidate_resolutions": [[384, 384, 384]]},
        {"candidate_resolutions": [[100, 384]]},
        {"projector_config": {"downsample_ratio": 0}},
        {"vision_config": {"patch_size": 1000}},
        {"vision_config": {"patch_size": 0}},
        {"vision_config": {"width": "wide"}},
        {"language_config": {"num_hidden_layers": 0, "use_mla": False}},
    ],
    ids=str,
)
def test_a_config_that_makes_no_image_is_refused(tmp_path: Path, odd: dict[str, Any]) -> None:
    known = json.loads((PUBLISHED / TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**known, **odd}))
    with pytest.raises(ModelError):
        sizes(read_config(tmp_path), str(tmp_path), ADAPTERS, images=True)
