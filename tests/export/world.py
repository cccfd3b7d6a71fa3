"""A finished run with a model that really answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from raptor.accounting.certificate import build_certificate, model_digest
from raptor.accounting.journal import ReleaseJournal
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.page import render_page
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.training.models import TunedModel
from tests.accounting.samples import Project, audit_results, make_plan, make_releases
from tests.pipelines.directories import save_base_model

NAMES = ("good, really", "bad|worse", "ünknown")
MAX_LENGTH = 6


def tuned(folder: Path, text: str | tuple[str, ...] = "text") -> TunedModel:
    """A model with a random head, so that its answers differ."""
    base = save_base_model(folder / "base")
    model = MoEClassifier.from_encoder(base, len(NAMES)).eval()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        torch.nn.init.normal_(model.head.weight)
        torch.nn.init.normal_(model.head.bias, std=0.1)
    return TunedModel(model, base, NAMES, text, MAX_LENGTH)


def save_model(folder: Path, **options: Any) -> Path:
    folder.mkdir(parents=True)
    tuned(folder.parent, **options).save_to(folder)
    return folder


def finished(root: Path, audited: bool = False) -> Project:
    """The project's folders after a run: model, ledger, certificate and page."""
    project = Project(root)
    for folder in (project.certificate.parent, project.ledger.parent):
        folder.mkdir(parents=True)
    save_model(project.model)
    plan = make_plan()
    with ReleaseJournal.create(root / "journal.jsonl", plan) as journal:
        for release in make_releases(plan):
            journal.append(release)
        lines = compose_ledger(plan, journal.lines(), model_digest(project.model))
    project.write_lines(lines)
    audit = audit_results(plan) if audited else None
    if audit is not None:
        project.audit.write_text(json.dumps(audit))
    certificate = build_certificate(lines, audit)
    project.write_fields(certificate)
    project.page.write_text(render_page(certificate))
    return project
