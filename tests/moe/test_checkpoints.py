"""Checkpoints of every family as the hub serves them: what is read, written again, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, SwitchTransformersEncoderModel

from raptor.dp.config import TrainingConfig
from raptor.errors import ModelError
from raptor.moe.classifier import HEAD_FILE, MoEClassifier, load_encoder, pool
from raptor.moe.families import FAMILIES, sparse_layers
from raptor.moe.precision import in_double
from raptor.moe.roles import Role, parameter_roles
from raptor.pipelines.training.planning import require_isolated
from tests.checkpoints import (
    FUSED,
    FUSED_FAMILIES,
    PER_EXPERT,
    drop_tensor,
    matching,
    save_checkpoint,
    weight_map,
)
from tests.dp.engines import EVERY_FAMILY, MAIN_ROLES, assert_matches, make_batch
from tests.dp.float64 import keep_float64
from tests.families import EXPERTS, FAMILY_NAMES
from tests.tiny import tiny_batch

LAYOUTS = [(family, False) for family in FAMILY_NAMES] + [(family, True) for family in FUSED_FAMILIES]
LABELS = ("no", "perhaps", "yes")


def hidden(encoder: Any) -> torch.Tensor:
    ids, mask, _ = tiny_batch()
    with torch.no_grad():
        states: torch.Tensor = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return states[mask.bool()]


def classifier(directory: Path) -> MoEClassifier:
    """A classifier on a loaded checkpoint, with a head that is not zero."""
    model = MoEClassifier.from_encoder(directory, len(LABELS)).eval()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.nn.init.normal_(model.head.weight, std=0.5)
        torch.nn.init.normal_(model.head.bias, std=0.1)
    return model


def test_every_family_has_its_checkpoints_here() -> None:
    # Records with images have tests of their own.
    assert {family.name for family in FAMILIES} == {*PER_EXPERT, "upcycled", "deepseek_vl_v2"}
    assert set(FAMILY_NAMES) == set(PER_EXPERT)


@pytest.mark.parametrize(("family", "fused"), LAYOUTS)
def test_both_layouts_are_read_from_shards(family: str, fused: bool, tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, family, fused=fused)
    names = weight_map(tmp_path)
    assert len(set(names.values())) > 2
    assert matching(names, FUSED if fused else PER_EXPERT[family])
    assert not matching(names, PER_EXPERT[family] if fused else FUSED)
    encoder = load_encoder(tmp_path)
    whole: Any = saved
    truth = whole.encoder if family == "switch_transformers" else whole.model
    torch.testing.assert_close(hidden(encoder), hidden(truth), rtol=0, atol=0)
    assert next(encoder.parameters()).dtype == torch.float32
    assert {layer.num_experts for layer in sparse_layers(encoder)} == {EXPERTS}
    assert set(Role) == {entry.role for entry in parameter_roles(encoder).values()}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_classifier_is_saved_as_the_hub_has_it_and_loaded_with_equal_logits(
    family: str, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "base", family)
    model = classifier(tmp_path / "base")
    ids, mask, _ = tiny_batch()
    with torch.no_grad():
        expected = model(ids, mask)
    (tmp_path / "tuned").mkdir()
    model.save_pretrained(tmp_path / "tuned", LABELS)
    with torch.no_grad():
        assert torch.equal(MoEClassifier.from_pretrained(tmp_path / "tuned").eval()(ids, mask), expected)
    # For transformers alone, too, and with names as other programs know them.
    kind: Any = SwitchTransformersEncoderModel if family == "switch_transformers" else AutoModel
    plain = kind.from_pretrained(tmp_path / "tuned").eval()
    torch.testing.assert_close(hidden(plain), hidden(model.encoder))
    from safetensors import safe_open

    with safe_open(tmp_path / "tuned/model.safetensors", "pt") as file:
        assert matching(list(file.keys()), PER_EXPERT[family].removeprefix(r"model\."))
    again = MoEClassifier.from_encoder(tmp_path / "base", 3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.encoder.parameters(), again.encoder.parameters(), strict=True)
    )


@pytest.mark.parametrize("role", MAIN_ROLES)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_gradients_of_a_loaded_checkpoint_are_those_of_a_loop_over_records(
    family: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_float64(monkeypatch)
    save_checkpoint(tmp_path, family, fused=family in FUSED_FAMILIES and role == "expert")
    model = classifier(tmp_path)
    in_double(model)
    padding = ("right", "none")[FAMILY_NAMES.index(family) % 2]
    batch = make_batch(model, role, padding, records=5, tokens=6)
    assert_matches(model, role, batch, norms=(None, 1e-3))


@pytest.mark.parametrize("trainable", ["lora", pytest.param("full", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_the_gate_lets_a_loaded_checkpoint_pass(family: str, trainable: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, family)
    model = MoEClassifier.from_encoder(tmp_path, 3)
    layer = sparse_layers(model)[-1].index
    chosen = {"lora": {"rank": 2}} if trainable == "lora" else {}
    found = require_isolated(
        model, [layer], TrainingConfig.model_validate({"device": "cpu", "trainable": trainable, **chosen})
    )
    assert found.groups == ("shared", "expert")


@pytest.mark.parametrize("family", ["olmoe", "switch_transformers", "granitemoe"])
def test_weights_of_half_precision_are_read_in_float32(family: str, tmp_path: Path) -> None:
    saved: Any = save_checkpoint(tmp_path, family, dtype=torch.bfloat16)
    encoder = load_encoder(tmp_path)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    truth = dict((saved if family == "switch_transformers" else saved.model).named_parameters())
    for name, parameter in encoder.named_parameters():
        assert torch.equal(parameter, truth[name].float()), name


def test_pickled_weights_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    """As some older directories of the hub have it."""
    saved: Any = save_checkpoint(tmp_path, "switch_transformers")
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    torch.save(saved.state_dict(), tmp_path / "pytorch_model.bin")
    torch.testing.assert_close(hidden(load_encoder(tmp_path)), hidden(saved.encoder), rtol=0, atol=0)


@pytest.mark.parametrize(("family", "fused"), LAYOUTS)
def test_one_tensor_of_an_expert_less_is_refused(family: str, fused: bool, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, family, fused=fused)
    gone = matching(weight_map(tmp_path), FUSED if fused else PER_EXPERT[family])[-1]
    drop_tensor(tmp_path, gone)
    with pytest.raises(ModelError, match=r"lacks weights|cannot be loaded"):
        load_encoder(tmp_path)


def test_what_is_left_out_is_not_listed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Or the decoder of a Switch model would fill the terminal."""
    save_checkpoint(tmp_path, "switch_transformers")
    load_encoder(tmp_path)
    assert "decoder." not in "".join(capfd.readouterr())


