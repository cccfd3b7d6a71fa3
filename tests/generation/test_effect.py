"""What private tuning gains: a model that knows how to do something learns, under noise, when to do it."""

from __future__ import annotations

import math
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from raptor.dp.config import PrivacyConfig, StreamConfig, TrainingConfig
from raptor.dp.records import EncodedRecords
from raptor.dp.training import Trainer, random_source
from raptor.moe.language import load_language_model
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import record_votes
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.evaluation.scoring import score_completions
from raptor.pipelines.ingestion.encoding import load_tokenizer
from raptor.pipelines.training.planning import raptor_plan
from raptor.reporting.completions import CompletionMetrics, compute
from raptor.text.completions import Lengths, encode_prompted, ready
from tests.generation.world import VOCABULARY, pretrain, save_decoder, tiny_config

pytestmark = pytest.mark.exhaustive

LENGTHS = Lengths(18, 6)
TRAINED, HELD_OUT = 4000, 500
LAYER = 1
Pairs = list[tuple[str, str]]


def words(number: int, generator: np.random.Generator) -> list[str]:
    return ["".join(generator.choice(list(string.ascii_lowercase), size=4)) for _ in range(number)]


def public(number: int, seed: int) -> Pairs:
    """To write a word again, backwards, or its beginning twice."""
    generator = np.random.default_rng(seed)
    made = []
    for word in words(number, generator):
        task = str(generator.choice(["copy", "reverse", "double"]))
        made.append(
            (f"{task}: {word}\n", {"copy": word, "reverse": word[::-1], "double": word[:2] * 2}[task])
        )
    return made


def private(number: int, seed: int) -> Pairs:
    """An instruction that no public record has; what it means is known from private records alone."""
    return [(f"flip: {word}\n", word[::-1]) for word in words(number, np.random.default_rng(seed))]


def encoded(records: Pairs, tokenizer: Any, model: PreTrainedModel | None = None) -> EncodedRecords:
    prompts, answers = zip(*records, strict=True)
    made = encode_prompted(tokenizer, prompts, answers, LENGTHS)
    ids = torch.zeros(len(records), max(map(len, made.ids)), dtype=torch.int32)
    for row, tokens in enumerate(made.ids):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    lengths = torch.tensor([len(tokens) for tokens in made.ids])
    owners = torch.zeros(len(records), dtype=torch.int64)
    if model is not None:
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
        owners = assign_owners(record_votes(model, ids.long(), mask)[LAYER])
    return EncodedRecords(ids, lengths, torch.zeros_like(owners), owners, prompts=torch.tensor(made.prompts))


def measured(model: PreTrainedModel, records: EncodedRecords) -> CompletionMetrics:
    return compute(score_completions(model, records, math.log(VOCABULARY), 256, torch.device("cpu"), "x"))


def test_private_tuning_teaches_an_instruction_at_epsilon_8(tmp_path: Path) -> None:
    place = save_decoder(tmp_path / "decoder", tiny_config(width=48))
    pretrain(place, public(20_000, 0), steps=1500)
    tokenizer = ready(load_tokenizer(place))
    model = load_language_model(place)
    known, held_out = encoded(public(HELD_OUT, 99), tokenizer), encoded(private(HELD_OUT, 77), tokenizer)
    base = measured(model, held_out)
    assert measured(model, known).exact_match.value > 0.9
    assert base.exact_match.value < 0.1
    training = TrainingConfig(
        device="cpu",
        batch_size=500,
        cycles=20,
        frozen=("embeddings",),
        shared=StreamConfig(steps_per_cycle=4, learning_rate=1e-3),
        expert=StreamConfig(steps_per_cycle=1, learning_rate=1e-3),
    )
    plan = raptor_plan(
        {"layers": [LAYER], "experts": 4},
        {"population": TRAINED, "population_source": "declared", "taken_as_public": [], "num_classes": 0},
        PrivacyConfig(epsilon=8.0, delta=1e-5),
        training,
        EvaluationConfig(),
        EvaluationScope(True, ()),
    )
    assert plan.epsilon_planned <= 8.0
    trained = encoded(private(TRAINED, 7), tokenizer, model)
    Trainer(model, trained, plan, training, random_source(training), sink=[]).train()
    tuned = measured(model, held_out)
    assert tuned.exact_match.value > base.exact_match.value + 0.3
    assert tuned.perplexity < base.perplexity / 2
