"""Prompts and completions as tensors: what counts, for records and for users, and what one of them can move."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import JointGradients
from raptor.dp.gradients.losses import IGNORED, causal_loss, loss_of
from raptor.dp.records import EncodedRecords
from raptor.errors import DataError
from raptor.moe.roles import shared_parameters
from tests.dp import oracle
from tests.dp.engines import difference, total_norm
from tests.dp.float64 import keep_float64
from tests.families import family_classifier, family_language_model

CPU = torch.device("cpu")
# Of the last record nothing but the prompt is there.
TOKENS = ([5, 6, 7, 8, 2], [9, 10, 2], [11, 12, 13, 14, 15, 2], [16, 17])
PROMPTS = (2, 1, 5, 2)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def records(groups: list[list[int]] | None = None) -> EncodedRecords:
    ids = torch.zeros(len(TOKENS), max(map(len, TOKENS)), dtype=torch.int32)
    for row, tokens in enumerate(TOKENS):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    units = len(TOKENS) if groups is None else len(groups)
    return EncodedRecords(
        ids,
        torch.tensor([len(tokens) for tokens in TOKENS]),
        torch.zeros(len(TOKENS), dtype=torch.int64),
        torch.zeros(units, dtype=torch.int64),
        None if groups is None else torch.tensor(groups),
        prompts=torch.tensor(PROMPTS),
    )


def test_tokens_behind_the_prompt_count_and_no_others() -> None:
    batch = records().take(torch.arange(4), CPU)
    for row, (tokens, prompt) in enumerate(zip(TOKENS, PROMPTS, strict=True)):
        expected = [IGNORED] * prompt + tokens[prompt:]
        assert batch.labels[row].tolist() == expected + [IGNORED] * (6 - len(tokens))
    assert len(batch) == 4


def test_rows_that_fill_up_a_user_count_for_nothing() -> None:
    batch = records([[0, 1], [2, -1], [3, -1]]).take(torch.arange(3), CPU)
    assert batch.members == 2
    assert (batch.labels[3] == IGNORED).all()
    assert (batch.labels[5] == IGNORED).all()
    assert (batch.labels[2] != IGNORED).sum() == 1


def test_the_loss_goes_with_the_model() -> None:
    assert loss_of(family_language_model("olmoe")) is causal_loss
    assert loss_of(family_classifier("olmoe")).__name__ == "classification_loss"


def test_the_loss_of_a_record_is_the_mean_over_its_completion() -> None:
    model = family_language_model("mixtral")
    losses = causal_loss(model, records().take(torch.arange(4), CPU))
    for row, (tokens, prompt) in enumerate(zip(TOKENS, PROMPTS, strict=True)):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(dim=-1)
        own = [-logits[place - 1, tokens[place]] for place in range(prompt, len(tokens))]
        expected = torch.stack(own).mean() if own else torch.tensor(0.0, dtype=torch.float64)
        torch.testing.assert_close(losses[row], expected)


@pytest.mark.parametrize("tied", [False, True])
def test_the_gradient_of_a_user_is_that_of_the_mean_of_the_users_records(tied: bool) -> None:
    """Records without a completion are no part of the mean."""
    model = family_language_model("olmoe", tie_word_embeddings=tied)
    names = shared_parameters(model)
    single = oracle.record_gradients(model, names, records().take(torch.arange(4), CPU), loss=causal_loss)
    users = [
        {name: (single[0][name] + single[1][name]) / 2 for name in names},
        {name: single[2][name] for name in names},
    ]
    batch = records([[0, 1, 3], [2, -1, -1]]).take(torch.arange(2), CPU)
    for norm in (1e3, 1e-3):
        found = JointGradients(model, names).clipped_sum(batch, ClippingRule(norm)).tensors
        assert difference(found, oracle.clipped_sum(users, ClippingRule(norm))) <= 1e-8


def test_a_record_moves_a_sum_by_the_clipping_norm_however_many_tokens_it_has() -> None:
    model = family_language_model("olmoe")
    engine = JointGradients(model, shared_parameters(model))
    long = torch.arange(3, 43)[None]
    for prompt in (1, 39):
        record = EncodedRecords(
            long.int(),
            torch.tensor([40]),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            prompts=torch.tensor([prompt]),
        )
        found = engine.clipped_sum(record.take(torch.tensor([0]), CPU), ClippingRule(1e-2)).tensors
        # Clipped as a whole, to C: token by token it would be up to 39 C. Factors are rounded down.
        assert total_norm(found) <= 1e-2
        assert total_norm(found) == pytest.approx(1e-2, rel=1e-3)


def test_records_of_another_task_are_refused() -> None:
    records().require_task(0)
    with pytest.raises(DataError, match="have completions"):
        records().require_below(classes=3, owners=None)
    with pytest.raises(DataError, match="different numbers of rows"):
        EncodedRecords(
            *records().tensors()[:4],
            prompts=torch.tensor([1]),
        )


def test_a_fingerprint_covers_where_completions_begin() -> None:
    moved = dataclasses.replace(records(), prompts=torch.tensor(PROMPTS) - 1)
    assert records().fingerprint(b"key") != moved.fingerprint(b"key")
    assert records().fingerprint(b"key") != records().fingerprint(b"another")
