"""An exported model: the certified files as they are, and their papers beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor.accounting.certificate import PAPERS, model_digest
from raptor.accounting.page import render_page
from raptor.errors import LedgerError
from raptor.export.card import model_card
from raptor.export.completion_card import completion_card

CARD, CERTIFICATE, PAGE, LEDGER, AUDIT = PAPERS


@dataclass(frozen=True)
class ExportedModel:
    """A released model on its way out of the project.

    The model's files are copied and not changed, so that `raptor verify` finds in the copy the digest that the
    ledger has.

    Attributes:
        model: directory of the released model.
        certificate, ledger: of the training that made it.
        audit: results of the audit that the certificate names; None where it names none.
    """

    model: Path
    certificate: Mapping[str, Any]
    ledger: Sequence[Mapping[str, Any]]
    audit: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises LedgerError when the certificate is another model's."""
        certified = self.certificate["model"]["digest"]
        if model_digest(self.model) != certified:
            raise LedgerError(
                f"The model in {self.model} is not the one that the certificate names. Run `kedro run --pipelines "
                "accounting`, or give the certificate of this model."
            )

    def save_to(self, directory: Path) -> None:
        """Write everything into a directory that exists and is empty."""
        from raptor.moe.classifier import HEAD_FILE, saved_pooling

        shutil.copytree(self.model, directory, dirs_exist_ok=True)
        config = json.loads((self.model / "config.json").read_text(encoding="utf-8"))
        settings = json.loads((self.model / "tokenizer_config.json").read_text(encoding="utf-8"))
        length = int(settings["model_max_length"])
        head = self.model / HEAD_FILE
        if head.is_file():
            card = model_card(self.certificate, config, length, saved_pooling(head))
        else:
            decoding = json.loads((self.model / "generation_config.json").read_text(encoding="utf-8"))
            card = completion_card(self.certificate, config, length, int(decoding["max_new_tokens"]))
        (directory / CARD).write_text(card, encoding="utf-8")
        (directory / PAGE).write_text(render_page(self.certificate), encoding="utf-8")
        (directory / CERTIFICATE).write_text(_json(self.certificate, 2) + "\n", encoding="utf-8")
        lines = "".join(_json(line, None) + "\n" for line in self.ledger)
        (directory / LEDGER).write_text(lines, encoding="utf-8")
        if self.certificate["audit"] is not None:
            (directory / AUDIT).write_text(_json(self.audit, 2) + "\n", encoding="utf-8")


def _json(value: Any, indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
