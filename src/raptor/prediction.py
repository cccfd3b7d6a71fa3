"""Labels and probabilities of a trained model for the texts of a file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from raptor.errors import DataError, ModelError, ParameterError
from raptor.text.problems import shorten

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from raptor.moe.classifier import MoEClassifier
    from raptor.moe.vl2.tiling import ImageFormat

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
# What the tokenizers library can cut at.
LONGEST = 2**31 - 1
CHUNK = 4096
BATCH = 256
# Records with an image that are in memory at once.
FEW = 64


@dataclass(frozen=True)
class Prediction:
    """Answers for some texts in the order of the file.

    Attributes:
        first: number of the first record, counted from 1.
        labels: class indices, (records,).
        probabilities: (records, classes) float64.
    """

    first: int
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]


@dataclass(frozen=True)
class Predictor:
    """A trained model with its tokenizer and the names of its classes."""

    model: MoEClassifier
    tokenizer: Any
    label_names: tuple[str, ...]
    text: str | tuple[str, ...]
    max_length: int
    device: Any
    image: str | None = None
    form: ImageFormat | None = None

    @classmethod
    def load(cls, directory: Path, device: str = "auto") -> Predictor:
        """Load a released or exported model; nothing is downloaded and no code of the directory is run.

        Raises:
            ModelError: a file is missing or does not fit the others.
            ParameterError: the device is not on this machine.
        """
        from raptor.dp.training import resolve_device
        from raptor.moe.classifier import MoEClassifier
        from raptor.pipelines.images import image_format
        from raptor.pipelines.ingestion.encoding import load_tokenizer

        place = resolve_device(device)
        model = MoEClassifier.from_pretrained(directory)
        config = model.encoder.config
        listed: dict[Any, Any] = dict(config.id2label or {})
        names = tuple(str(listed.get(number, "")) for number in range(model.num_labels))
        if len(listed) != model.num_labels or not all(names) or len(set(names)) < len(names):
            raise ModelError(
                f"{directory} has a head of {model.num_labels} classes, and different names for "
                f"{len(set(listed.values()))}. Its files come from different models."
            )
        tokenizer = load_tokenizer(directory)
        image = getattr(config, "image_column", None)
        form = None if image is None else image_format(directory, tokenizer, config.image_tiles)
        return cls(
            model.to(place).eval(),
            tokenizer,
            names,
            text_columns(getattr(config, "text_columns", "text"), directory),
            max_length_of(tokenizer.model_max_length, directory),
            place,
            image,
            form,
        )

    def answers(self, texts: pa.Table) -> Iterator[Prediction]:
        """Answers for a table with the columns `text` and `text_pair`, some thousand records at a time.

        A model that was trained on images takes the column `image`, too, and fewer records at a time.
        """
        from raptor.text.encoding import encode_texts

        paired = texts["text_pair"].null_count < len(texts)
        done = 0
        for batch in texts.to_batches(CHUNK if self.form is None else FEW):
            pairs = batch.column("text_pair").to_pylist() if paired else None
            ids = encode_texts(self.tokenizer, batch.column("text").to_pylist(), pairs, self.max_length)
            if self.form is None:
                probabilities = self._probabilities(ids)
            else:
                probabilities = self._of_images(ids, batch.column("image").to_pylist())
            yield Prediction(done + 1, probabilities.argmax(axis=1), probabilities)
            done += len(batch)

    def _of_images(self, ids: Sequence[Sequence[int]], images: Sequence[bytes | None]) -> NDArray[np.float64]:
        """As `_probabilities`, of records with images, one by one."""
        import numpy as np
        import torch

        from raptor.pipelines.images import image_input

        result = np.empty((len(ids), len(self.label_names)))
        for row, (record, image) in enumerate(zip(ids, images, strict=True)):
            if self.form is None:
                raise AssertionError("only a model of images is asked about some")
            tokens, pictures = image_input(record, image, self.form, self.tokenizer.bos_token_id)
            given = torch.tensor([tokens], device=self.device)
            with torch.no_grad():
                logits = self.model(given, torch.ones_like(given), pictures.to(self.device))
            result[row] = logits[0].cpu().double().softmax(dim=0).numpy()
        return result

    def _probabilities(self, ids: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        import numpy as np
        import torch

        from raptor.text.encoding import pad_batch

        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        result = np.empty((len(ids), len(self.label_names)))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            tokens, mask = (
                torch.from_numpy(array).to(self.device) for array in pad_batch([ids[row] for row in rows], 0)
            )
            with torch.no_grad():
                logits = self.model(tokens, mask)
            result[rows] = logits.cpu().double().softmax(dim=1).numpy()
        return result


def text_columns(given: Any, directory: Path) -> str | tuple[str, ...]:
    """The columns that a model was trained on, as its config says."""
    columns = (given,) if isinstance(given, str) else given
    if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
        raise ModelError(
            f"{directory / 'config.json'}: text_columns names no columns. Take the directory anew from the project "
            "that trained it."
        )
    return given if isinstance(given, str) else tuple(columns)


def max_length_of(given: Any, directory: Path) -> int:
    """Tokens of a text that a model reads; a tokenizer that was told none has a number beyond any text's length."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= LONGEST:
        raise ModelError(
            f"{directory / 'tokenizer_config.json'}: model_max_length is no number of tokens. It says where training "
            "cut the texts; take the directory anew from the project that trained it."
        )
    return given


