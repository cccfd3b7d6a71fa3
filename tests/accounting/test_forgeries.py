"""A whole certificate with page, audit, search and checks: nothing in it can be changed unnoticed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raptor.accounting.assumptions import CHECKED
from raptor.accounting.certificate import build_certificate
from raptor.accounting.page import render_page
from raptor.accounting.verification import verify_certificate
from raptor.errors import LedgerError

from .samples import Project, end_facts, make_plan, make_project, make_whole


@pytest.fixture(name="project", scope="module")
def _project(tmp_path_factory) -> Project:
    return make_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(name="forged")
def _forged(project: Project, tmp_path: Path) -> Project:
    """A copy to forge."""
    forged = Project(tmp_path)
    for place in project.root.rglob("*"):
        if place.is_file():
            target = tmp_path / place.relative_to(project.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(place.read_bytes())
    return forged


def refused(project: Project, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        verify_certificate(project.certificate)


def test_the_whole_set_is_accepted(project: Project) -> None:
    report = verify_certificate(project.certificate)
    assert (report.page, report.audit, report.model) == (project.page, project.audit, project.model)
    assert "privacy_certificate.md checked" in report.line()
    assert "audit.json checked" in report.line()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            yield from leaves(item, (*path, key))
    else:
        yield path


def other(value: Any) -> Any:
    """Another value of the same kind, as near as a forger would take it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.98
    return f"{value} " if isinstance(value, str) else 1.0


