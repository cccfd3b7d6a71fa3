"""Forgeries that change several files together, or write what a parser may take for something else."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raptor.accounting.certificate import fields_digest, model_digest
from raptor.accounting.chain import START, canonical, digest, sealed
from raptor.accounting.page import render_page
from raptor.accounting.verification import verify_certificate
from raptor.cli import cli
from raptor.errors import LedgerError

from .samples import Project, make_whole

Entries = list[Any]


@pytest.fixture(name="project", scope="module")
def _project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(name="forged")
def _forged(project: Project, tmp_path: Path) -> Project:
    shutil.copytree(project.root, tmp_path / "forged")
    return Project(tmp_path / "forged")


def refused(project: Project, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        verify_certificate(project.certificate)


def with_journal(change: Callable[[Entries], object]) -> Callable[[Entries], None]:
    """Also name the journal that the changed lines would have made."""

    def forge(entries: Entries) -> None:
        change(entries)
        middle = [(kind, data) for kind, data in entries[1:] if kind in ("release", "run", "end")]
        made = sealed([("header", entries[0][1]["plan"]), *middle])
        count = sum(kind == "release" for kind, _ in middle)
        entries[0][1]["journal"] = {"digest": digest(made), "releases": count}

    return forge


def name_ledger(project: Project) -> None:
    """Let the certificate name the ledger as it is now, and the page say so."""
    fields = project.fields()
    lines = project.lines()
    fields["ledger"] = {"digest": lines[-1]["hash"], "lines": len(lines)}
    project.write_fields({**fields, "digest": fields_digest(fields)})
    project.page.write_text(render_page(fields))


# Text that is not what it seems.

TEXTS = {
    "a key twice": ("certificate", '"epsilon": ', '"epsilon": 0.1, "epsilon": ', "a key stands twice"),
    "a key twice in a line": (
        "ledger",
        '"index": 3',
        '"index": 3, "index": 3',
        "line 4 .* a key stands twice",
    ),
    "digits of another script": (
        "certificate",
        '"population": 2',
        '"population": \uff12',
        "is not valid JSON",
    ),
    "a number without end": (
        "certificate",
        '"population": 2',
        '"population": ' + "9" * 5000,
        "is not valid JSON",
    ),
    "infinity": ("certificate", '"delta": ', '"delta": Infinity, "d": ', "Infinity is no number"),
    "an infinite power": ("ledger", '"rate": 0.02', '"rate": 1e999', "line 1 .*|a value cannot be recorded"),
    "a comment": ("certificate", "{", "{ // mine\n", "is not valid JSON"),
    "an empty line": ("ledger", "\n", "\n\n", "line 2 of .* is not valid JSON"),
    "a byte order mark": ("ledger", "{", "\ufeff{", "line 1 of .* is not valid JSON"),
    "depth": ("certificate", "{", '{"a": ' + "[" * 50_000, "is not valid JSON"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_not_what_it_seems_is_refused(forged: Project, name: str) -> None:
    attribute, old, new, message = TEXTS[name]
    place: Path = getattr(forged, attribute)
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new, 1))
    refused(forged, message)


def test_another_encoding_is_refused(forged: Project) -> None:
    forged.certificate.write_bytes(forged.certificate.read_text().encode("utf-16"))
    refused(forged, "is not valid JSON")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("0", "the index '0', which is no"),
        (None, "the index None"),
        (0.0, "the index 0.0"),
        (True, "the index True"),
    ],
)
def test_an_index_of_another_kind_is_refused(forged: Project, index: object, message: str) -> None:
    first, *rest = forged.lines()
    body = {"index": index, "kind": first["kind"], "data": first["data"], "previous": START}
    forged.write_lines([{**body, "hash": hashlib.sha256(canonical(body)).hexdigest()}, *rest])
    refused(forged, message)


def test_a_hash_in_capitals_is_refused(forged: Project) -> None:
    forged.write_lines([{**line, "hash": line["hash"].upper()} for line in forged.lines()])
    refused(forged, "line 1 .* does not have the hash")


def test_names_that_a_terminal_would_obey_are_shown_as_escapes(forged: Project) -> None:
    forged.write_fields({**forged.fields(), "\x1b[2J\ud800": 1})
    done = CliRunner().invoke(cli, ["verify", str(forged.certificate)])
    assert done.exit_code == 1
    assert "\\x1b[2J\\ud800 is not a field of a certificate" in done.output
    assert "\x1b" not in done.output


# Plan, releases and journal changed together.


def everywhere(stream: str, **values: Any) -> Callable[[Entries], None]:
    """In the plan and in every release of the stream."""

    def change(entries: Entries) -> None:
        for item in entries[0][1]["plan"]["streams"]:
            if item["name"] == stream:
                item.update(values)
        for kind, data in entries:
            if kind == "release" and data["stream"] == stream:
                data.update({key: value for key, value in values.items() if key in data})

    return change


def plan(**values: Any) -> Callable[[Entries], None]:
    return lambda entries: entries[0][1]["plan"].update(values)


def end(**values: Any) -> Callable[[Entries], None]:
    return lambda entries: next(data for kind, data in entries if kind == "end").update(values)


def last_cycle(entries: Entries) -> None:
    """As if the last cycle had not been: no release of it, and totals that fit."""
    entries[:] = [(kind, data) for kind, data in entries if not (kind == "release" and data["step"] == 2)]
    for total in entries[-1][1]["streams"]:
        if total["name"] != "evaluation":
            total.update(executed=2, charged=2)


def last_cycle_and_end(entries: Entries) -> None:
    last_cycle(entries)
    entries[:] = [(kind, data) for kind, data in entries if kind != "end"]


def shorter_plan(entries: Entries) -> None:
    last_cycle(entries)
    for item in (*entries[0][1]["plan"]["streams"], *entries[-1][1]["streams"]):
        if item["name"] != "evaluation":
            item["steps" if "steps" in item else "planned"] = 2


def reserved(**values: Any) -> Callable[[Entries], None]:
    return lambda entries: entries[-2][1].update(values)


TOGETHER = {
    "whole cycles are missing": (last_cycle, "came to its end, but has 2 of 3 releases of stream shared"),
    "whole cycles and the end": (
        last_cycle_and_end,
        "status is complete, its plan and releases give incomplete",
    ),
    "a shorter plan": (shorter_plan, "epsilon_planned of the privacy plan is .*, its streams give"),
    "more noise": (everywhere("shared", noise_multiplier=2.0), "epsilon_planned of the privacy plan is"),
    "a lower rate": (everywhere("shared", rate=0.01), "epsilon_planned of the privacy plan is"),
    "noise beyond numbers": (everywhere("shared", noise_multiplier=10**400), "must be a finite number"),
    "the largest noise": (
        everywhere("shared", noise_multiplier=1e308),
        "epsilon_planned of the privacy plan is",
    ),
    "the least noise": (everywhere("shared", noise_multiplier=1e-308), "noise is too small to account for"),
    "the least rate": (everywhere("shared", rate=1e-320), "epsilon_planned of the privacy plan is"),
    "a rate below 0": (everywhere("shared", rate=-0.0), "must be above 0 and at most 1, not -0.0"),
    "delta of 0": (plan(delta=-0.0), "delta of the privacy plan must be above 0"),
    "delta beyond numbers": (plan(delta=1e-320), "delta of the privacy plan must be at least 1e-200"),
    "a population beyond numbers": (
        plan(population=10**400),
        "population of the privacy plan must be at most",
    ),
    "steps beyond numbers": (
        everywhere("evaluation", steps=10**30),
        "steps of stream evaluation .* must be at most",
    ),
    "a generator in capitals": (
        plan(generator="Secure:aes"),
        "the mode of generator of the privacy plan must be",
    ),
    "streams without order": (plan(streams={"shared": 1}), "streams of the privacy plan must be a list"),
    "fewer steps than none left out": (end(left_out=-1), "left_out of .* must be at least 0"),
    "lost steps hidden": (end(left_out=2), "status is complete, its plan and releases give incomplete"),
    "an end that does not say": (lambda e: e[-3][1].pop("left_out"), "lacks the field left_out"),
    "evaluation not charged": (lambda e: e.pop(-2), "is 'closing' where 'reserved' should stand"),
    "evaluation charged less": (reserved(steps=1), "steps is 1, its plan and releases give 2"),
    "evaluation twice": (
        lambda e: e.insert(-1, copy.deepcopy(e[-2])),
        "'reserved' where 'closing' should stand",
    ),
    "two ends": (lambda e: e.append(copy.deepcopy(e[-1])), "has 12 lines, its plan asks for 11"),
    "no digest of results": (lambda e: e[3][1].update(follows="z" * 64), "must be a SHA-256 in hexadecimal"),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_plan_releases_and_journal_forged_together(forged: Project, name: str) -> None:
    forge, message = TOGETHER[name]
    forged.reseal(with_journal(forge))
    name_ledger(forged)
    refused(forged, message)


def test_a_certificate_is_bound_to_one_ledger_to_the_last_field(forged: Project) -> None:
    """A change that costs nothing, with chain and journal made anew: only the digest shows it."""
    forged.reseal(with_journal(everywhere("expert", denominator=16.0)))
    refused(forged, "the certificate belongs to the ledger")
    name_ledger(forged)
    refused(forged, "denominator is 8.0 in the certificate, the ledger gives 16.0")


def test_a_certificate_that_names_no_model_is_said_to(forged: Project) -> None:
    forged.reseal(lambda entries: entries[-1][1].update(model=None))
    fields = {**forged.fields(), "model": {"digest": None}}
    forged.write_fields(fields)
    name_ledger(forged)
    assert "names no model, so none was checked" in verify_certificate(forged.certificate).line()


# Another model.


def swapped(model: Path) -> None:
    (model / "config.json").rename(model / "x")
    (model / "model.safetensors").rename(model / "config.json")
    (model / "x").rename(model / "model.safetensors")


def deeper(model: Path) -> None:
    (model / "weights").mkdir()
    (model / "model.safetensors").rename(model / "weights" / "model.safetensors")


def unreadable_name(model: Path) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/\xff\xfe")).write_text("x")


@pytest.mark.parametrize("change", [swapped, deeper, unreadable_name])
def test_the_files_of_a_model_count_with_their_names(project: Project, forged: Project, change: Any) -> None:
    change(forged.model)
    assert model_digest(forged.model) != model_digest(project.model)


def test_fields_have_one_digest(project: Project) -> None:
    fields = project.fields()
    assert fields["digest"] == fields_digest(fields) == fields_digest(json.loads(json.dumps(fields)))
