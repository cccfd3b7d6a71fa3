"""The embedded base model: it loads offline, is small, has even routers and treats records apart."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
    SwitchTransformersTop1Router,
)

from raptor.text.docstrings import public_docstrings

EXPERTS = 8
LENGTH = 32


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(str(files("raptor") / "assets" / "base_model"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


@pytest.fixture(scope="module")
def encoder(directory: Path) -> SwitchTransformersEncoderModel:
    return SwitchTransformersEncoderModel.from_pretrained(
        directory, local_files_only=True, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def batch(tokenizer: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """512 public docstrings as (ids, mask), each of shape (512, 32)."""
    texts = public_docstrings(limit=512)["text"].to_pylist()
    encoded = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


def _pooled(encoder: SwitchTransformersEncoderModel, ids: Tensor, mask: Tensor) -> Tensor:
    with torch.inference_mode():
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def test_files_are_small_and_free_of_code(directory: Path) -> None:
    names = {path.name for path in directory.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "SHEET.md",
    } <= names
    assert not any(path.suffix in {".py", ".bin", ".pkl", ".pt"} for path in directory.iterdir())
    assert sum(path.stat().st_size for path in directory.iterdir()) <= 8_000_000


def test_size_and_settings(encoder: SwitchTransformersEncoderModel) -> None:
    assert 2_000_000 <= sum(p.numel() for p in encoder.parameters()) <= 4_000_000
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in encoder.parameters())
    routers = [m for m in encoder.modules() if isinstance(m, SwitchTransformersTop1Router)]
    assert len(routers) >= 3
    assert all(r.num_experts == EXPERTS and r.expert_capacity >= 512 and r.jitter_noise == 0 for r in routers)
    config = encoder.config
    # A balance loss over a batch would couple private records.
    assert config.router_aux_loss_coef == config.router_z_loss_coef == config.dropout_rate == 0


def test_tokenizer_covers_plain_text(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.is_fast
    assert tokenizer.pad_token_id == 0
    assert tokenizer.unk_token_id == 1
    assert tokenizer.padding_side == "right"
    text = "Return the sum of an array along the given axis (default: None), e.g. x[0] + 1."
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert ids == tokenizer(text.upper())["input_ids"]
    # Nothing is cut or padded unless the caller asks.
    assert len(tokenizer(text * 20)["input_ids"]) == 20 * len(ids)


def test_vocabulary_fits_the_embedding(
    tokenizer: PreTrainedTokenizerBase, encoder: SwitchTransformersEncoderModel
) -> None:
    assert len(tokenizer) == encoder.config.vocab_size


def test_routers_are_balanced_on_public_text(
    encoder: SwitchTransformersEncoderModel, batch: tuple[Tensor, Tensor]
) -> None:
    outputs: list[tuple[Tensor, Tensor, Tensor]] = []
    routers = [m for m in encoder.modules() if isinstance(m, SwitchTransformersTop1Router)]
    hooks = [r.register_forward_hook(lambda _m, _i, out: outputs.append(out)) for r in routers]
    _pooled(encoder, *batch)
    for hook in hooks:
        hook.remove()
    mask = batch[1][..., None]
    for choice, probability, _ in outputs:
        for votes in (choice * mask, choice * probability * mask):
            owners = votes.sum(1).argmax(-1)
            share = torch.bincount(owners, minlength=EXPERTS) / len(owners)
            entropy = -(share * share.clamp_min(1e-9).log()).sum().item() / math.log(EXPERTS)
            assert entropy >= 0.92
            assert share.min() >= 0.03


def test_padding_changes_nothing(
    encoder: SwitchTransformersEncoderModel, tokenizer: PreTrainedTokenizerBase, batch: tuple[Tensor, Tensor]
) -> None:
    ids, mask = batch[0][:32], batch[1][:32]
    longer = torch.nn.functional.pad(ids, (0, 16), value=tokenizer.pad_token_id)
    longer_mask = torch.nn.functional.pad(mask, (0, 16), value=0)
    torch.testing.assert_close(
        _pooled(encoder, ids, mask), _pooled(encoder, longer, longer_mask), atol=1e-5, rtol=1e-5
    )


def test_records_do_not_see_each_other(
    encoder: SwitchTransformersEncoderModel, batch: tuple[Tensor, Tensor]
) -> None:
    ids, mask = batch
    whole = _pooled(encoder, ids, mask)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_pooled(encoder, ids[order], mask[order]), whole[order], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(_pooled(encoder, ids[:7], mask[:7]), whole[:7], atol=1e-5, rtol=1e-5)


def test_different_texts_are_told_apart(
    encoder: SwitchTransformersEncoderModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = [
        "Compute the eigenvalues of a symmetric matrix.",
        "Return the eigenvectors and eigenvalues of a square matrix.",
        "Open a network connection and send the request to the server.",
    ]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    unit = torch.nn.functional.normalize(
        _pooled(encoder, encoded["input_ids"], encoded["attention_mask"]), dim=-1
    )
    similarity = unit @ unit.T
    assert similarity[0, 1] > similarity[0, 2] + 0.2
    assert similarity[0, 1] > similarity[1, 2] + 0.2
