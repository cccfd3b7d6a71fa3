"""Completions of a trained language model for the prompts of a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor.errors import ModelError, ParameterError
from raptor.prediction import CHUNK, check_output, durable, max_length_of, text_columns, written_whole
from raptor.text.completions import Lengths

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedModel

BATCH = 64
"""Prompts of one pass."""

LENGTHS_FILE = "generation_config.json"
"""Where a tuned language model says how long its completions may be."""


@dataclass(frozen=True)
class Completer:
    """A trained language model with its tokenizer.

    Attributes:
        text: columns of the prompt.
        lengths: tokens of prompts that are read, and of completions that are written, as in training.
    """

    model: PreTrainedModel
    tokenizer: Any
    text: str | tuple[str, ...]
    lengths: Lengths
    device: Any

    @classmethod
    def load(cls, directory: Path, device: str = "auto") -> Completer:
        """Load a released or exported model; nothing is downloaded and no code of the directory is run.

        Raises:
            ModelError: a file is missing or does not fit the others.
            ParameterError: the device is not on this machine.
        """
        from raptor.dp.training import resolve_device
        from raptor.moe.classifier import HEAD_FILE
        from raptor.moe.language import load_language_model
        from raptor.pipelines.ingestion.encoding import load_tokenizer
        from raptor.text.completions import ready

        place = resolve_device(device)
        if not (directory / LENGTHS_FILE).is_file():
            raise ModelError(
                f"{directory} has neither {HEAD_FILE} nor {LENGTHS_FILE}: it is a base model, not a tuned classifier "
                "or language model."
            )
        model = load_language_model(directory)
        tokenizer = ready(load_tokenizer(directory))
        longest = getattr(model.generation_config, "max_new_tokens", None)
        if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
            raise ModelError(
                f"{directory / LENGTHS_FILE}: max_new_tokens is no number of tokens. It says how long the "
                "completions of training were; take the directory anew from the project that trained it."
            )
        lengths = Lengths(max_length_of(tokenizer.model_max_length, directory), longest)
        columns = text_columns(getattr(model.config, "text_columns", "text"), directory)
        return cls(model.to(place).eval(), tokenizer, columns, lengths, place)  # type: ignore[arg-type]

    def answers(self, texts: pa.Table) -> Iterator[list[str]]:
        """Completions for a table with the columns `text` and `text_pair`, some thousand records at a time."""
        from raptor.text.completions import encode_prompted, prompt_texts

        paired = texts["text_pair"].null_count < len(texts)
        for batch in texts.to_batches(CHUNK):
            pairs = batch.column("text_pair").to_pylist() if paired else None
            prompts = prompt_texts(batch.column("text").to_pylist(), pairs)
            made = encode_prompted(self.tokenizer, prompts, [""] * len(prompts), self.lengths)
            yield self.complete(made.ids)

    def complete(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """The likeliest token again and again, to the end mark or the length of training.

        Prompts of equal length share a pass, so that no pass holds padding.

        Args:
            prompts: token ids.
        """
        answers = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for _, group in groupby(order, key=lambda row: len(prompts[row])):
            rows = list(group)
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH]
                for row, ids in zip(part, self._continued([prompts[row] for row in part]), strict=True):
                    answers[row] = self.tokenizer.decode(
                        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
                    )
        return answers

    def _continued(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Token ids of the completions of prompts of one length, without the end mark and what follows it."""
        import torch

        end = self.tokenizer.eos_token_id
        ids = torch.tensor([list(prompt) for prompt in prompts], device=self.device)
        generate: Any = self.model.generate
        with torch.no_grad():
            made = generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                num_beams=1,
                use_cache=True,
                max_new_tokens=self.lengths.completion,
                eos_token_id=end,
                pad_token_id=end,
            )
        found: list[list[int]] = made[:, ids.shape[1] :].tolist()
        return [answer[: answer.index(end)] if end in answer else answer for answer in found]


def write_completions(
    answers: Iterable[list[str]], output: Path, source: Path | None = None, model: Path | None = None
) -> int:
    """Write one row a record: its number and its completion.

    CSV and Parquet have the columns `row` and `completion`, JSON lines these keys. The file appears under its name when
    it is whole; on any error nothing is left of it.

    Args:
        source, model: see `raptor.prediction.check_output`.

    Returns:
        The number of rows.

    Raises:
        ParameterError: see `check_output`; or the output is TSV, which holds no line break.
        DataError: the output cannot be written.
    """
    check_output(output, source, model)
    kind = output.suffix.lower()
    if kind == ".tsv":
        raise ParameterError(
            f"--output {output}: a completion may hold tabs and line breaks, which TSV cannot. Give a name that ends "
            "in .csv, .jsonl or .parquet."
        )
    write = {".jsonl": _write_lines, ".parquet": _write_parquet}.get(kind, _write_csv)
    return written_whole(output, lambda partial: write(answers, partial))


def _numbered(answers: Iterable[list[str]]) -> Iterator[tuple[int, str]]:
    return enumerate((text for part in answers for text in part), start=1)


def _write_csv(answers: Iterable[list[str]], path: Path) -> int:
    number = 0
    with durable(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "completion"])
        for number, text in _numbered(answers):
            writer.writerow([number, text])
    return number


def _write_lines(answers: Iterable[list[str]], path: Path) -> int:
    number = 0
    with durable(path) as file:
        for number, text in _numbered(answers):
            file.write(json.dumps({"row": number, "completion": text}, ensure_ascii=False) + "\n")
    return number


def _write_parquet(answers: Iterable[list[str]], path: Path) -> int:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, texts = [], []
    for number, text in _numbered(answers):
        rows.append(number)
        texts.append(text)
    with path.open("wb") as file:
        pq.write_table(
            pa.table({"row": pa.array(rows, pa.int64()), "completion": pa.array(texts, pa.string())}), file
        )
        file.flush()
        os.fsync(file.fileno())
    return len(rows)
