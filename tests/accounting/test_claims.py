"""What a certificate claims as checked, and its page: no more than the ledger shows, rounded to the safe side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raptor.accounting.assumptions import CHECKED, YOURS
from raptor.accounting.verification import verify_certificate
from raptor.accounting.words import round_down, round_up
from raptor.errors import LedgerError

from .samples import Project, end_facts, make_plan, make_project, make_whole, start_facts


@pytest.fixture(name="project", scope="module")
def _project(tmp_path_factory) -> Project:
    return make_whole(tmp_path_factory.mktemp("whole"))


def marks(project: Project) -> dict[str, str]:
    return {item["check"]: item["mark"] for item in project.fields()["assumptions"]}


CHECKS = ("router", "isolation", "samples", "constants", "noise", "records")


def test_what_the_run_checked_is_claimed(project: Project) -> None:
    found = marks(project)
    assert [found[name] for name in CHECKS] == [CHECKED] * 6
    assert {found[name] for name in set(found) - set(CHECKS)} == {YOURS}
    text = json.dumps(project.fields()["assumptions"])
    assert "shared and expert parameters in float64 and float32" in text
    assert "512 weights of routers" in text


def test_what_the_run_did_not_check_is_not_claimed(tmp_path: Path) -> None:
    found = marks(make_project(tmp_path))
    assert {found[name] for name in CHECKS} == {YOURS}


@pytest.mark.parametrize(
    ("start", "end", "missing"),
    [
        ({"isolation": None}, {}, "isolation"),
        ({"isolation": start_facts().isolation.__class__(("shared",), ("float32",))}, {}, "isolation"),
        ({"constants": False}, {}, "constants"),
        ({"coordinates": {"shared": 1200}}, {}, "noise"),
        ({}, {"router_weights": 0}, "router"),
        ({}, {"records_unchanged": False}, "records"),
        ({}, {"keystreams": ("shared/coins", "shared/coins", "expert/coins")}, "samples"),
        ({}, {"keystreams": ("shared/coins",)}, "samples"),
    ],
)
def test_each_check_is_claimed_for_itself(tmp_path: Path, start, end, missing) -> None:
    found = marks(make_project(tmp_path, start=start_facts(**start), end=end_facts(**end)))
    assert [name for name in CHECKS if found[name] == YOURS] == [missing]


def test_a_run_that_did_not_end_claims_nothing_of_its_end(tmp_path: Path) -> None:
    found = marks(make_project(tmp_path, start=start_facts(), end=None))
    assert [name for name in CHECKS if found[name] == YOURS] == ["router", "samples", "records"]


def test_bounds_on_the_page_are_rounded_to_the_safe_side(project: Project) -> None:
    assert (round_up(1.2345601, 6), round_up(2.0, 6), round_up(0.0, 6)) == ("1.23457", "2", "0")
    assert (round_down(0.39979), round_down(2.0), round_down(0.0)) == ("0.3997", "2", "0")
    shown = project.page.read_text().partition("in one ledger | ")[2].partition(" |")[0]
    assert project.fields()["epsilon"] <= float(shown) <= project.fields()["epsilon"] * 1.00001


def test_words_from_outside_are_no_markup(tmp_path: Path) -> None:
    plan = make_plan(taken_as_public=["<script>alert(1)</script>", "a | b\n# Not a heading", "[x](http://y)"])
    page = make_project(tmp_path, plan).page.read_text()
    assert "<script>" not in page
    assert "\n# Not a heading" not in page
    assert "a \\| b \\# Not a heading" in page
    assert "[x](http" not in page


def test_a_split_that_costs_more_than_the_target_is_refused(tmp_path: Path) -> None:
    plan = make_plan()
    between = (plan["epsilon_planned"] + plan["epsilon_split_sum"]) / 2
    make_project(tmp_path / "joint", {**plan, "epsilon_target": between})
    with pytest.raises(LedgerError, match="calibrated by the split, but stream by stream it costs"):
        make_project(
            tmp_path / "split", {**plan, "epsilon_target": between, "accounting": "split", "rho": 0.5}
        )


def test_both_figures_stand_in_both_modes(tmp_path: Path) -> None:
    for name, changes in (("joint", {}), ("split", {"accounting": "split", "rho": 0.5})):
        project = make_project(tmp_path / name, make_plan(**changes))
        fields, page = project.fields(), project.page.read_text()
        assert fields["accounting"] == {"calibration": name, "rho": changes.get("rho")}
        assert fields["epsilon"] < fields["epsilon_split_sum"]
        added = sum(stream["epsilon_split"] for stream in fields["streams"])
        assert added == pytest.approx(fields["epsilon_split_sum"])
        assert sum(stream["delta_split"] for stream in fields["streams"]) == pytest.approx(fields["delta"])
        for value in (fields["epsilon"], fields["epsilon_split_sum"]):
            assert f"| {round_up(value, 6)} |" in page
        verify_certificate(project.certificate)
