"""Nodes of the export stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raptor.export.directory import ExportedModel


def export_model(
    raptor_model: Path,
    privacy_ledger: Sequence[Mapping[str, Any]],
    privacy_certificate: Mapping[str, Any],
    audit_results: Mapping[str, Any] | None,
) -> ExportedModel:
    """The released model with its card and certificate; nothing private is read.

    Raises:
        LedgerError: the certificate is another model's.
    """
    from raptor.export.directory import ExportedModel

    return ExportedModel(raptor_model, privacy_certificate, privacy_ledger, audit_results)
