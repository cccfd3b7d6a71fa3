"""The ledger: the plan's releases and no others, in order, with what is reserved and how far the run came."""

from __future__ import annotations

import dataclasses

import pytest

from raptor.accounting.ledger import compose_ledger, read_ledger
from raptor.accounting.types import Adjacency, Event, Sensitivity, Unit
from raptor.errors import LedgerError

from .samples import journal_lines, make_plan, make_releases


def composed(plan=None, steps=None, edit=lambda releases: releases, model=None):
    plan = plan or make_plan()
    return compose_ledger(plan, journal_lines(plan, edit(make_releases(plan, steps))), model)


def changed(number: int, **values):
    """Replace fields of release `number`."""

    def edit(releases):
        releases[number] = dataclasses.replace(releases[number], **values)
        return releases

    return edit


def test_a_complete_run() -> None:
    ledger = read_ledger(composed(model="m" * 64))
    assert ledger.status == "complete"
    assert ledger.model == "m" * 64
    assert ledger.lines == 9
    assert [(total.planned.name, total.executed, total.charged) for total in ledger.totals] == [
        ("shared", 3, 3),
        ("expert", 3, 3),
        ("evaluation", 0, 2),
    ]
    assert ledger.events == (Event(0.02, 1.1, 3), Event(0.02, 0.9, 3), Event(1.0, 20.0, 2))


def test_lines_stand_in_the_order_of_the_contract() -> None:
    kinds = [line["kind"] for line in composed()]
    assert kinds == ["plan", *["release"] * 6, "reserved", "closing"]


def test_an_incomplete_run_says_so_and_charges_what_was_spent() -> None:
    ledger = read_ledger(composed(steps={"shared": 2, "expert": 1}))
    assert ledger.status == "incomplete"
    assert [total.charged for total in ledger.totals] == [2, 1, 2]


@pytest.mark.parametrize("steps", [{"shared": 2, "expert": 3}, {"shared": 3, "expert": 2}])
def test_a_run_that_lacks_one_step_is_incomplete(steps) -> None:
    assert read_ledger(composed(steps=steps)).status == "incomplete"


def test_nothing_released_is_a_ledger_too() -> None:
    plan = make_plan()
    ledger = read_ledger(compose_ledger(plan, []))
    assert ledger.status == "incomplete"
    assert ledger.events == (Event(1.0, 20.0, 2),)


def test_a_plan_without_evaluation_reserves_nothing() -> None:
    ledger = read_ledger(composed(make_plan(evaluation=0)))
    assert [total.planned.name for total in ledger.totals] == ["shared", "expert"]
    assert ledger.status == "complete"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise_multiplier": 0.55}, "noise multiplier 0.55, the plan says 1.1"),
        ({"rate": 0.04}, "rate 0.04, the plan says 0.02"),
        ({"denominator": 63.0}, "denominator 63.0, the plan says 64.0"),
        ({"generator": "seeded:aes-256-ctr"}, "generator seeded:aes-256-ctr, the plan says secure"),
        ({"stream": "other"}, "belongs to stream other, the plan has shared, expert, evaluation"),
        ({"step": 4}, "step 4 of stream shared, where step 1 should stand"),
        ({"dimension": 1201}, "dimension 1201, earlier releases of stream shared have 1200"),
        (
            {"sensitivity": Sensitivity(1.4, Adjacency.ADD_REMOVE, Unit.RECORD)},
            "clipping norm 1.4, the plan says 0.7",
        ),
        (
            {"sensitivity": Sensitivity(0.7, Adjacency.REPLACE_ONE, Unit.RECORD)},
            "adjacency replace-one, the plan says add-remove",
        ),
        (
            {"sensitivity": Sensitivity(0.7, Adjacency.ADD_REMOVE, Unit.USER)},
            "unit user, the plan says record",
        ),
    ],
)
def test_a_release_that_is_not_the_plans_is_refused(values, message) -> None:
    with pytest.raises(LedgerError, match=message):
        composed(edit=changed(2, **values))


def test_more_releases_than_planned_are_refused() -> None:
    def edit(releases):
        return [*releases, dataclasses.replace(releases[0], step=3)]

    with pytest.raises(LedgerError, match="4 releases of stream shared, the plan allows 3"):
        composed(edit=edit)


def test_the_log_of_another_plan_is_refused() -> None:
    other = make_plan(population=3000)
    with pytest.raises(LedgerError, match="belongs to another privacy plan"):
        compose_ledger(make_plan(), journal_lines(other, make_releases(other)))


def test_a_broken_log_is_refused() -> None:
    plan = make_plan()
    lines = journal_lines(plan, make_releases(plan))
    lines[3]["data"]["rate"] = 0.01
    with pytest.raises(LedgerError, match="line 4 of the release log was changed"):
        compose_ledger(plan, lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adjacency": "swap"}, "adjacency of the privacy plan must be one of add-remove, replace-one"),
        ({"delta": 0}, "delta of the privacy plan"),
        ({"epsilon_target": float("inf")}, "epsilon of the privacy plan"),
        ({"generator": "mt19937"}, "mode of generator"),
        ({"streams": []}, "must be named"),
        ({"population": 0}, "population of the privacy plan must be at least 1"),
        ({"surprise": 1}, "unknown field surprise"),
    ],
)
def test_a_plan_that_is_none_is_refused(change, message) -> None:
    with pytest.raises(LedgerError, match=message):
        compose_ledger({**make_plan(), **change}, [])


def test_a_stream_named_twice_is_refused() -> None:
    plan = make_plan()
    with pytest.raises(LedgerError, match="each once"):
        compose_ledger({**plan, "streams": plan["streams"] + plan["streams"][:1]}, [])
