"""`raptor search` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .accounting.samples import make_plan, make_project
from .test_cli_accounting import imported_by, run

EVENT = ("--event", "0.02,1.2,400", "--delta", "1e-6")


def found(*arguments: str) -> dict:
    done = run("search", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_naive_runs_are_those_of_one_ledger() -> None:
    search = found(*EVENT, "--runs", "5")
    ledger = json.loads(run("epsilon", "--event", "0.02,1.2,2000", "--delta", "1e-6", "--json").stdout)
    assert search["epsilon"] == ledger["epsilon"]
    assert (search["runs"], search["selection"], search["needs"]) == (5, "naive", [])


def test_a_random_number_of_runs_is_cheaper_and_says_what_it_needs() -> None:
    naive = found(*EVENT, "--runs", "50")["epsilon"]
    search = found(*EVENT, "--runs", "50", "--selection", "logarithmic")
    assert search["epsilon"] < naive
    assert len(search["needs"]) == 4
    shown = run("search", *EVENT, "--runs", "50", "--selection", "logarithmic").stdout
    assert shown.count("\n  if: ") == 4
    assert "random number of runs, mean 50, logarithmic" in shown


def test_a_certificate_and_its_ledger_give_the_figure_of_the_certificate(tmp_path: Path) -> None:
    project = make_project(tmp_path, make_plan(search={"runs": 4, "selection": "geometric"}))
    arguments = ("--runs", "4", "--selection", "geometric")
    expected = project.fields()["search"]["epsilon"]
    assert found("--ledger", str(project.ledger), *arguments)["epsilon"] == expected
    assert found("--certificate", str(project.certificate), *arguments)["epsilon"] == expected
    fields = project.fields()
    fields["epsilon"] /= 2
    project.write_fields(fields)
    done = run("search", "--certificate", str(project.certificate), *arguments)
    assert done.exit_code == 1
    assert "epsilon is" in done.stderr


def test_runs_of_different_settings_are_added_in_one_ledger(tmp_path: Path) -> None:
    first = make_project(tmp_path / "first")
    second = make_project(tmp_path / "second", make_plan(evaluation=4))
    both = found("--ledger", str(first.ledger), "--ledger", str(second.ledger))
    assert both["runs"] == 2
    ones = [found("--ledger", str(one.ledger), "--runs", "2")["epsilon"] for one in (first, second)]
    assert ones[0] < both["epsilon"] < ones[1]


def test_a_number_of_runs_is_drawn() -> None:
    drawn = {
        int(run("search", "--runs", "9", "--selection", "geometric", "--draw").stdout) for _ in range(30)
    }
    assert len(drawn) > 3
    assert min(drawn) >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "5", "--delta", "1e-6"], "give the releases of a run"),
        (["--event", "0.1,1,5", "--runs", "5"], "give --delta: there is no ledger"),
        ([*EVENT], "say how many runs"),
        ([*EVENT, "--runs", "1"], "at least 2"),
        ([*EVENT, "--runs", "5", "--selection", "best"], "Invalid value for '--selection'"),
        (["--runs", "5", "--draw"], "the number of runs is not drawn"),
        (["--ledger", "absent.jsonl", "--runs", "5"], "absent.jsonl cannot be read"),
    ],
)
def test_bad_input_gets_one_message(arguments: list[str], message: str) -> None:
    done = run("search", *arguments)
    assert done.exit_code != 0
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_ledgers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one")
    other = make_project(tmp_path / "two", make_plan(delta=1e-4, population=1000))
    place = str(project.ledger)
    for arguments, message in (
        (["--ledger", place, "--ledger", place], "given twice"),
        (["--ledger", place, "--ledger", str(other.ledger)], "give --delta: the ledgers differ"),
        (["--ledger", place, "--runs", "3", "--adjacency", "replace-one"], "the ledgers are for add-remove"),
        (["--ledger", place, "--event", "0.1,1,5", "--runs", "3"], "several runs are composed as they are"),
    ):
        done = run("search", *arguments)
        assert done.exit_code != 0
        assert message in done.stderr


def test_it_imports_nothing_heavy() -> None:
    assert imported_by("search", *EVENT, "--runs", "5", "--selection", "geometric", "--json") == []
