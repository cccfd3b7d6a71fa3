"""Find, check and copy the files of a public base model."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import raptor
from raptor.errors import ModelError, ParameterError
from raptor.pipelines.base_model.config import EMBEDDED, BaseModelConfig
from raptor.text.encoding import padding_token

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
# Only when a model has no safetensors: pickles are read by torch with weights_only, but are still pickles.
PICKLED_WEIGHTS = ("pytorch_model*.bin", "pytorch_model*.bin.index.json")
# Named one by one, so that a directory's code, checkpoints and optimizer states stay behind.
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "README.md",
    "LICENSE*",
)
ASSETS = Path(raptor.__file__).parent / "assets"
PUBLISHED = ASSETS / "published"
"""config.json of models of the hub, by name."""
TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.txt", "vocab.json")


@dataclass(frozen=True)
class PublicModel:
    """A checked model directory, to be copied by ``raptor.datasets.PretrainedDirectory``."""

    files: tuple[Path, ...]

    def save_to(self, directory: Path) -> None:
        """Copy the files into ``directory``; links, as in the hub's cache, become files."""
        for file in self.files:
            shutil.copyfile(file, directory / file.name)


def locate(config: BaseModelConfig) -> Path:
    """The directory of the source; a hub name is downloaded first.

    Raises:
        ParameterError: the source is neither ``embedded``, nor a directory, nor a hub name.
        ModelError: the download failed.
    """
    if config.source != EMBEDDED:
        directory = Path(config.source).expanduser()
        if directory.is_dir():
            return directory
        if directory.exists() or directory.is_absolute() or config.source.startswith((".", "~")):
            raise ParameterError(
                f"base_model.source is {config.source!r}, but there is no such directory. Give a Hugging Face model "
                f"directory, a hub name such as google/switch-base-8, or {EMBEDDED}."
            )
        return _download(config.source, config.revision)
    return ASSETS / "base_model"


def locate_config(config: BaseModelConfig) -> tuple[Path, str]:
    """Where the config of the source is, without a download, and in words what it is.

    A hub name's is taken from the hub's cache, else from the published configs that are kept with this package.

    Raises:
        ParameterError: the source does not exist, or its config is not here.
    """
    source = config.source
    if source == EMBEDDED or Path(source).expanduser().exists() or source.startswith((".", "~", "/")):
        return locate(config), "its own config"
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(source, "config.json", revision=config.revision)
    except HFValidationError as error:
        raise ParameterError(
            f"base_model.source {source!r} is no directory here and no hub name ({error})."
        ) from None
    if isinstance(cached, str):
        return Path(cached).parent, "its config in the hub's cache"
    if (PUBLISHED / source / "config.json").is_file():
        return PUBLISHED / source, "its published config, which is kept with this package"
    known = sorted(
        file.parent.relative_to(PUBLISHED).as_posix() for file in PUBLISHED.glob("*/*/config.json")
    )
    raise ParameterError(
        f"The config of {source} is not here, and nothing is downloaded now. Kept with this package are those of "
        f"{', '.join(known)}. For another model put its config.json into a folder, and give the folder as "
        "base_model.source."
    )


def check(directory: Path) -> PublicModel:
    """Load the model and its tokenizer once, so that a broken source fails here and not after ingestion.

    Raises:
        ModelError: the config, the weights or the tokenizer cannot be loaded, the model has no sparse layer, the
            tokenizer does not fit the model, or the directory holds a model that RAPTOR has tuned.
    """
    import torch

    from raptor.moe.classifier import HEAD_FILE, TEXT_COLUMNS, load_encoder, read_config

    if (directory / HEAD_FILE).exists() or hasattr(read_config(directory), TEXT_COLUMNS):
        raise ModelError(
            f"{directory} was tuned on private records (it has {HEAD_FILE}, or {TEXT_COLUMNS} in its config.json), so "
            "it is not public and cannot be a base model. Set base_model.source to one that has seen public data only."
        )
    weights = _weights(directory)
    try:
        encoder = load_encoder(directory)
    except ModelError:
        raise
    except Exception as error:
        # The library's loaders raise what they like, KeyError and plain Exception among them.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"The model in {directory} cannot be loaded: {reason}") from error
    for name, value in encoder.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ModelError(f"{directory} has weights that are not finite ({name}). Take the model anew.")
    if not _matching(directory, TOKENIZER_FILES):
        raise ModelError(
            f"{directory} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}). "
            "Save the model's tokenizer there with save_pretrained."
        )
    _check_tokenizer(directory, int(encoder.config.vocab_size))
    return PublicModel(tuple(sorted({*_matching(directory, TEXT_FILES), *weights})))


def _weights(directory: Path) -> list[Path]:
    """The files that the library reads: one with all weights, or an index and its shards.

    Raises:
        ModelError: there are none, or the index does not fit the files beside it.
    """
    for whole in ("model.safetensors", "pytorch_model.bin"):
        if (directory / whole).is_file():
            return [directory / whole]
        index = directory / f"{whole}.index.json"
        if index.is_file():
            return [index, *_shards(index)]
    raise ModelError(f"{directory} has no weights: neither model.safetensors nor an index of its parts.")


def _keys(shard: Path) -> list[str]:
    if shard.suffix != ".safetensors":
        return []
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(shard, "pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise ModelError(f"The weights in {shard} cannot be loaded: {error}") from error


def _shards(index: Path) -> list[Path]:
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in listed.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is no index of weights: it has no readable weight_map.") from error
    shards = [index.parent / name for name in names]
    wrong = [
        name
        for name, shard in zip(names, shards, strict=True)
        if Path(name).name != name or not shard.is_file()
    ]
    if wrong or not names:
        what = f"{wrong[0]!r}, which is not beside it" if wrong else "no file"
        raise ModelError(f"{index} names {what}. Put all parts of the model into one folder.")
    # A tensor that stands in another part, too, would be taken from whichever is read last.
    for name, shard in zip(names, shards, strict=True):
        if other := sorted(key for key in _keys(shard) if listed.get(key, name) != name):
            raise ModelError(
                f"{index} says that {other[0]} is in {listed[other[0]]}, and {name} has it, too. Take the model anew."
            )
    return shards


def _check_tokenizer(directory: Path, embeddings: int) -> None:
    from raptor.pipelines.ingestion.encoding import load_tokenizer

    try:
        tokenizer = load_tokenizer(directory)
    except Exception as error:
        # The tokenizer back ends raise what they like, plain Exception among them.
        raise ModelError(f"The tokenizer in {directory} cannot be loaded: {error}") from error
    if padding_token(tokenizer) is None:
        raise ModelError(
            f"The tokenizer in {directory} has no token for padding, end or unknown words. Set its pad_token and "
            "save it again."
        )
    largest = max([len(tokenizer) - 1, *tokenizer.get_vocab().values()])
    if largest >= embeddings:
        raise ModelError(
            f"The tokenizer in {directory} has tokens up to {largest}, but the model has {embeddings} embeddings. "
            "Take the model's own tokenizer."
        )


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    def fetch(*patterns: str) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))

    try:
        directory = fetch(*TEXT_FILES, *WEIGHTS)
        return directory if _matching(directory, WEIGHTS) else fetch(*TEXT_FILES, *PICKLED_WEIGHTS)
    # Every error of the hub's client is an OSError, but for a malformed name.
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"base_model.source {name!r} is no directory here, and the Hugging Face hub did not give it ({reason}). "
            f"Check the name and the network, give a local directory, or set base_model.source to {EMBEDDED}."
        ) from error


def _matching(directory: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [file for pattern in patterns for file in directory.glob(pattern) if file.is_file()]
