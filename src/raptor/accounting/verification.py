"""`raptor verify`: recompute a certificate from its ledger and say the first thing that is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor.accounting.certificate import build_certificate, fields_digest, model_digest
from raptor.accounting.chain import parse, read_chain
from raptor.accounting.page import render_page
from raptor.errors import BudgetError, LedgerError

LEDGER = "privacy_ledger.jsonl"
AUDIT = "audit.json"
LEDGER_FOLDER = "07_model_output"
MODEL_FOLDER = Path("06_models", "raptor_model")

# Computed figures may differ in the last digits between machines and library versions; all else must be equal.
_COMPUTED = {
    "epsilon": 1e-6,
    "epsilon_split_sum": 1e-6,
    "epsilon_alone": 1e-6,
    "epsilon_split": 1e-6,
    "epsilon_renyi": 1e-3,
    "grid": 1e-3,
}


@dataclass(frozen=True)
class VerificationReport:
    """What was checked and found right."""

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    status: str
    private: bool
    ledger: Path
    lines: int
    model: Path | None
    page: Path | None
    audit: Path | None
    names_model: bool

    @property
    def no_model(self) -> str:
        return (
            "no model found to check"
            if self.names_model
            else "the ledger names no model, so none was checked"
        )

    def line(self) -> str:
        """One line for a person."""
        head = "valid" if self.private else "valid, but NOT PRIVATE (the noise came from a seed)"
        model = f"model {self.model} checked" if self.model else self.no_model
        others = [f"page {self.page} checked"] * (self.page is not None)
        others += [f"audit {self.audit} checked"] * (self.audit is not None)
        return (
            f"{head}: epsilon {self.epsilon:.6g} at delta {self.delta:g} ({self.adjacency}, {self.unit}), "
            f"run {self.status}; ledger {self.ledger} of {self.lines} lines recomputed, "
            + ", ".join([model, *others])
        )


def verify_certificate(
    path: Path | str,
    ledger: Path | str | None = None,
    model: Path | str | None = None,
    audit: Path | str | None = None,
) -> VerificationReport:
    """Check every field of a certificate against its ledger, and page, audit and model against both.

    Args:
        path: the certificate.
        ledger: its ledger; by default `privacy_ledger.jsonl` beside the certificate, or where the project
            keeps it.
        model: directory of the released model; by default the certificate's own, where that is an exported model,
            or where the project keeps it, if it is there.
        audit: results of the audit that the certificate names; by default `audit.json` beside it.

    The page is the file beside the certificate of the same name that ends in `.md`, if it is there.

    Raises:
        LedgerError: says the first thing that is wrong.
    """
    place = Path(path)
    found = _read(place)
    ledger_path = _ledger_path(place, ledger)
    lines = read_chain(ledger_path)
    named = found.get("ledger")
    digest = named.get("digest") if isinstance(named, Mapping) else None
    audit_path = _audit_path(place, found, audit)
    try:
        expected = build_certificate(lines, None if audit_path is None else _read(audit_path, "an audit"))
    except BudgetError as error:
        raise LedgerError(str(error)) from None
    if digest != expected["ledger"]["digest"]:
        raise LedgerError(
            f"the certificate belongs to the ledger {digest}, but {ledger_path} is {expected['ledger']['digest']}"
        )
    # Last, as the first thing that is wrong should be told, and not only that something is.
    stated = found.get("digest")
    _compare({**expected, "digest": stated} if "digest" in found else expected, found, "")
    if stated != fields_digest(found):
        raise LedgerError(
            f"{place} was changed: its fields do not have the digest that it states, {stated!r}"
        )
    page_path = _require_page(place, found)
    model_path = _model_path(place, model)
    if model_path is not None and expected["model"]["digest"] is not None:
        actual = model_digest(model_path)
        if actual != expected["model"]["digest"]:
            raise LedgerError(
                f"the model in {model_path} is not the certified one: its digest is {actual}, "
                f"the ledger has {expected['model']['digest']}"
            )
    elif model is not None:
        raise LedgerError("the ledger names no model, so the given one cannot be checked")
    return VerificationReport(
        epsilon=expected["epsilon"],
        delta=expected["delta"],
        adjacency=expected["adjacency"],
        unit=expected["unit"],
        status=expected["status"],
        private=expected["private"],
        ledger=ledger_path,
        lines=len(lines),
        model=model_path if expected["model"]["digest"] is not None else None,
        page=page_path,
        audit=audit_path,
        names_model=expected["model"]["digest"] is not None,
    )


def _read(place: Path, what: str = "a certificate") -> dict[str, Any]:
    try:
        content = place.read_bytes()
    except OSError as error:
        raise LedgerError(f"{place} cannot be read: {error.strerror}") from None
    found = parse(content, str(place))
    if not isinstance(found, dict):
        raise LedgerError(f"{place} is not {what}")
    return found


def _ledger_path(place: Path, given: Path | str | None) -> Path:
    if given is not None:
        return Path(given)
    candidates = [place.parent / LEDGER, place.parent.parent / LEDGER_FOLDER / LEDGER]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " and ".join(str(candidate) for candidate in candidates)
    raise LedgerError(f"the ledger of {place} was not found ({looked}); give it with --ledger")


def _model_path(place: Path, given: Path | str | None) -> Path | None:
    if given is not None:
        return Path(given)
    if (place.parent / "config.json").is_file():
        # An exported model, with its papers beside it.
        return place.parent
    candidate = place.parent.parent / MODEL_FOLDER
    return candidate if candidate.is_dir() else None


def _audit_path(place: Path, found: Mapping[str, Any], given: Path | str | None) -> Path | None:
    """Where the audit is that the certificate names; None when it names none."""
    if found.get("audit") is None:
        if given is not None:
            raise LedgerError("the certificate names no audit, so the given one cannot be checked")
        return None
    path = place.parent / AUDIT if given is None else Path(given)
    if not path.is_file():
        raise LedgerError(
            f"the certificate names an audit, but its results are not in {path}; give them with --audit"
        )
    return path


def _require_page(place: Path, found: Mapping[str, Any]) -> Path | None:
    """The page beside the certificate, which must say what the certificate says."""
    path = place.with_suffix(".md")
    if not path.is_file():
        return None
    try:
        written = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path} cannot be read: {error}") from None
    expected = render_page(found).split("\n")
    for number, (line, wanted) in enumerate(zip(written, expected, strict=False), start=1):
        if line != wanted:
            raise LedgerError(f"line {number} of {path} is {line!r}, the certificate gives {wanted!r}")
    if len(written) != len(expected):
        raise LedgerError(f"{path} has {len(written)} lines, the certificate gives {len(expected)}")
    return path


def _compare(expected: object, found: object, name: str) -> None:
    """Refuse the first difference, in the order of the certificate."""
    shown = name or "the certificate"
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            raise LedgerError(f"{shown} must have named fields")
        for key, value in expected.items():
            if key not in found:
                raise LedgerError(f"{_join(name, key)} is missing from the certificate")
            _compare(value, found[key], _join(name, key))
        unknown = sorted(set(found) - set(expected))
        if unknown:
            raise LedgerError(f"{_join(name, unknown[0])} is not a field of a certificate")
    elif isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            raise LedgerError(f"{shown} must be a list of {len(expected)} entries")
        for number, (ours, theirs) in enumerate(zip(expected, found, strict=True), start=1):
            _compare(ours, theirs, f"{shown} entry {number}")
    elif not _equal(expected, found, name.rpartition(".")[2]):
        raise LedgerError(f"{shown} is {found!r} in the certificate, the ledger gives {expected!r}")


def _equal(expected: object, found: object, field: str) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    tolerance = _COMPUTED.get(field)
    if tolerance is not None and isinstance(expected, float) and isinstance(found, int | float):
        return math.isclose(expected, found, rel_tol=tolerance)
    return type(expected) is type(found) and expected == found


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
