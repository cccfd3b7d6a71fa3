"""Where a base model may come from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import SwitchTransformersConfig, SwitchTransformersEncoderModel, T5Config, T5EncoderModel

from raptor.errors import ModelError, ParameterError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.language import load_language_model, save_language_model
from raptor.pipelines.base_model.config import BaseModelConfig
from raptor.pipelines.base_model.nodes import obtain_base_model
from raptor.pipelines.base_model.source import PUBLISHED, locate, locate_config
from raptor.pipelines.training.models import TunedLanguageModel, TunedModel
from raptor.text.completions import Lengths
from tests.checkpoints import save_checkpoint, weight_map
from tests.families import family_language_model
from tests.pipelines.directories import save_base_model, save_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_base_model(tmp_path / "model")


def obtain(source: Path | str, target: Path) -> set[str]:
    """Names of the files that the node's output saves."""
    model = obtain_base_model(BaseModelConfig(source=str(source)))
    target.mkdir()
    model.save_to(target)
    return {file.name for file in target.iterdir()}


def test_a_local_directory_is_copied_without_what_does_not_belong(directory: Path, tmp_path: Path) -> None:
    (directory / "modeling_custom.py").write_text("raise SystemExit")
    (directory / "optimizer.bin").write_bytes(b"x")
    (directory / "notes.csv").write_text("x")
    (directory / "checkpoint-1").mkdir()
    copied = obtain(directory, tmp_path / "copy")
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= copied
    assert not {"modeling_custom.py", "optimizer.bin", "notes.csv", "checkpoint-1"} & copied
    loaded = MoEClassifier.from_encoder(tmp_path / "copy", 2)
    original = MoEClassifier.from_encoder(directory, 2)
    assert all(bool((a == b).all()) for a, b in zip(loaded.parameters(), original.parameters(), strict=True))


