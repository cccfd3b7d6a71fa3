"""The routing profile of a real (tiny) model, the layer plan and the figure."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from matplotlib.image import imread
from pydantic import ValidationError

from raptor.errors import DataError, ParameterError
from raptor.moe.classifier import load_encoder
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import record_votes
from raptor.moe.statistics import profile_layers
from raptor.pipelines.selection.config import SelectionConfig
from raptor.pipelines.selection.nodes import plot_routing, profile_routing, select_layers
from raptor.pipelines.selection.profile import from_json, headline, to_json
from tests.pipelines.directories import WORDS, save_base_model

CONFIG = SelectionConfig(bootstrap=50)


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base_model(tmp_path_factory.mktemp("base") / "model", layers=3, sparse=3, experts=4)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 12))) for _ in range(300)]


@pytest.fixture(scope="module")
def profile(base_model: Path, texts: list[str]) -> dict:
    return profile_routing(base_model, Dataset.from_dict({"text": texts}), CONFIG, "weight", 8)


def owners_of_one(base_model: Path, text: str, vote: str, max_length: int) -> dict[int, int]:
    """Owner by layer of one text alone, without batch or padding."""
    ids = [*(WORDS.index(word) + 3 for word in text.split()[: max_length - 1]), 1]
    inputs = torch.tensor([ids])
    votes = record_votes(load_encoder(base_model), inputs, torch.ones_like(inputs), vote=vote)
    return {layer: int(assign_owners(layer_votes)) for layer, layer_votes in votes.items()}


def test_the_histogram_counts_the_owners_of_single_records(base_model: Path, texts: list[str]) -> None:
    """Neither sorting by length nor padding nor the batch moves a record to another expert."""
    few = texts[:40]
    found = profile_routing(base_model, Dataset.from_dict({"text": few}), CONFIG, "count", 8)
    single = [
        {vote: owners_of_one(base_model, text, vote, 8) for vote in ("weight", "count")} for text in few
    ]
    for row in found["layers"]:
        layer = row["layer"]
        counts = np.bincount([owner["count"][layer] for owner in single], minlength=4)
        assert row["counts"] == tuple(counts)
        agree = [owner["count"][layer] == owner["weight"][layer] for owner in single]
        assert row["vote_agreement"] == pytest.approx(np.mean(agree))
    assert any(row["vote_agreement"] < 1 for row in found["layers"])


def test_the_profile_has_every_sparse_layer_and_every_pair(profile: dict) -> None:
    assert [row["layer"] for row in profile["layers"]] == [0, 1, 2]
    assert [(gap["first"], gap["second"]) for gap in profile["gaps"]] == [(0, 1), (0, 2), (1, 2)]
    assert (profile["owner_vote"], profile["max_length"], profile["records"], profile["bootstrap"]) == (
        "weight",
        8,
        300,
        50,
    )
    for row in profile["layers"]:
        assert row["experts"] == 4
        assert sum(row["counts"]) == row["records"] == 300
        assert 0 < row["entropy"] <= math.log(4)
        assert row["entropy_standard_error"] > 0
        assert 0 < row["vote_agreement"] <= 1


def test_the_profile_survives_json(profile: dict) -> None:
    again = json.loads(json.dumps(profile, allow_nan=False))
    assert from_json(again) == from_json(profile)
    assert to_json(from_json(again))["gaps"] == profile["gaps"]


def test_max_length_and_vote_matter(base_model: Path, texts: list[str], profile: dict) -> None:
    corpus = Dataset.from_dict({"text": texts})
    shorter = profile_routing(base_model, corpus, CONFIG, "weight", 3)
    counted = profile_routing(base_model, corpus, CONFIG, "count", 8)
    assert [row["counts"] for row in shorter["layers"]] != [row["counts"] for row in profile["layers"]]
    assert [row["counts"] for row in counted["layers"]] != [row["counts"] for row in profile["layers"]]
    assert [row["vote_agreement"] for row in counted["layers"]] == [
        row["vote_agreement"] for row in profile["layers"]
    ]


def test_the_same_corpus_gives_the_same_profile(base_model: Path, texts: list[str], profile: dict) -> None:
    assert profile_routing(base_model, Dataset.from_dict({"text": texts}), CONFIG, "weight", 8) == profile


def test_an_empty_corpus_is_refused(base_model: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        profile_routing(base_model, Dataset.from_dict({"text": []}), CONFIG, "weight", 8)


def test_the_plan_names_the_layer_and_the_runner_up(profile: dict) -> None:
    plan = json.loads(json.dumps(select_layers(profile, CONFIG), allow_nan=False))
    by_entropy = sorted(profile["layers"], key=lambda row: -row["entropy"])
    assert plan["layers"] == [by_entropy[0]["layer"]]
    assert plan["runner_up"] == by_entropy[1]["layer"]
    assert plan["gap"] == pytest.approx(by_entropy[0]["entropy"] - by_entropy[1]["entropy"])
    assert plan["gap_standard_error"] > 0
    assert plan["significant"] == (plan["gap"] >= 2 * plan["gap_standard_error"])
    assert (plan["experts"], plan["owner_vote"], plan["rule"]) == (4, "weight", "argmax entropy")


def test_several_layers_are_those_of_the_largest_entropy(profile: dict) -> None:
    by_entropy = [row["layer"] for row in sorted(profile["layers"], key=lambda row: -row["entropy"])]
    for number in (1, 2, 3):
        plan = select_layers(profile, SelectionConfig(protected_layers=number))
        assert plan["layers"] == by_entropy[:number]
    assert headline(select_layers(profile, SelectionConfig(protected_layers=2))).startswith(
        f"Layers {by_entropy[0]}, {by_entropy[1]} are protected"
    )
    with pytest.raises(ParameterError, match="protected_layers is 4, but there are only 3"):
        select_layers(profile, SelectionConfig(protected_layers=4))


def test_named_layers_restrict_the_choice(profile: dict) -> None:
    worst = min(profile["layers"], key=lambda row: row["entropy"])["layer"]
    plan = select_layers(profile, SelectionConfig(layers=[worst]))
    assert (plan["layers"], plan["runner_up"], plan["gap"]) == ([worst], None, None)
    assert select_layers(profile, SelectionConfig(layers=worst)) == plan
    with pytest.raises(ParameterError, match=r"names \[7\].*are \[0, 1, 2\]"):
        select_layers(profile, SelectionConfig(layers=(1, 7)))


@pytest.mark.parametrize(
    "wrong", [{"corpus_records": 0}, {"bootstrap": 1}, {"layers": "best"}, {"layer": [1]}, {"corpus": ""}]
)
def test_wrong_parameters_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        SelectionConfig(**wrong)


def table(*owners: np.ndarray, experts: int = 4) -> dict:
    by_layer = {2 * place + 1: layer for place, layer in enumerate(owners)}
    statistics = profile_layers(by_layer, by_layer, dict.fromkeys(by_layer, experts), 20)
    return {"owner_vote": "weight", "records": len(owners[0]), **to_json(statistics)}


def test_the_headline_does_not_call_a_tie_a_win() -> None:
    even, idle = np.arange(400) % 4, np.zeros(400, dtype=np.int64)
    assert "most even" in headline(select_layers(table(even, idle), CONFIG))
    assert "no layer wins" in headline(select_layers(table(even, 3 - even), CONFIG))
    assert "only candidate" in headline(select_layers(table(even), CONFIG))


@pytest.mark.parametrize(("layers", "experts"), [(1, 2), (3, 8), (16, 64)])
def test_the_figure_is_drawn_at_every_size(layers: int, experts: int) -> None:
    generator = np.random.default_rng(layers)
    profile = table(*(generator.integers(experts, size=500) for _ in range(layers)), experts=experts)
    plan = select_layers(profile, CONFIG)
    figure = plot_routing(profile, plan)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    buffer.seek(0)
    assert np.ptp(imread(buffer)) > 0.5
    top, middle, bottom = figure.axes
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert bottom.get_xlabel()
    heights = [bar.get_height() for bar in top.patches]
    assert heights == pytest.approx([row["normalised_entropy"] for row in profile["layers"]])
    assert [bar.get_height() for bar in middle.patches] == pytest.approx(
        [row["entropy_deficit"] for row in profile["layers"]]
    )
    assert len(bottom.patches) == layers * experts
    colours = [bar.get_facecolor() for bar in top.patches]
    chosen = [row["layer"] for row in profile["layers"]].index(plan["layers"][0])
    assert all((colour == colours[chosen]) == (place == chosen) for place, colour in enumerate(colours))
    assert any("chosen" in text.get_text() for text in top.texts)


@pytest.mark.parametrize("stage", ["selection", "base_model"])
def test_building_the_pipeline_imports_nothing_heavy(stage: str) -> None:
    script = (
        f"import sys; from raptor.pipelines.{stage} import create_pipeline; assert create_pipeline().nodes; "
        "print(*[m for m in ('torch','transformers','datasets','mlflow','pandas','matplotlib','sklearn','pyarrow') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_last_sparse_layer_can_be_asked_for() -> None:
    assert SelectionConfig(layers="last").candidates([1, 5, 3]) == (5,)
    assert SelectionConfig(layers=(1, 3)).candidates([1, 5, 3]) == (1, 3)
    assert SelectionConfig().candidates([1]) is None