def put(fields: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        fields = fields[key]
    fields[path[-1]] = value


def test_every_field_changed_alone_is_refused(project: Project, forged: Project, monkeypatch) -> None:
    """The figures are computed once: a changed certificate does not change what the ledger gives."""
    fields = project.fields()
    expected = build_certificate(project.lines(), json.loads(project.audit.read_text()))
    monkeypatch.setattr(
        "raptor.accounting.verification.build_certificate", lambda *_: copy.deepcopy(expected)
    )
    verify_certificate(forged.certificate)
    paths = list(leaves(fields))
    assert len(paths) > 100
    for path in paths:
        changed = copy.deepcopy(fields)
        value = changed
        for key in path:
            value = value[key]
        nearest = [math.nextafter(value, 0)] if isinstance(value, float) and value else []
        for forgery in [other(value), *nearest]:
            put(changed, path, forgery)
            forged.write_fields(changed)
            # Also with a page that says the same.
            forged.page.write_text(render_page(changed) if path[0] != "format" else project.page.read_text())
            with pytest.raises(LedgerError):
                verify_certificate(forged.certificate)


def claimed(fields: dict[str, Any]) -> None:
    for item in fields["assumptions"]:
        item["mark"] = CHECKED


def weaker(fields: dict[str, Any]) -> None:
    item = next(item for item in fields["assumptions"] if item["check"] == "unit")
    item["text"] = "A person is protected however many records are theirs."


FIELDS = {
    "lower epsilon": (lambda f: f.update(epsilon=f["epsilon"] * 0.9), "^epsilon is"),
    "other delta": (lambda f: f.update(delta=1e-7), "^delta is 1e-07"),
    "seeded called secure": (lambda f: f["generator"].update(mode="fast"), "^generator.mode is 'fast'"),
    "assumption weakened": (weaker, "^assumptions entry 8.text is 'A person is"),
    "checks claimed": (claimed, "^assumptions entry 7.mark is 'checked by this run'"),
    "nothing taken as public": (
        lambda f: f.update(taken_as_public=[]),
        "^taken_as_public must be a list of 2",
    ),
    "planned epsilon": (lambda f: f.update(epsilon_planned=0.1), "^epsilon_planned is 0.1"),
    "cheaper search": (lambda f: f["search"].update(epsilon=0.5), "^search.epsilon is 0.5"),
    "no search": (lambda f: f.update(search=None), "^search must have named fields"),
    "fewer needs": (lambda f: f["search"]["needs"].pop(), "^search.needs must be a list of 4"),
    "commit": (lambda f: f["code"][0].update(commit="c" * 40), "^code entry 1.commit is 'cccc"),
    "changes hidden": (lambda f: f["code"][0].update(modified=None), "^code entry 1.modified is None"),
    "version": (lambda f: f["versions"].update(raptor="9.9"), "^versions.raptor is '9.9'"),
    "audit figure": (lambda f: f["audit"].update(lower_bound=0.1), "^audit.lower_bound is 0.1"),
    "audit left out": (lambda f: f.update(audit=None), "was changed: its fields do not have the digest"),
    "theorem left out": (lambda f: f["theorems"].pop(2), "^theorems must be a list of"),
    "older format": (lambda f: f.update(format="raptor-certificate/1"), "^format is 'raptor-certificate/1'"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_forged_certificate_says_where(forged: Project, name: str) -> None:
    forge, message = FIELDS[name]
    fields = forged.fields()
    forge(fields)
    forged.write_fields(fields)
    refused(forged, message)


def set_data(number: int, **values: Any) -> Any:
    return lambda entries: entries[number][1].update(**values)


def drop(number: int) -> Any:
    return lambda entries: entries.pop(number)


def swap(first: int, second: int) -> Any:
    def change(entries: list[Any]) -> None:
        entries[first], entries[second] = entries[second], entries[first]

    return change


RESEALED = {
    "dropped release": (drop(3), "where step 1 should stand|where step 0 should stand"),
    "repeated release": (lambda entries: entries.insert(3, entries[2]), "where step 1 should stand"),
    "swapped releases": (swap(2, 3), "not those of the journal"),
    "sigma of a release": (set_data(2, noise_multiplier=9.0), "noise multiplier 9.0, the plan says 1.1"),
    "generator of the plan": (
        lambda entries: entries[0][1]["plan"].update(generator="fast:torch"),
        "has generator secure:.*, the plan says fast:torch",
    ),
    "facts taken as public emptied": (
        lambda entries: entries[0][1]["plan"].update(taken_as_public=[]),
        "not those of the journal",
    ),
    "figures of the plan": (
        lambda entries: entries[0][1]["plan"].update(epsilon_planned=0.1),
        "not those of the journal",
    ),
    "search of the plan": (
        lambda entries: entries[0][1]["plan"].update(search={"runs": 1, "selection": "none"}),
        "not those of the journal",
    ),
    "gate claimed in double precision": (
        lambda entries: entries[1][1]["isolation"].update(precisions=["float128"]),
        "not those of the journal",
    ),
    "checks left out": (drop(1), "not those of the journal"),
    "checks moved": (swap(1, 2), "not those of the journal"),
    "end of the run left out": (drop(8), "not those of the journal"),
    "end of the run moved": (swap(7, 8), "line 8 of .* ends the run, but lines of the run stand after it"),
    "unknown check": (set_data(1, audited=True), "line 2 of .* has the unknown field audited"),
    "check of the wrong kind": (set_data(1, constants="yes"), "constants of line 2 .* must be true or false"),
    "other coordinates": (
        set_data(1, coordinates={"shared": 7}),
        "1200 coordinates in stream shared, which trains 7",
    ),
    "complete": (set_data(10, status="incomplete"), "line 11 .* status is incomplete"),
    "truncated": (lambda entries: entries.__delitem__(slice(6, None)), "has no closing line"),
    "header": (set_data(0, format="raptor-ledger/9"), "has the format 'raptor-ledger/9', this version reads"),
    "versions": (lambda entries: entries[0][1]["versions"].update(raptor="9"), "belongs to the ledger"),
}


@pytest.mark.parametrize("name", RESEALED)
def test_a_forged_ledger_with_a_new_chain_says_where(forged: Project, name: str) -> None:
    forge, message = RESEALED[name]
    forged.reseal(forge)
    refused(forged, message)


@pytest.mark.parametrize("number", range(11))
def test_every_line_of_the_ledger_counts(forged: Project, number: int) -> None:
    lines = forged.lines()
    forged.write_lines(lines[:number] + lines[number + 1 :])
    refused(forged, "lines are missing or moved|is not the plan|does not follow|no closing line")


def test_an_incomplete_run_cannot_be_called_complete(tmp_path: Path) -> None:
    project = make_whole(tmp_path, steps={"shared": 2, "expert": 1}, end=None)
    verify_certificate(project.certificate)
    fields = project.fields()
    fields["status"] = "complete"
    project.write_fields(fields)
    refused(project, "^status is 'complete' in the certificate, the ledger gives 'incomplete'")
    closing = len(project.lines()) - 1
    project.reseal(set_data(closing, status="complete"))
    refused(project, f"line {closing + 1} .* status is complete, its plan and releases give incomplete")


def test_a_run_that_left_steps_out_is_not_complete(tmp_path: Path) -> None:
    """As many releases as planned, but not all of them went into the model: some were lost in a crash."""
    project = make_whole(tmp_path, end=end_facts(left_out=3))
    report = verify_certificate(project.certificate)
    assert report.status == project.fields()["status"] == "incomplete"
    assert "last 3 steps of the schedule were left out" in project.fields()["statement"][0]
    assert project.fields()["epsilon"] == pytest.approx(project.fields()["epsilon_planned"])
    project.reseal(set_data(len(project.lines()) - 1, status="complete"))
    refused(project, "status is complete, its plan and releases give incomplete")


def test_a_seeded_run_cannot_be_called_secure(tmp_path: Path) -> None:
    project = make_project(tmp_path, make_plan(generator="seeded:aes-256-ctr"))
    fields = project.fields()
    fields.update(private=True, generator={"name": "secure:aes-256-ctr/os-entropy", "mode": "secure"})
    project.write_fields(fields)
    refused(project, "^private is True")

    def forge(entries: list[Any]) -> None:
        for kind, data in entries:
            if kind in ("plan", "release"):
                (data["plan"] if kind == "plan" else data)["generator"] = "secure:aes-256-ctr/os-entropy"

    project.reseal(forge)
    refused(project, "not those of the journal")


@pytest.mark.parametrize("how", ["figure", "audit and certificate", "outcome", "missing"])
def test_a_forged_audit_is_refused(forged: Project, how: str) -> None:
    results, fields = json.loads(forged.audit.read_text()), forged.fields()
    if how == "missing":
        forged.audit.unlink()
        refused(forged, "names an audit, but its results are not in .*--audit")
        return
    if how == "outcome":
        results["schedule"]["lower_bound"] = 3.0
        message = "state another outcome than their figures give"
    else:
        results["lower_bound"] = 0.1
        message = "state other bounds at the top than in their tests"
    if how == "audit and certificate":
        fields["audit"]["lower_bound"] = 0.1
        forged.write_fields(fields)
    forged.audit.write_text(json.dumps(results))
    refused(forged, message)


def test_another_audit_is_refused_by_its_digest(forged: Project) -> None:
    results = json.loads(forged.audit.read_text())
    results["confidence"] = 0.5
    forged.audit.write_text(json.dumps(results))
    refused(forged, "^audit.confidence is 0.99 in the certificate, the ledger gives 0.5")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("are (0", "are (0.0", "line 5 of .*md is 'All releases"),
        ("**checked by this run**", "**proven**", "line .* of .*md is"),
        ("## Not covered", "## Covered", "line .* of .*md is '## Covered'"),
        (
            "`raptor verify privacy_certificate.json`.\n",
            "`raptor verify privacy_certificate.json`.",
            "lines, the",
        ),
    ],
)
def test_a_page_that_says_something_else_is_refused(
    forged: Project, old: str, new: str, message: str
) -> None:
    page = forged.page.read_text()
    assert old in page
    forged.page.write_text(page.replace(old, new, 1))
    refused(forged, message)


def test_the_page_of_another_certificate_is_refused(forged: Project, tmp_path: Path) -> None:
    other_one = make_project(tmp_path / "other", make_plan(population=9000))
    forged.page.write_text(other_one.page.read_text())
    refused(forged, "line .* of .*privacy_certificate.md is")


def test_other_model_files_are_refused(forged: Project) -> None:
    (forged.model / "config.json").write_text('{"changed": true}')
    refused(forged, "is not the certified one")
