"""The certificate: what it says, and that nobody can change one thing in it or its ledger unnoticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raptor.accounting.accountant import epsilon
from raptor.accounting.certificate import build_certificate, model_digest
from raptor.accounting.chain import sealed
from raptor.accounting.types import Adjacency, Event
from raptor.accounting.verification import verify_certificate
from raptor.errors import BudgetError, LedgerError

from .samples import DELTA, Project, make_plan, make_project, with_figures


@pytest.fixture(name="project", scope="module")
def _project(tmp_path_factory) -> Project:
    return make_project(tmp_path_factory.mktemp("run"))


@pytest.fixture(name="copy")
def _copy(project: Project, tmp_path: Path) -> Project:
    """A copy to forge."""
    copy = Project(tmp_path)
    for name in ("certificate", "ledger"):
        target = getattr(copy, name)
        target.parent.mkdir(parents=True)
        target.write_bytes(getattr(project, name).read_bytes())
    copy.model.mkdir(parents=True)
    for path in project.model.iterdir():
        (copy.model / path.name).write_bytes(path.read_bytes())
    return copy


def refused(project: Project, message: str, **options) -> None:
    with pytest.raises(LedgerError, match=message):
        verify_certificate(project.certificate, **options)


def test_a_true_certificate_is_accepted(project: Project) -> None:
    report = verify_certificate(project.certificate)
    assert report.private
    assert report.status == "complete"
    assert report.model == project.model
    assert report.line().startswith("valid: epsilon ")


def test_what_the_certificate_names(project: Project) -> None:
    fields = project.fields()
    events = [Event(0.02, 1.1, 3), Event(0.02, 0.9, 3), Event(1.0, 20.0, 2)]
    assert fields["epsilon"] == epsilon(events, DELTA, Adjacency.ADD_REMOVE).epsilon
    assert fields["epsilon"] < fields["epsilon_split_sum"]
    assert fields["accountant"]["method"] == "pld"
    assert fields["accountant"]["asked"][0].startswith("dp-accounting 0.6")
    assert fields["accountant"]["epsilon_renyi"] > fields["epsilon"]
    assert fields["generator"] == {"name": "secure:aes-256-ctr/os-entropy", "mode": "secure"}
    expert = fields["streams"][1]
    assert expert["noise_deviation"] == pytest.approx(0.63)
    assert expert["epsilon_alone"] < fields["epsilon"]
    assert fields["taken_as_public"] == ["number of training records", "names of the classes"]
    assert fields["model"]["digest"] == model_digest(project.model)


def test_the_statement_gives_epsilon_rounded_up(project: Project) -> None:
    fields = project.fields()
    text = " ".join(fields["statement"])
    shown = float(text.partition("are (")[2].partition(",")[0])
    assert fields["epsilon"] <= shown <= fields["epsilon"] * 1.001
    assert "when one record is added or removed" in text
    assert "Not private" not in text


def test_seeded_noise_is_stamped_not_private(tmp_path: Path) -> None:
    project = make_project(tmp_path, make_plan(generator="seeded:aes-256-ctr"))
    fields = project.fields()
    assert fields["private"] is False
    assert fields["statement"][0].startswith("Not private")
    assert "NOT PRIVATE" in verify_certificate(project.certificate).line()


def test_an_incomplete_run_is_certified_as_such(tmp_path: Path) -> None:
    project = make_project(tmp_path, steps={"shared": 2, "expert": 1})
    fields = project.fields()
    assert fields["status"] == "incomplete"
    assert "shared 2 of 3, expert 1 of 3" in fields["statement"][0]
    assert fields["epsilon"] < fields["epsilon_planned"]
    assert "incomplete" in verify_certificate(project.certificate).line()


def test_replace_one_is_said_and_counted(tmp_path: Path, project: Project) -> None:
    other = make_project(tmp_path, make_plan(adjacency="replace-one", epsilon_target=8.0))
    assert other.fields()["epsilon"] > project.fields()["epsilon"]
    assert "replaced by any other" in " ".join(other.fields()["statement"])
    verify_certificate(other.certificate)


def test_a_weak_delta_is_said(tmp_path: Path) -> None:
    project = make_project(tmp_path, make_plan(population=50_000, delta=1e-3))
    assert any(sentence.startswith("Weak: delta") for sentence in project.fields()["statement"])


def test_a_ledger_above_its_target_gets_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="above the target"):
        make_project(tmp_path, make_plan(epsilon_target=0.1))


def test_the_ledger_may_lie_beside_the_certificate_or_be_given(copy: Project, tmp_path: Path) -> None:
    beside = copy.certificate.parent / "privacy_ledger.jsonl"
    copy.ledger.rename(beside)
    assert verify_certificate(copy.certificate).ledger == beside
    elsewhere = beside.rename(tmp_path / "elsewhere.jsonl")
    refused(copy, "was not found .* --ledger")
    assert verify_certificate(copy.certificate, ledger=elsewhere).ledger == elsewhere


def test_a_certificate_can_be_checked_without_the_model(copy: Project) -> None:
    for path in copy.model.iterdir():
        path.unlink()
    copy.model.rmdir()
    assert verify_certificate(copy.certificate).model is None
    refused(copy, "holds no model", model=copy.model)


FIELD_FORGERIES = {
    "epsilon lowered": (
        lambda f: f.update(epsilon=f["epsilon"] / 2),
        r"^epsilon is 0\.\d+ in the certificate",
    ),
    "epsilon a little lower": (lambda f: f.update(epsilon=f["epsilon"] * (1 - 1e-5)), "^epsilon is"),
    "epsilon NaN": (lambda f: f.update(epsilon=float("nan")), "NaN is no number"),
    "epsilon as text": (lambda f: f.update(epsilon="0.1"), "^epsilon is '0.1'"),
    "epsilon true": (lambda f: f.update(epsilon=True), "^epsilon is True"),
    "delta changed": (lambda f: f.update(delta=1e-9), "^delta is 1e-09"),
    "adjacency changed": (lambda f: f.update(adjacency="replace-one"), "^adjacency is 'replace-one'"),
    "unit changed": (lambda f: f.update(unit="user"), "^unit is 'user'"),
    "target lowered": (lambda f: f.update(epsilon_target=0.5), "^epsilon_target is 0.5"),
    "split sum changed": (lambda f: f.update(epsilon_split_sum=9.0), "^epsilon_split_sum is 9.0"),
    "noise raised": (
        lambda f: f["streams"][0].update(noise_multiplier=2.2),
        "streams entry 1.noise_multiplier is 2.2",
    ),
    "rate lowered": (lambda f: f["streams"][1].update(rate=0.001), "streams entry 2.rate is 0.001"),
    "clipping norm": (lambda f: f["streams"][0].update(clipping_norm=0.1), "streams entry 1.clipping_norm"),
    "denominator": (lambda f: f["streams"][0].update(denominator=1.0), "streams entry 1.denominator"),
    "steps removed": (
        lambda f: f["streams"][0].update(steps_executed=1),
        "streams entry 1.steps_executed is 1",
    ),
    "stream left out": (lambda f: f["streams"].pop(), "streams must be a list of 3"),
    "assumption left out": (lambda f: f["assumptions"].pop(), "assumptions must be a list"),
    "public fact left out": (lambda f: f["taken_as_public"].pop(), "taken_as_public must be a list of 2"),
    "statement reworded": (
        lambda f: f["statement"].__setitem__(0, "Perfectly private."),
        "statement entry 1",
    ),
    "generator": (
        lambda f: f["generator"].update(name="fast:torch", mode="fast"),
        "generator.name is 'fast:torch'",
    ),
    "status": (lambda f: f.update(status="incomplete"), "^status is 'incomplete'"),
    "not private": (lambda f: f.update(private=1), "^private is 1"),
    "library": (lambda f: f["accountant"].update(method="rdp"), "accountant.method is 'rdp'"),
    "model digest": (lambda f: f["model"].update(digest="0" * 64), "model.digest is"),
    "ledger digest": (lambda f: f["ledger"].update(digest="0" * 64), "belongs to the ledger 0000"),
    "population": (lambda f: f.update(population=10**6), "^population is 1000000"),
    "field left out": (lambda f: f.pop("delta"), "delta is missing from the certificate"),
    "field added": (lambda f: f.update(certified_by="somebody"), "certified_by is not a field"),
}


@pytest.mark.parametrize("name", FIELD_FORGERIES)
def test_a_changed_certificate_is_refused(copy: Project, name: str) -> None:
    forge, message = FIELD_FORGERIES[name]
    fields = copy.fields()
    forge(fields)
    copy.write_fields(fields)
    refused(copy, message)


def drop(lines, number):
    del lines[number]


def swap(lines, first, second):
    lines[first], lines[second] = lines[second], lines[first]


LINE_FORGERIES = {
    "noise raised in one release": (
        lambda lines: lines[3]["data"].update(noise_multiplier=9.0),
        "line 4 of .* was changed",
    ),
    "release removed": (lambda lines: drop(lines, 3), "line 4 of .* says that it is line 5"),
    "release repeated": (lambda lines: lines.insert(4, lines[3]), "line 5 of .* says that it is line 4"),
    "releases swapped": (lambda lines: swap(lines, 3, 4), "line 4 of .* says that it is line 5"),
    "closing line cut off": (lambda lines: drop(lines, -1), "has no closing line"),
    "cut in half": (lambda lines: lines.__delitem__(slice(4, None)), "has no closing line"),
    "plan edited": (lambda lines: lines[0]["data"]["plan"].update(population=9), "line 1 of .* was changed"),
    "hash replaced": (lambda lines: lines[2].update(hash="0" * 64), "line 3 of .* was changed"),
    "NaN in a release": (lambda lines: lines[2]["data"].update(rate=float("nan")), "NaN is no number"),
}


@pytest.mark.parametrize("name", LINE_FORGERIES)
def test_a_changed_ledger_is_refused(copy: Project, name: str) -> None:
    forge, message = LINE_FORGERIES[name]
    lines = copy.lines()
    forge(lines)
    copy.write_lines(lines)
    refused(copy, message)


def set_data(number, **values):
    return lambda entries: entries[number][1].update(**values)


def set_stream(number, **values):
    return lambda entries: entries[0][1]["plan"]["streams"][number].update(**values)


def raise_noise_everywhere(entries) -> None:
    """Plan and releases say more noise, the figures of the plan do not follow."""
    for kind, data in entries:
        if kind == "release" and data["stream"] == "shared":
            data["noise_multiplier"] = 5.0
        elif kind == "plan":
            data["plan"]["streams"][0]["noise_multiplier"] = 5.0


RESEALED_FORGERIES = {
    "noise raised in one release": (
        set_data(3, noise_multiplier=9.0),
        "line 4 .* noise multiplier 9.0, the plan says",
    ),
    "rate of one release": (set_data(3, rate=0.001), "line 4 .* rate 0.001, the plan says 0.02"),
    "clipping norm of one release": (
        lambda entries: entries[3][1]["sensitivity"].update(norm=0.1),
        "line 4 .* clipping norm 0.1, the plan says 0.7",
    ),
    "adjacency of one release": (
        lambda entries: entries[3][1]["sensitivity"].update(adjacency="replace-one"),
        "line 4 .* adjacency replace-one",
    ),
    "denominator of one release": (set_data(3, denominator=1.0), "line 4 .* denominator 1.0"),
    "generator of one release": (set_data(3, generator="fast:torch"), "line 4 .* generator fast:torch"),
    "dimension of one release": (set_data(3, dimension=7), "line 4 .* dimension 7"),
    "noise NaN": (set_data(3, noise_multiplier=None), "line 4 .* noise_multiplier .* must be a number"),
    "release removed": (lambda entries: drop(entries, 3), "where step 1 should stand"),
    "last release removed": (lambda entries: drop(entries, 6), "has 5 releases, its journal had 6"),
    "release repeated": (lambda entries: entries.insert(4, entries[3]), "where step 2 should stand"),
    "releases of two streams swapped": (
        lambda entries: swap(entries, 1, 2),
        "plan and releases of .* are not those of the journal",
    ),
    "reserved releases removed": (
        lambda entries: drop(entries, 7),
        "'closing' where 'reserved' should stand",
    ),
    "fewer reserved releases": (set_data(7, steps=1), "line 8 .* steps is 1"),
    "totals changed": (lambda entries: entries[8][1]["streams"][0].update(charged=1), "line 9 .* streams is"),
    "status changed": (set_data(8, status="incomplete"), "line 9 .* status is incomplete"),
    "line added": (lambda entries: entries.insert(8, ("note", {})), "'note' where 'closing' should stand"),
    "closing line twice": (lambda entries: entries.append(entries[8]), "has 10 lines, its plan asks for 9"),
    "plan's steps": (set_stream(0, steps=2), "3 releases of stream shared, the plan allows 2"),
    "plan's noise": (set_stream(0, noise_multiplier=5.0), "noise multiplier 1.1, the plan says 5.0"),
    "plan's delta": (lambda entries: entries[0][1]["plan"].update(delta=1e-2), "not those of the journal"),
    "plan's generator": (
        lambda entries: entries[0][1]["plan"].update(generator="seeded:x"),
        "generator secure:aes-256-ctr/os-entropy, the plan says seeded:x",
    ),
    "plan and releases together": (raise_noise_everywhere, "not those of the journal"),
    "journal left out": (set_data(0, journal=None), "names no journal"),
    "model exchanged": (set_data(8, model="0" * 64), "belongs to the ledger"),
    "older format": (set_data(0, format="raptor-ledger/1"), "this version reads raptor-ledger/4"),
}


@pytest.mark.parametrize("name", RESEALED_FORGERIES)
def test_a_ledger_with_a_new_chain_is_refused(copy: Project, name: str) -> None:
    forge, message = RESEALED_FORGERIES[name]
    copy.reseal(forge)
    refused(copy, message)


def test_a_wholly_new_ledger_is_refused_by_the_digest(copy: Project, tmp_path: Path) -> None:
    other = make_project(tmp_path / "other", make_plan(population=9000))
    refused(copy, "belongs to the ledger", ledger=other.ledger)


def test_figures_of_the_plan_must_be_its_own(copy: Project) -> None:
    """Journal digest, chain and releases all made anew: the plan's own epsilon gives the forgery away."""

    def forge(entries) -> None:
        raise_noise_everywhere(entries)
        releases = [entry for entry in entries if entry[0] == "release"]
        made = sealed([("header", entries[0][1]["plan"]), *releases])
        entries[0][1]["journal"]["digest"] = made[-1]["hash"]

    copy.reseal(forge)
    refused(copy, "epsilon_planned of the privacy plan is .*, its streams give")
    with pytest.raises(LedgerError, match="epsilon_planned"):
        build_certificate(copy.lines())


