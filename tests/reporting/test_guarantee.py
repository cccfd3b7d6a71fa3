"""What the report takes from plan and certificate."""

from __future__ import annotations

from typing import Any

import pytest

from raptor.accounting.certificate import build_certificate
from raptor.accounting.chain import sealed
from raptor.accounting.journal import HEADER, RELEASE
from raptor.accounting.ledger import compose_ledger
from raptor.accounting.types import Adjacency, Release, Sensitivity, Unit
from raptor.errors import LedgerError
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope
from raptor.pipelines.training.planning import raptor_plan
from raptor.reporting.guarantee import read_guarantee
from tests.pipelines.evaluation.world import CONSTANTS, LAYER_PLAN, PRIVACY, TRAINING


def plan_of(source: str) -> dict[str, Any]:
    config = EvaluationConfig()
    scope = evaluation_scope(config, source)
    return raptor_plan(LAYER_PLAN, CONSTANTS, PRIVACY, TRAINING, config, scope).to_json()


def certificate_of(plan: dict[str, Any], steps: int | None = None) -> dict[str, Any]:
    sensitivity = Sensitivity(1.0, Adjacency.ADD_REMOVE, Unit.RECORD)
    entries: list[tuple[str, dict[str, Any]]] = [(HEADER, plan)]
    for stream in plan["streams"][:2]:
        for step in range(stream["steps"] if steps is None else steps):
            release = Release(
                stream["name"],
                step,
                stream["rate"],
                stream["noise_multiplier"],
                sensitivity,
                stream["denominator"],
                10,
                plan["generator"],
            )
            entries.append((RELEASE, release.to_json()))
    return build_certificate(compose_ledger(plan, sealed(entries), None))


@pytest.mark.parametrize(("source", "streams"), [("embedded", 2), ("own.csv", 3)])
def test_the_curve_starts_with_what_is_reserved_and_ends_at_the_proven_epsilon(
    source: str, streams: int
) -> None:
    plan = plan_of(source)
    guarantee = read_guarantee(plan, certificate_of(plan))
    assert len(guarantee.streams) == streams
    steps, spent = zip(*guarantee.curve, strict=True)
    assert steps[0] == 0
    assert steps[-1] == 4
    assert list(spent) == sorted(spent)
    assert (spent[0] == 0) is (source == "embedded")
    assert spent[-1] == pytest.approx(guarantee.epsilon, rel=1e-3)
    assert guarantee.epsilon <= guarantee.target
    assert guarantee.split_sum > guarantee.epsilon
    assert guarantee.complete
    assert not guarantee.protects  # the plan is seeded
    assert guarantee.taken_as_public[0] == "The number of records."


def test_a_training_that_was_cut_off_is_told_apart() -> None:
    plan = plan_of("embedded")
    whole, cut = (read_guarantee(plan, certificate_of(plan, steps)) for steps in (None, 1))
    assert not cut.complete
    assert cut.epsilon < whole.epsilon
    assert [stream.steps for stream in cut.streams] == [1, 1]


def test_a_certificate_of_another_plan_is_refused() -> None:
    with pytest.raises(LedgerError, match="another privacy plan"):
        read_guarantee(plan_of("own.csv"), certificate_of(plan_of("embedded")))
    with pytest.raises(LedgerError, match="lacks"):
        read_guarantee({}, {})


def test_a_search_is_told_with_its_cost() -> None:
    plan = plan_of("embedded")
    assert read_guarantee(plan, certificate_of(plan)).search == ""
    plan["search"] = {"runs": 6, "selection": "naive"}
    certificate = certificate_of(plan)
    text = read_guarantee(plan, certificate).search
    assert text.startswith("This run is one of 6 runs on these records.")
    assert certificate["search"]["epsilon"] > certificate["epsilon"]
    plan["search"] = {"runs": 6, "selection": "geometric"}
    assert "the best of a random number of runs, about 6" in read_guarantee(plan, certificate_of(plan)).search
