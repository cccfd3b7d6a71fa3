"""A whole small world for the evaluation's nodes: model, records, plan and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.training.planning import raptor_plan
from tests.pipelines.directories import save_base_model

LABELS = ("x", "y", "z")
LAYER_PLAN = {"layers": [1], "experts": 4}
CONSTANTS = {"population": 60, "population_source": "declared", "taken_as_public": ["the number of records"]}


def constants(source: str) -> dict[str, Any]:
    return {**CONSTANTS, "source": "embedded" if source == "embedded" else "own"}


PRIVACY = PrivacyConfig(epsilon=4.0, delta=1e-4)
TRAINING = TrainingConfig(
    device="cpu", batch_size=12, physical_batch_size=8, cycles=2, randomness="seeded", seed=1
)


@dataclass(frozen=True)
class World:
    """Everything that the nodes read; `evaluation` and `ingestion` say whether records are public."""

    base_model: Path
    raptor_model: Path
    journals: Path
    train: datasets.Dataset
    heldout: datasets.Dataset
    evaluation: EvaluationConfig
    ingestion: IngestionConfig
    plan: Mapping[str, Any]


def records(size: int, seed: int) -> datasets.Dataset:
    """Records of three classes; the class shows in the tokens."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, size=size, p=[0.5, 0.3, 0.2])
    ids = [
        [int(t) for t in generator.integers(3 + 8 * label, 12 + 8 * label, size=generator.integers(2, 9))]
        for label in labels
    ]
    return datasets.Dataset.from_dict({"input_ids": ids, "label": labels}).cast(
        datasets.Features(
            {"input_ids": datasets.List(datasets.Value("int32")), "label": datasets.Value("int64")}
        )
    )


def make_world(folder: Path, source: str, heldout: int = 50, **evaluation: Any) -> World:
    """The files of a world in `folder`; the private model is a base model with a random head."""
    import torch

    base, model, journals = folder / "base", folder / "model", folder / "journals"
    journals.mkdir(parents=True)
    save_base_model(base)
    classifier = MoEClassifier.from_encoder(base, len(LABELS))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        torch.nn.init.normal_(classifier.head.weight)
    classifier.save_pretrained(model, LABELS)
    config = EvaluationConfig(**{"calibration_bins": 4, "batch_size": 16, **evaluation})
    scope = evaluation_scope(config, source)
    plan = raptor_plan(LAYER_PLAN, CONSTANTS, PRIVACY, TRAINING, config, scope).to_json()
    return World(
        base,
        model,
        journals,
        records(60, 0),
        records(heldout, 1),
        config,
        IngestionConfig(source=source),
        plan,
    )