def test_the_copy_of_a_link_is_a_file(directory: Path, tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in directory.iterdir():
        (linked / file.name).symlink_to(file)
    obtain(linked, tmp_path / "copy")
    assert not any(file.is_symlink() for file in (tmp_path / "copy").iterdir())


def test_code_that_comes_with_a_model_is_never_run(directory: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (directory / "custom.py").write_text(f"open({str(ran)!r}, 'w')")
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "custom.C", "AutoModel": "custom.M"}}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="config"):
        obtain(directory, tmp_path / "copy")
    assert not ran.exists()


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    dense = tmp_path / "dense"
    T5EncoderModel(
        T5Config(vocab_size=50, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    ).save_pretrained(dense)
    save_tokenizer(dense)
    with pytest.raises(ModelError, match="not covered"):
        obtain(dense, tmp_path / "copy")


def test_a_switch_model_without_a_sparse_layer_is_refused(tmp_path: Path) -> None:
    dense = tmp_path / "dense"
    shape = {"vocab_size": 50, "d_model": 8, "d_ff": 8, "d_kv": 4, "num_layers": 2, "num_heads": 2}
    config = SwitchTransformersConfig(**shape, num_experts=4)
    config.encoder_sparse_step = 0
    SwitchTransformersEncoderModel(config).save_pretrained(dense)
    save_tokenizer(dense)
    with pytest.raises(ModelError, match="no sparse layer"):
        obtain(dense, tmp_path / "copy")


def test_a_tuned_model_is_no_public_base(directory: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    MoEClassifier.from_encoder(directory, 2).save_pretrained(tuned, ["a", "b"])
    save_tokenizer(tuned)
    with pytest.raises(ModelError, match="not public"):
        obtain(tuned, tmp_path / "copy")


def test_a_tuned_language_model_is_no_public_base(tmp_path: Path) -> None:
    """Nothing but its config tells it from a public one, which has a generation config, too."""
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    save_language_model(family_language_model("olmoe"), base)
    save_tokenizer(base)
    obtain(base, tmp_path / "copy")
    tuned.mkdir()
    TunedLanguageModel(load_language_model(base), base, "prompt", Lengths(8, 4)).save_to(tuned)
    with pytest.raises(ModelError, match="not public"):
        obtain(tuned, tmp_path / "second")


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_an_index_that_is_none_is_refused(directory: Path, tmp_path: Path, index: str) -> None:
    (directory / "model.safetensors").rename(directory / "model-00001-of-00001.safetensors")
    (directory / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json (is no index|names no file)"):
        obtain(directory, tmp_path / "copy")


@pytest.mark.parametrize("name", ["gone.safetensors", "parts/model.safetensors", "../model.safetensors"])
def test_parts_that_are_not_beside_their_index_are_refused(
    directory: Path, tmp_path: Path, name: str
) -> None:
    for folder in (directory / "parts", directory.parent):
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelError, match="not beside it"):
        obtain(directory, tmp_path / "copy")


def test_a_tensor_in_two_parts_is_refused(directory: Path, tmp_path: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    first = next(iter(weights))
    for name, part in (("one", weights), ("two", {first: weights[first] + 1})):
        save_file(part, directory / f"{name}.safetensors", metadata={"format": "pt"})
    named = dict.fromkeys(weights, "one.safetensors") | {first: "two.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    with pytest.raises(ModelError, match="has it, too"):
        obtain(directory, tmp_path / "copy")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(directory: Path, tmp_path: Path, value: float) -> None:
    weights = load_file(directory / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = value
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="not finite"):
        obtain(directory, tmp_path / "copy")


@pytest.mark.parametrize("odd", [{"num_heads": 0}, {"d_ff": -1}, {"dense_act_fn": "odd"}])
def test_a_config_that_breaks_the_loader_is_one_error(directory: Path, tmp_path: Path, odd: dict) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **odd}))
    with pytest.raises(ModelError):
        obtain(directory, tmp_path / "copy")


def test_a_model_without_tokenizer_is_refused(directory: Path, tmp_path: Path) -> None:
    for file in directory.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        obtain(directory, tmp_path / "copy")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({"pad": None, "end": None}, "no token for padding"),
        ({"extra": 40}, "tokens up to 68, but the model has 50 embeddings"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    directory: Path, tmp_path: Path, tokenizer: dict, message: str
) -> None:
    save_tokenizer(directory, **tokenizer)
    with pytest.raises(ModelError, match=message):
        obtain(directory, tmp_path / "copy")


def test_a_tokenizer_without_a_padding_token_is_given_one_when_the_tuned_model_is_saved(
    directory: Path, tmp_path: Path
) -> None:
    """As that of Mixtral: what stands after a record's end is left out by the mask."""
    from transformers import AutoTokenizer

    save_tokenizer(directory, pad=None)
    obtain(directory, tmp_path / "copy")
    model = MoEClassifier.from_encoder(directory, 2)
    (tmp_path / "tuned").mkdir()
    TunedModel(model, tmp_path / "copy", ("a", "b"), "text", 6).save_to(tmp_path / "tuned")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tuned")
    assert tokenizer.pad_token == "</s>"
    assert tokenizer(["a", "a b c"], padding=True)["attention_mask"] == [[1, 1, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("content", ["{", '{"tokenizer_class": "No"}'])
def test_a_broken_tokenizer_is_one_error(directory: Path, tmp_path: Path, content: str) -> None:
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="tokenizer"):
        obtain(directory, tmp_path / "copy")


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_broken_weights_are_one_error(directory: Path, tmp_path: Path, damage: str) -> None:
    weights = directory / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        weights.unlink()
    with pytest.raises(ModelError, match="weights"):
        obtain(directory, tmp_path / "copy")


@pytest.mark.parametrize("source", ["/no/such/place", "./no_such_place", "~/no_such_place"])
def test_a_missing_directory_is_not_looked_up_on_the_hub(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("went to the hub"))
    with pytest.raises(ParameterError, match="no such directory"):
        locate(BaseModelConfig(source=source))


def test_a_hub_name_is_downloaded_without_code(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((name, revision, allow_patterns))
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate(BaseModelConfig(source="google/switch-base-8", revision="abc")) == directory
    ((name, revision, patterns),) = calls
    assert (name, revision) == ("google/switch-base-8", "abc")
    assert not any(
        pattern.endswith((".py", ".bin", "*")) and "LICENSE" not in pattern for pattern in patterns
    )


def test_pickled_weights_are_fetched_only_when_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *_, allow_patterns, **__: calls.append(allow_patterns) or str(tmp_path),
    )
    locate(BaseModelConfig(source="old/model"))
    assert ["pytorch_model*.bin" in patterns for patterns in calls] == [False, True]


def test_no_network_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError\nlong advice")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        ModelError, match=r"'no/model' is no directory here.*ConnectError.*embedded"
    ) as caught:
        locate(BaseModelConfig(source="no/model"))
    assert "\n" not in str(caught.value)


def test_a_malformed_hub_name_is_one_clear_error() -> None:
    with pytest.raises(ModelError, match="is no directory here"):
        locate(BaseModelConfig(source="a/b/c"))


def test_a_sharded_checkpoint_of_a_language_model_is_accepted_whole(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "hub", "olmoe")
    copied = obtain(tmp_path / "hub", tmp_path / "copy")
    assert set(weight_map(tmp_path / "hub").values()) | {"model.safetensors.index.json"} <= copied
    copy, original = (MoEClassifier.from_encoder(tmp_path / name, 2) for name in ("copy", "hub"))
    assert all(bool((a == b).all()) for a, b in zip(copy.parameters(), original.parameters(), strict=True))


def test_a_config_is_found_without_the_network(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("went to the hub"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    assert locate_config(BaseModelConfig(source=str(directory)))[0] == directory
    assert (locate_config(BaseModelConfig())[0] / "config.json").is_file()
    place, words = locate_config(BaseModelConfig(source="google/switch-base-8"))
    assert place == PUBLISHED / "google/switch-base-8"
    assert "published" in words
    with pytest.raises(
        ParameterError, match=r"someone/other is not here.*google/switch-base-8.*config\.json"
    ):
        locate_config(BaseModelConfig(source="someone/other"))
    with pytest.raises(ParameterError, match="no such directory"):
        locate_config(BaseModelConfig(source="./nowhere"))


def test_a_malformed_hub_name_has_no_config() -> None:
    with pytest.raises(ParameterError, match="no hub name"):
        locate_config(BaseModelConfig(source="a/b/c"))


def test_a_config_in_the_hubs_cache_goes_before_the_published_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(directory / "config.json")
    )
    place, words = locate_config(BaseModelConfig(source="google/switch-base-8"))
    assert place == directory
    assert "cache" in words


def test_the_embedded_model_is_accepted(tmp_path: Path) -> None:
    """The default needs no network, and its weights stay small enough to ship."""
    copied = obtain("embedded", tmp_path / "copy")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= copied
    assert (tmp_path / "copy" / "model.safetensors").stat().st_size <= 8 * 2**20