def test_a_shard_less_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "olmoe")
    (tmp_path / sorted(set(weight_map(tmp_path).values()))[1]).unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_encoder(tmp_path)


def test_code_beside_a_covered_model_is_not_run(tmp_path: Path) -> None:
    """As DeepSeek-V2 is served: with code of its own, where transformers has the model."""
    save_checkpoint(tmp_path, "deepseek_v2")
    ran = tmp_path / "ran"
    (tmp_path / "modeling_deepseek.py").write_text(f"open({str(ran)!r}, 'w')")
    place = tmp_path / "config.json"
    config = json.loads(place.read_text())
    config["auto_map"] = {
        "AutoConfig": "modeling_deepseek.DeepseekV2Config",
        "AutoModel": "modeling_deepseek.DeepseekV2Model",
    }
    place.write_text(json.dumps(config))
    assert sparse_layers(load_encoder(tmp_path))
    assert not ran.exists()


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_pooling_is_that_of_the_family_and_is_kept(family: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "base", family)
    model = classifier(tmp_path / "base")
    expected = "mean" if family == "switch_transformers" else "last"
    assert model.pooling == expected
    other = MoEClassifier(model.encoder, 3, "last" if expected == "mean" else "mean")
    (tmp_path / "other").mkdir()
    other.save_pretrained(tmp_path / "other", LABELS)
    assert MoEClassifier.from_pretrained(tmp_path / "other").pooling == other.pooling != expected


def test_the_last_token_is_the_last_real_one_wherever_padding_is() -> None:
    states = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    found = pool(states, mask, "last")
    assert torch.equal(found[:3], states[[0, 1, 2], [2, 4, 4]])
    assert not found[3].any()
    assert torch.allclose(pool(states, mask, "mean")[0], states[0, :3].mean(dim=0))


def test_a_head_that_does_not_say_how_it_pools_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_checkpoint(tmp_path / "base", "olmoe")
    (tmp_path / "tuned").mkdir()
    classifier(tmp_path / "base").save_pretrained(tmp_path / "tuned", LABELS)
    head = tmp_path / "tuned" / HEAD_FILE
    save_file(load_file(head), head, metadata={"pooling": "most"})
    with pytest.raises(ModelError, match="'most' for pooling"):
        MoEClassifier.from_pretrained(tmp_path / "tuned")
