"""The stage: public in and out, written before it fails, and shown in the report only for its own plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog, DatasetError, MemoryDataset
from kedro.pipeline import Node, Pipeline
from kedro.runner import SequentialRunner
from matplotlib.figure import Figure

from raptor.datasets import OptionalJSONDataset
from raptor.datasets.documents import dumps, loads
from raptor.errors import AuditError
from raptor.hooks.preflight import require_made
from raptor.pipelines.audit import create_pipeline
from raptor.pipelines.audit.config import AuditConfig
from raptor.pipelines.audit.nodes import audit_mechanism, draw_audit, refuse_violation
from raptor.pipelines.mechanism import exemption
from raptor.reporting.audit import figure, read_audit
from raptor.reporting.report import render_report
from tests.audit.faults import small_plan
from tests.reporting.samples import sample_inputs

SMALL = AuditConfig(canaries=1000, trials=300, spare=32, seed=1)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return loads(dumps(audit_mechanism(loads(dumps(small_plan().to_json())), SMALL)))


def broken(results: dict[str, Any]) -> dict[str, Any]:
    schedule = {**results["schedule"], "lower_bound": 9.876, "passed": False}
    checks = [{**item, "passed": item["check"] != "noise deviation"} for item in results["structure"]]
    return {**results, "passed": False, "schedule": schedule, "structure": checks}


def test_it_reads_nothing_but_the_public_plan() -> None:
    pipeline = create_pipeline()
    assert pipeline.inputs() == {"privacy_plan", "params:audit"}
    assert pipeline.all_outputs() == {"audit_results", "audit_figure"}
    assert all(exemption(node) is None for node in pipeline.nodes)


def test_results_are_json_and_pass(results: dict[str, Any]) -> None:
    assert results["passed"] is True
    assert results["lower_bound"] <= results["claim"]
    refuse_violation(results, b"")


def test_the_figure_shows_every_claim(results: dict[str, Any]) -> None:
    drawn = draw_audit(results)
    assert isinstance(drawn, Figure)
    (axes,) = drawn.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "all steps",
        "one shared release",
        "one expert release",
    ]
    assert "12 of 12 checks" in axes.get_title(loc="left") or "11 of 11 checks" in axes.get_title(loc="left")
    assert isinstance(figure(broken(results)), Figure)


def test_a_violation_ends_the_run_and_names_what_is_broken(results: dict[str, Any]) -> None:
    with pytest.raises(AuditError) as caught:
        refuse_violation(broken(results), b"")
    text = str(caught.value)
    assert "all steps: epsilon is at least 9.87" in text
    assert "noise deviation (expert)" in text
    assert "Do not hand out" in text


def test_the_report_shows_the_audit_of_its_own_plan_only(results: dict[str, Any]) -> None:
    plan = small_plan().to_json()
    passed = read_audit(results, plan)
    assert passed.state == "passed"
    assert "proves nothing" in passed.text
    assert read_audit(broken(results), plan).state == "failed"
    other = dataclasses.replace(small_plan(), delta=1e-7).to_json()
    for note in (
        read_audit(None, plan),
        read_audit(results, other),
        read_audit({**results, "at_the_plans_noise": False}, plan),
    ):
        assert note.state == "not run"
        assert "kedro run --pipelines audit" in note.text
    page = render_report(sample_inputs(audit=passed))
    assert passed.text in page
    assert "What attacks found" in page
    assert 'aria-labelledby="figure-audit-title' in page
    failed = render_report(sample_inputs(audit=read_audit(broken(results), plan)))
    assert "What attacks found: failed" in failed
    assert "What attacks found: not run" in render_report(sample_inputs())


def test_an_audit_can_be_left_out(results: dict[str, Any]) -> None:
    plan = small_plan().to_json()
    none = audit_mechanism(plan, AuditConfig(enabled=False))
    assert none == {}
    refuse_violation(none, b"")
    assert draw_audit(none).texts[0].get_text() == "No audit was made"
    assert read_audit(none, plan).state == "not run"
    assert read_audit(results, plan).figure is not None
    assert read_audit(none, plan).figure is None


def test_a_report_can_be_written_without_an_audit(tmp_path: Path) -> None:
    dataset = OptionalJSONDataset(filepath=str(tmp_path / "audit.json"))
    require_made("audit_results", {"audit_results": dataset})
    assert dataset.load() is None
    assert not dataset.exists()
    told = Pipeline([Node(lambda results: {"absent": results is None}, "audit_results", "told")])
    catalog = DataCatalog({"audit_results": dataset, "told": MemoryDataset()})
    SequentialRunner().run(told, catalog)
    assert catalog.load("told") == {"absent": True}
    dataset.save({"a": 1})
    assert dataset.load() == {"a": 1}
    (tmp_path / "audit.json").write_text("{")
    with pytest.raises(DatasetError, match="not valid JSON"):
        dataset.load()
