"""A small training's plan, journal, ledger and certificate, laid out as the project keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor.accounting.accountant import epsilon
from raptor.accounting.calibration import split_sum
from raptor.accounting.certificate import build_certificate, model_digest
from raptor.accounting.chain import sealed
from raptor.accounting.facts import Code, Gate, RunEnd, RunStart
from raptor.accounting.journal import ReleaseJournal
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.page import render_page
from raptor.accounting.plan import plan_digest
from raptor.accounting.types import Adjacency, Event, Release, Sensitivity, Unit

DELTA = 1e-5
SECURE = "secure:aes-256-ctr/os-entropy"


def stream(name: str, **changes: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "rate": 0.02,
        "noise_multiplier": 1.1,
        "steps": 3,
        "clipping_norm": 0.7,
        "denominator": 64.0,
        "blocks": 1,
    }
    return {**usual, **changes}


def make_plan(*, evaluation: int = 2, **changes: Any) -> dict[str, Any]:
    streams = [stream("shared"), stream("expert", noise_multiplier=0.9, denominator=8.0, blocks=8)]
    if evaluation:
        streams.append(
            stream("evaluation", rate=1.0, noise_multiplier=20.0, steps=evaluation, clipping_norm=1.0)
        )
    plan = {
        "unit": "record",
        "adjacency": "add-remove",
        "epsilon_target": 3.0,
        "delta": DELTA,
        "population": 2000,
        "population_source": "declared: rows of the training split",
        "layers": [1],
        "generator": SECURE,
        "taken_as_public": ["number of training records", "names of the classes"],
        "streams": streams,
        **changes,
    }
    return with_figures(plan)


def with_figures(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with the epsilons that its streams really cost."""
    adjacency = Adjacency(plan["adjacency"])
    events = [
        [Event(item["rate"], item["noise_multiplier"], item["steps"])] * (item["steps"] > 0)
        for item in plan["streams"]
    ]
    together = epsilon(
        [event for group in events for event in group], plan["delta"], adjacency, confirm=False
    )
    split = split_sum(events, plan["delta"], adjacency)
    return {**plan, "epsilon_planned": together.epsilon, "epsilon_split_sum": split.epsilon}


def make_releases(plan: dict[str, Any], steps: dict[str, int] | None = None) -> list[Release]:
    """Shared and expert releases in turn, as training makes them."""
    trained = [item for item in plan["streams"] if item["name"] != "evaluation"]
    longest = max(item["steps"] for item in trained)
    return [
        Release(
            stream=item["name"],
            step=step,
            rate=item["rate"],
            noise_multiplier=item["noise_multiplier"],
            sensitivity=Sensitivity(item["clipping_norm"], Adjacency(plan["adjacency"]), Unit(plan["unit"])),
            denominator=item["denominator"],
            dimension={"shared": 1200, "expert": 4800}[item["name"]],
            generator=plan["generator"],
        )
        for step in range(longest)
        for item in trained
        if step < (steps or {}).get(item["name"], item["steps"])
    ]


def journal_lines(plan: dict[str, Any], releases: list[Release]) -> list[dict[str, Any]]:
    return sealed([("header", plan), *(("release", release.to_json()) for release in releases)])


def start_facts(**changes: Any) -> RunStart:
    """What a training says before its first release."""
    usual: dict[str, Any] = {
        "code": Code("a" * 40, False, "b" * 64),
        "isolation": Gate(("shared", "expert"), ("float64", "float32")),
        "constants": True,
        "coordinates": {"shared": 1200, "expert": 4800},
        "records": "first",
    }
    return RunStart(**{**usual, **changes})


def end_facts(**changes: Any) -> RunEnd:
    """What a training says after its last release."""
    usual: dict[str, Any] = {
        "router_weights": 512,
        "records_unchanged": True,
        "keystreams": ("shared/coins", "shared/noise", "expert/coins", "expert/noise"),
        "left_out": 0,
    }
    return RunEnd(**{**usual, **changes})


def audit_results(plan: dict[str, Any]) -> dict[str, Any]:
    """Results of a passed audit, as short as they can be."""
    attack = {
        "what": "all steps",
        "claim": 2.0,
        "lower_bound": 0.8,
        "passed": True,
        "tests": [{"epsilon": 0.8}],
    }
    return {
        "plan": plan_digest(plan),
        "at_the_plans_noise": True,
        "confidence": 0.99,
        "passed": True,
        "claim": 2.0,
        "lower_bound": 0.8,
        "schedule": attack,
        "releases": [attack],
        "structure": [{"check": "deviation", "passed": True}],
    }


@dataclass(frozen=True)
class Project:
    """Folders of a finished run."""

    root: Path

    @property
    def certificate(self) -> Path:
        return self.root / "08_reporting" / "privacy_certificate.json"

    @property
    def ledger(self) -> Path:
        return self.root / "07_model_output" / "privacy_ledger.jsonl"

    @property
    def model(self) -> Path:
        return self.root / "06_models" / "raptor_model"

    @property
    def page(self) -> Path:
        return self.certificate.with_suffix(".md")

    @property
    def audit(self) -> Path:
        return self.certificate.parent / "audit.json"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    def write_lines(self, lines: list[dict[str, Any]]) -> None:
        self.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def fields(self) -> dict[str, Any]:
        return json.loads(self.certificate.read_text())

    def write_fields(self, fields: dict[str, Any]) -> None:
        self.certificate.write_text(json.dumps(fields, indent=2))

    def reseal(self, change: Callable[[list[tuple[str, dict[str, Any]]]], object]) -> None:
        """Change the entries of the ledger and make the chain whole again, as a careful forger would."""
        entries = [(line["kind"], line["data"]) for line in self.lines()]
        change(entries)
        self.write_lines(sealed(entries))


def make_project(
    root: Path,
    plan: dict[str, Any] | None = None,
    steps: dict[str, int] | None = None,
    start: RunStart | None = None,
    end: RunEnd | None = None,
    audit: dict[str, Any] | None = None,
) -> Project:
    """A finished run, which says nothing of its checks unless `start` and `end` do."""
    project = Project(root)
    for folder in (project.certificate.parent, project.ledger.parent, project.model):
        folder.mkdir(parents=True)
    (project.model / "config.json").write_text("{}")
    (project.model / "model.safetensors").write_bytes(bytes(range(64)))
    plan = plan or make_plan()
    journal = root / "journal.jsonl"
    with ReleaseJournal.create(journal, plan) as opened:
        if start is not None:
            opened.note(start)
        for release in make_releases(plan, steps):
            opened.append(release)
        if end is not None:
            opened.note(end)
        lines = compose_ledger(plan, opened.lines(), model_digest(project.model))
    project.write_lines(lines)
    certificate = build_certificate(lines, audit)
    project.write_fields(certificate)
    project.page.write_text(render_page(certificate))
    if audit is not None:
        project.audit.write_text(json.dumps(audit))
    return project


def make_whole(root: Path, **changes: Any) -> Project:
    """A finished run that says what it checked, was audited, and belongs to a search."""
    plan = make_plan(search={"runs": 5, "selection": "logarithmic"})
    given = {"start": start_facts(), "end": end_facts(), "audit": audit_results(plan), **changes}
    return make_project(root, plan, **given)