def write_predictions(
    answers: Iterable[Prediction],
    label_names: Sequence[str],
    output: Path,
    source: Path | None = None,
    model: Path | None = None,
) -> int:
    """Write one row a record: its number, the likeliest class, and the probability of every class.

    CSV and TSV have the columns `row`, `label`, and `p(NAME)` for each class; Parquet has the same, JSON lines an
    object of probabilities. The file appears under its name when it is whole; on any error nothing is left of it.

    Args:
        source, model: see `check_output`.

    Returns:
        The number of rows.

    Raises:
        ParameterError: see `check_output`; or a class has a tab or a line break in its name, which TSV cannot hold.
        DataError: the output cannot be written.
    """
    check_output(output, source, model)
    kind = output.suffix.lower()
    if kind == ".tsv" and any(set(name) & set("\t\r\n") for name in label_names):
        raise ParameterError(
            f"--output {output}: a class has a tab or a line break in its name, which TSV cannot hold. Give a name "
            "that ends in .csv, .jsonl or .parquet."
        )
    write = {".jsonl": _write_lines, ".parquet": _write_parquet, ".tsv": _write_tsv}.get(kind, _write_csv)
    return written_whole(output, lambda partial: write(answers, label_names, partial))


def written_whole(output: Path, write: Callable[[Path], int]) -> int:
    """What `write` writes under another name, moved to its own when it is whole; on any error nothing is left.

    Raises:
        DataError: it cannot be written.
    """
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        try:
            rows = write(partial)
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{output} cannot be written ({error.strerror or error}). Nothing is left of it: make room, or choose "
            "another place."
        ) from None
    return rows


def check_output(output: Path, source: Path | None, model: Path | None = None) -> None:
    """Refuse an output that could not be written, before a model is loaded.

    Args:
        source: the file or folder that is read; nothing is written over it, or into it.
        model: directory of the model; a file more in it, and it is not the certified one.

    Raises:
        ParameterError: its ending is not known, its folder is not there, it is no file, or it belongs to the source or
            to the model.
    """
    try:
        _check_output(output, source, model)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParameterError(
            f"--output {shorten(str(output))} cannot be the name of a file ({reason})."
        ) from None


def _check_output(output: Path, source: Path | None, model: Path | None) -> None:
    if output.suffix.lower() not in ENDINGS:
        raise ParameterError(
            f"--output {output} ends in {output.suffix or 'nothing'}; predictions are written as "
            f"{', '.join(ENDINGS)}."
        )
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else f"lies in {output.parent}, which is not there"
        raise ParameterError(f"--output {output} {what}. Give the name of a file in a folder that exists.")
    if output.exists() and not output.is_file():
        raise ParameterError(f"--output {output} is there and is no file. Give another name.")
    if source is not None and source.exists() and output.exists() and output.samefile(source):
        raise ParameterError(
            f"--output {output} is the input. Predictions never replace what they are made for."
        )
    for what, place in (("input", source), ("model", model)):
        if place is not None and place.is_dir() and output.resolve().is_relative_to(place.resolve()):
            raise ParameterError(
                f"--output {output} lies in the {what}, {place}. Give a place outside of it."
            )


@contextmanager
def durable(path: Path) -> Iterator[TextIO]:
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_csv(answers: Iterable[Prediction], names: Sequence[str], path: Path) -> int:
    with durable(path) as file:
        return _write_rows(answers, names, csv.writer(file, lineterminator="\n"))


def _write_tsv(answers: Iterable[Prediction], names: Sequence[str], path: Path) -> int:
    """Quotation marks are text in TSV, here as where it is read."""
    with durable(path) as file:
        writer = csv.writer(file, "excel-tab", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
        return _write_rows(answers, names, writer)


def _write_rows(answers: Iterable[Prediction], names: Sequence[str], writer: Any) -> int:
    rows = 0
    writer.writerow(["row", "label", *(f"p({name})" for name in names)])
    for answer in answers:
        for at, (label, row) in enumerate(zip(answer.labels, answer.probabilities, strict=True)):
            writer.writerow([answer.first + at, names[label], *(f"{value:.6g}" for value in row)])
        rows += len(answer.labels)
    return rows


def _write_lines(answers: Iterable[Prediction], names: Sequence[str], path: Path) -> int:
    rows = 0
    with durable(path) as file:
        for answer in answers:
            for at, (label, row) in enumerate(zip(answer.labels, answer.probabilities, strict=True)):
                made = {
                    "row": answer.first + at,
                    "label": names[label],
                    "probabilities": {
                        name: float(f"{value:.6g}") for name, value in zip(names, row, strict=True)
                    },
                }
                file.write(json.dumps(made, ensure_ascii=False, allow_nan=False) + "\n")
            rows += len(answer.labels)
    return rows


def _write_parquet(answers: Iterable[Prediction], names: Sequence[str], path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [("row", pa.int64()), ("label", pa.string()), *((f"p({name})", pa.float64()) for name in names)]
    schema = pa.schema(fields)
    rows = 0
    with path.open("wb") as file:
        with pq.ParquetWriter(file, schema) as writer:
            for answer in answers:
                count = len(answer.labels)
                columns = [
                    pa.array(range(answer.first, answer.first + count), pa.int64()),
                    pa.array([names[label] for label in answer.labels]),
                    *(pa.array(answer.probabilities[:, at]) for at in range(len(names))),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                rows += count
        file.flush()
        os.fsync(file.fileno())
    return rows
