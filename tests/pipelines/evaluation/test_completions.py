"""Held-out completions: one pass tells what greedy decoding does, and private ones leave with noise, once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from raptor.accounting.plan import read_plan
from raptor.accounting.types import Unit
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.plan import EVALUATION
from raptor.dp.streams import RandomSource
from raptor.errors import ParameterError
from raptor.moe.language import load_language_model
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope
from raptor.pipelines.evaluation.noise import release_tables
from raptor.pipelines.evaluation.scoring import score, score_completions
from raptor.pipelines.training.planning import raptor_plan
from raptor.pipelines.training.records import held_out_records
from raptor.reporting.completions import CompletionTable
from raptor.reporting.methods import BASE, RAPTOR
from tests.generation.world import VOCABULARY, save_decoder

CPU = torch.device("cpu")
END = 2
BOUND = math.log(VOCABULARY)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("decoder") / "base")


def continued(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What greedy decoding gives, the end mark included."""
    made = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=END,
        pad_token_id=0,
        use_cache=True,
    )
    ids: list[int] = made[0, len(prompt) :].tolist()
    return ids


def split(rows: list[tuple[list[int], list[int]]]) -> Any:
    table = datasets.Dataset.from_dict(
        {
            "input_ids": [prompt + answer for prompt, answer in rows],
            "label": [0] * len(rows),
            "prompt": [len(prompt) for prompt, _ in rows],
        }
    )
    kinds = {
        "input_ids": datasets.List(datasets.Value("int32")),
        "label": datasets.Value("int64"),
        "prompt": datasets.Value("int64"),
    }
    return table.cast(datasets.Features(kinds))


def test_exact_match_is_that_of_greedy_decoding(decoder: Path) -> None:
    model = load_language_model(decoder)
    prompts = [[1, *range(4, 4 + length)] for length in (1, 3, 5, 2)]
    given = [continued(model, prompt, 4) for prompt in prompts]
    # The second and the last one differ in one token, the one in the middle, the other at the end.
    wrong = [list(answer) for answer in given]
    wrong[1][1] = wrong[1][1] % 8 + 4 if wrong[1][1] != wrong[1][1] % 8 + 4 else 20
    wrong[3][-1] = 25 if wrong[3][-1] != 25 else 26
    rows = [*zip(prompts, wrong, strict=True), ([1, 9, 9], [])]
    table = score_completions(model, held_out_records(split(rows), Unit.RECORD), BOUND, 8, CPU, "x")
    assert table.sums[:2].tolist() == [4.0, 2.0]
    for size in (1, 2):
        again = score_completions(model, held_out_records(split(rows), Unit.RECORD), BOUND, size, CPU, "x")
        np.testing.assert_allclose(again.sums, table.sums, rtol=1e-5)


def test_losses_are_means_over_the_completion_cut_at_the_bound(decoder: Path) -> None:
    model = load_language_model(decoder)
    rows = [([1, 5, 6], [7, 8, END]), ([1, 5], [9, END])]
    expected = []
    for prompt, answer in rows:
        logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0].log_softmax(-1)
        expected.append(
            np.mean([-float(logits[len(prompt) + at - 1, token]) for at, token in enumerate(answer)])
        )
    table = score(
        model, held_out_records(split(rows), Unit.RECORD), EvaluationConfig(loss_bound=20.0), CPU, "x"
    )
    assert isinstance(table, CompletionTable)
    assert 20.0 * table.sums[2] == pytest.approx(sum(expected), rel=1e-5)
    cut = score(model, held_out_records(split(rows), Unit.RECORD), EvaluationConfig(loss_bound=0.5), CPU, "x")
    assert isinstance(cut, CompletionTable)
    assert cut.sums[2:].tolist() == [2.0, 2.0]


def test_a_model_that_gives_no_numbers_costs_no_more_than_the_bound(decoder: Path) -> None:
    model = load_language_model(decoder)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    table = score_completions(
        model, held_out_records(split([([1, 5], [9, END])]), Unit.RECORD), BOUND, 8, CPU, "x"
    )
    assert table.sums.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_the_largest_class_is_no_baseline_of_completions() -> None:
    scope = evaluation_scope(EvaluationConfig(), "own", continues=True)
    assert scope.baselines == (BASE,)
    assert scope.releases == 2
    assert evaluation_scope(EvaluationConfig(records_are_public=True), "own", continues=True).baselines == (
        BASE,
        "nonprivate",
        "monolithic",
    )
    with pytest.raises(ParameterError, match="largest_class"):
        evaluation_scope(EvaluationConfig(baselines=("largest_class",)), "own", continues=True)


def test_private_completions_are_released_once_with_the_planned_noise(decoder: Path, tmp_path: Path) -> None:
    evaluation = EvaluationConfig(noise_multiplier=3.0)
    scope = evaluation_scope(evaluation, "own", continues=True)
    training = TrainingConfig(batch_size=12, cycles=2, randomness="seeded", seed=1)
    constants = {"population": 60, "population_source": "declared", "taken_as_public": [], "num_classes": 0}
    made = raptor_plan(
        {"layers": [1], "experts": 4},
        constants,
        PrivacyConfig(epsilon=4.0, delta=1e-4),
        training,
        evaluation,
        scope,
    )
    plan = read_plan(made.to_json())
    assert plan.stream(EVALUATION).steps == 2
    exact = {name: CompletionTable(np.array([500.0, 100.0, 50.0, 20.0]), BOUND) for name in (RAPTOR, BASE)}
    noisy, log = release_tables(exact, plan, decoder, tmp_path, RandomSource.seeded(1))
    for table in noisy.values():
        assert isinstance(table, CompletionTable)
        assert table.noise == 6.0
        assert np.all(table.sums != exact[RAPTOR].sums)
        assert np.abs(table.sums - exact[RAPTOR].sums).max() < 6 * 6.0
    # One line for the plan, one for each release.
    assert len(log) == 3
    again, same = release_tables(exact, plan, decoder, tmp_path, RandomSource.seeded(2))
    assert same == log
    assert [table.to_json() for table in again.values()] == [table.to_json() for table in noisy.values()]