def test_seeded_noise_cannot_be_called_secure(tmp_path: Path) -> None:
    project = make_project(tmp_path, make_plan(generator="seeded:aes-256-ctr"))
    fields = project.fields()
    fields["private"] = True
    fields["generator"] = {"name": "secure:aes-256-ctr/os-entropy", "mode": "secure"}
    project.write_fields(fields)
    refused(project, "^private is True in the certificate")


@pytest.mark.parametrize("change", ["weights", "file added", "file renamed"])
def test_another_model_is_refused(copy: Project, change: str) -> None:
    weights = copy.model / "model.safetensors"
    if change == "weights":
        weights.write_bytes(bytes(range(1, 65)))
    elif change == "file added":
        (copy.model / "extra.bin").write_bytes(b"")
    else:
        weights.rename(copy.model / "weights.safetensors")
    refused(copy, "is not the certified one")


def test_a_torn_ledger_is_refused(copy: Project) -> None:
    copy.ledger.write_bytes(copy.ledger.read_bytes()[:-20])
    refused(copy, "line 9 of .* is torn")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "is not a certificate"),
        ("{", "not valid JSON"),
        ('{"a":1,"a":2}', "stands twice"),
    ],
)
def test_a_file_that_is_no_certificate_is_refused(copy: Project, content: str, message: str) -> None:
    copy.certificate.write_text(content)
    refused(copy, message)


def test_a_missing_certificate_is_named(copy: Project) -> None:
    copy.certificate.unlink()
    refused(copy, "privacy_certificate.json cannot be read")


def test_the_certificate_is_plain_json(project: Project) -> None:
    assert json.loads(json.dumps(project.fields(), allow_nan=False)) == build_certificate(project.lines())


def test_samples_state_their_own_figures() -> None:
    plan = make_plan()
    assert with_figures(plan) == plan
