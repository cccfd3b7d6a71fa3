"""Sparse decoders from a directory and back, heads of their own or tied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from raptor.errors import ModelError, ParameterError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.language import (
    is_language_model,
    load_language_model,
    load_tuned,
    load_untrained,
    require_decoder,
    save_language_model,
)
from tests.families import CONFIGS, family_classifier, family_language_model
from tests.pipelines.directories import save_base_model

IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_family_comes_back_from_its_directory(tmp_path: Path, family: str, tied: bool) -> None:
    model = family_language_model(family, torch.float32, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "base")
    loaded = load_language_model(tmp_path / "base")
    assert is_language_model(loaded)
    assert ("lm_head.weight" in dict(loaded.named_parameters())) is not tied
    expected = model(input_ids=IDS, use_cache=False).logits
    torch.testing.assert_close(loaded(input_ids=IDS, use_cache=False).logits, expected, rtol=1e-4, atol=1e-4)
    save_language_model(loaded, tmp_path / "tuned")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    torch.testing.assert_close(plain(input_ids=IDS).logits, expected, rtol=1e-3, atol=1e-3)
    # Off in training alone.
    assert plain.config.use_cache


def test_a_tuned_head_that_is_tied_stays_the_table(tmp_path: Path) -> None:
    model = family_language_model("olmoe", torch.float32, tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "base")
    loaded = load_language_model(tmp_path / "base")
    with torch.no_grad():
        loaded.get_input_embeddings().weight[7] += 1.0
    save_language_model(loaded, tmp_path / "tuned")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    assert torch.equal(plain.lm_head.weight, loaded.get_input_embeddings().weight)


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    save_base_model(tmp_path)
    with pytest.raises(ModelError, match="no covered decoder"):
        require_decoder(tmp_path)
    assert not is_language_model(family_classifier("olmoe"))


def test_more_tokens_than_positions_are_refused(tmp_path: Path) -> None:
    family_language_model("olmoe", torch.float32).save_pretrained(tmp_path)
    require_decoder(tmp_path, 64)
    with pytest.raises(ParameterError, match="64 positions"):
        require_decoder(tmp_path, 65)


def test_lacking_weights_are_refused(tmp_path: Path) -> None:
    family_language_model("olmoe", torch.float32).model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"lacks weights: lm_head\.weight"):
        load_language_model(tmp_path)


def test_the_number_of_classes_says_what_is_trained(tmp_path: Path) -> None:
    family_language_model("olmoe", torch.float32).save_pretrained(tmp_path / "decoder")
    save_base_model(tmp_path / "encoder")
    classifier = load_untrained(tmp_path / "encoder", 3)
    assert isinstance(classifier, MoEClassifier)
    assert is_language_model(load_untrained(tmp_path / "decoder", 0))
    classifier.save_pretrained(tmp_path / "classes", ("a", "b", "c"))
    assert isinstance(load_tuned(tmp_path / "classes"), MoEClassifier)
    assert is_language_model(load_tuned(tmp_path / "decoder"))
