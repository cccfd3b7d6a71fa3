"""Leaks that were planted on purpose are refused, each by the rule that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kedro.io import DataCatalog
from kedro.pipeline import Node, Pipeline

from raptor.errors import PrivacyFlowError
from raptor.hooks.flow import Entry, Label, check_catalog, check_pipeline
from raptor.pipelines.mechanism import declaration_node, declarations, exemption, mechanism_node


def entry(label: str | None, name: str, **metadata: Any) -> dict[str, Any]:
    labels = {} if label is None else {"privacy": label}
    viz = {"kedro-viz": {"preview": False}} if label == "private" else {}
    return {
        "type": "raptor.datasets.JSONDataset",
        "filepath": f"data/{name}.json",
        "metadata": {**viz, **labels, **metadata},
    }


CATALOG: dict[str, dict[str, Any]] = {
    "corpus": entry("public", "corpus"),
    "layer_plan": entry("public", "layer_plan"),
    "constants": entry("public", "constants"),
    "records": entry("private", "records"),
    "owners": entry("private", "owners"),
    "model": entry("released", "model"),
    "metrics": entry("released", "metrics", mlflow={"kind": "metrics"}),
    "release_log": entry("released", "release_log", role="mechanism_log"),
    "private_log": entry("private", "private_log", role="mechanism_log"),
    "unlabelled": entry(None, "unlabelled"),
    "badly_labelled": entry("secret", "badly_labelled"),
    "private_logged": entry("private", "private_logged", mlflow={"kind": "artifact"}),
    "private_shown": entry("private", "private_shown", **{"kedro-viz": {"layer": "2"}}),
    "private_wrapped": {
        "type": "kedro.io.CachedDataset",
        "dataset": {"type": "kedro_mlflow.io.artifacts.MlflowArtifactDataset"},
        "metadata": {"privacy": "private", "kedro-viz": {"preview": False}},
    },
    "{name}_figure": entry("released", "{name}"),
    "table@arrow": entry("private", "table"),
    "table@json": entry("private", "table"),
}


def resolver(config: dict[str, dict[str, Any]]) -> Callable[[str], Any]:
    return DataCatalog.from_config(config).config_resolver.resolve_pattern


def one(*_: Any) -> int:
    return 1


def node(inputs: Any, outputs: Any, name: str = "leak", tags: Any = None) -> Node:
    return Node(one, inputs, outputs, name=name, tags=tags)


def mechanism(inputs: Any, outputs: Any, releases: list[str], ledger: str = "release_log") -> Node:
    return mechanism_node(one, inputs, outputs, "leak", releases=releases, ledger=ledger)


TRAIN = mechanism_node(one, "records", ["model", "release_log"], "train", releases=["model"])
COUNT = declaration_node(one, "records", "constants", "count", declares=["constants"], reason="n is public.")

PLANTED: dict[str, tuple[list[Node], str, str]] = {
    "private to a metric": ([node("records", "metrics")], "leak", "metrics"),
    "private to a public file": ([node("owners", "layer_plan")], "leak", "layer_plan"),
    "through a memory data set": (
        [node("records", "tmp", "hop"), node("tmp", "layer_plan")],
        "leak",
        "layer_plan",
    ),
    "through two memory data sets": (
        [node("records", "a", "hop1"), node("a", "b", "hop2"), node(["b", "corpus"], "metrics")],
        "leak",
        "metrics",
    ),
    "public from released": ([TRAIN, node("model", "layer_plan")], "leak", "layer_plan"),
    "beside a mechanism": (
        [mechanism("records", ["release_log", "metrics"], ["release_log"])],
        "leak",
        "metrics",
    ),
    "mechanism to public": (
        [mechanism("records", ["layer_plan", "release_log"], ["layer_plan"])],
        "leak",
        "layer_plan",
    ),
    "beside a declaration": (
        [
            declaration_node(
                one, "records", ["constants", "metrics"], "leak", declares=["constants"], reason="n."
            )
        ],
        "leak",
        "metrics",
    ),
    "after a declaration": ([COUNT, node(["constants", "records"], "metrics")], "leak", "metrics"),
    "through a data set factory": ([node("records", "owner_figure")], "leak", "owner_figure"),
    "through transcoding": (
        [node("corpus", "table@arrow", "w"), node("table@json", "metrics")],
        "leak",
        "metrics",
    ),
    "an input that nobody labels": ([node("loose_input", "metrics")], "leak", "metrics"),
    "ledger kept in memory": ([mechanism("records", ["model", "log"], ["model"], "log")], "no-ledger", "log"),
    "ledger without its role": (
        [mechanism("records", ["model", "metrics"], ["model"], "metrics")],
        "no-ledger",
        "metrics",
    ),
    "ledger that is private": (
        [mechanism("records", ["model", "private_log"], ["model"], "private_log")],
        "no-ledger",
        "private_log",
    ),
    "mechanism tag by hand": (
        [node("records", ["model", "release_log"], tags=["dp_mechanism", "releases.model"])],
        "tag",
        "model, release_log",
    ),
    "releases tag by hand": ([node("corpus", "layer_plan", tags="releases.layer_plan")], "tag", "layer_plan"),
    "declaration tag by hand": ([node("records", "constants", tags="declaration")], "tag", "constants"),
    "forged release log": ([node("corpus", "release_log")], "forged-ledger", "release_log"),
    "no label": ([node("corpus", "unlabelled")], "unlabelled", "unlabelled"),
    "no label on an input": ([node("unlabelled", "owners")], "unlabelled", "unlabelled"),
    "unknown label": ([node("corpus", "badly_labelled")], "bad-label", "badly_labelled"),
    "private artifact": ([node("records", "private_logged")], "mlflow", "private_logged"),
    "private in a wrapped MLflow data set": (
        [node("records", "private_wrapped")],
        "mlflow",
        "private_wrapped",
    ),
    "private preview": ([node("records", "private_shown")], "preview", "private_shown"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_leak_is_refused(case: str) -> None:
    nodes, rule, dataset = PLANTED[case]
    leaks = check_pipeline(Pipeline(nodes), resolver(CATALOG))
    assert (rule, dataset) in {(leak.rule, leak.dataset) for leak in leaks}
    if rule != "tag":
        assert {leak.dataset for leak in leaks} == {dataset}


def test_honest_pipeline_passes() -> None:
    nodes = [
        node("params:selection", "corpus", "obtain"),
        node("corpus", "layer_plan", "select"),
        node(["layer_plan", "parameters"], "records", "read"),
        node("records", "owners", "assign"),
        COUNT,
        mechanism_node(
            one, ["records", "owners"], ["model", "release_log", "tmp"], "train", releases=["model", "tmp"]
        ),
        node(["model", "tmp"], "metrics", "summarise"),
        node("metrics", "accuracy_figure", "plot"),
    ]
    assert check_pipeline(Pipeline(nodes), resolver(CATALOG)) == []


def test_a_part_of_a_pipeline_is_checked_by_the_declared_labels() -> None:
    nodes = [node("records", "owners", "assign"), node("owners", "metrics", "leak")]
    leaks = check_pipeline(Pipeline(nodes).only_nodes("leak"), resolver(CATALOG))
    assert [(leak.node, leak.dataset, leak.rule) for leak in leaks] == [("leak", "metrics", "leak")]
    assert str(leaks[0]) == "[leak] leak -> metrics: labelled released, but made from owners (private)"


def test_namespace_keeps_the_exemption() -> None:
    config = {
        "big.records": entry("private", "big_records"),
        "big.model": entry("released", "big_model"),
        "big.other": entry("released", "big_other"),
        "big.release_log": entry("released", "big_log", role="mechanism_log"),
    }
    good = Pipeline([TRAIN], namespace="big", inputs={"records": "big.records"})
    assert check_pipeline(good, resolver(config)) == []
    other = mechanism_node(one, "records", ["other", "model", "release_log"], "train", releases=["model"])
    bad = Pipeline([other], namespace="big", inputs={"records": "big.records"})
    assert {(leak.rule, leak.dataset) for leak in check_pipeline(bad, resolver(config))} == {
        ("leak", "big.other")
    }


def test_the_mark_does_not_stick_to_the_function() -> None:
    mechanism_node(one, "records", ["model", "release_log"], "train", releases=["model"])
    plain = node("records", ["model", "release_log"])
    assert exemption(plain) is None
    rules = {leak.rule for leak in check_pipeline(Pipeline([plain]), resolver(CATALOG))}
    assert rules == {"leak", "forged-ledger"}


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: mechanism("records", ["model", "release_log"], []), "names no release"),
        (lambda: mechanism("records", ["model", "release_log"], ["modle"]), "no output modle"),
        (lambda: mechanism("records", ["model"], ["model"]), "no output release_log"),
        (lambda: declaration_node(one, "records", "n", "leak", declares=[], reason="n"), "declares nothing"),
        (lambda: declaration_node(one, "records", "n", "leak", declares=["n"], reason=" "), "no reason"),
        (lambda: declaration_node(one, "records", "n", "leak", declares=["m"], reason="n"), "no output m"),
    ],
)
def test_helpers_refuse_what_is_incomplete(build: Callable[[], Node], told: str) -> None:
    with pytest.raises(PrivacyFlowError, match=told):
        build()


def test_declarations_are_listed_with_their_reasons() -> None:
    assert [(item.dataset, item.reason) for item in declarations(Pipeline([COUNT, TRAIN]))] == [
        ("constants", "n is public.")
    ]


def test_marked_nodes_carry_tags_and_run_their_function() -> None:
    tagged = declaration_node(one, "a", "b", "x", declares=["b"], reason="b is public.", tags="private")
    assert tagged.tags == {"private", "declaration", "declares.b"}
    assert TRAIN.tags == {"dp_mechanism", "releases.model", "releases.release_log"}
    assert COUNT.tags == {"declaration", "declares.constants"}
    assert COUNT.run({"records": []}) == {"constants": 1}


def test_catalog_rules_hold_without_a_pipeline() -> None:
    config = {
        "_anchor": {"privacy": "public"},
        "records": entry("private", "records"),
        "alias": {**entry("public", "records")},
        "reports": {"type": "x.Directory", "filepath": "data", "metadata": {"privacy": "released"}},
        "unlabelled": entry(None, "elsewhere"),
        "private_shown": entry("private", "shown", **{"kedro-viz": {}}),
    }
    config.pop("_anchor")
    found = {(leak.rule, leak.dataset) for leak in check_catalog(config)}
    assert found == {
        ("shared-place", "records"),
        ("shared-place", "private_shown"),
        ("unlabelled", "unlabelled"),
        ("preview", "private_shown"),
    }


def test_no_environment_lowers_a_label() -> None:
    base = {"owners": entry("private", "owners"), "{name}_part": entry("private", "{name}")}
    lower = {**base, "owners": entry("public", "owners"), "owner_part": entry("released", "part")}
    assert {leak.rule for leak in check_catalog(lower, base)} == {"relabel"}
    pipeline = Pipeline([node("corpus", "owner_part", "write")])
    resolved = check_pipeline(pipeline, resolver({**CATALOG, **lower}), resolver({**CATALOG, **base}))
    assert [(leak.rule, leak.dataset) for leak in resolved] == [("relabel", "owner_part")]
    higher = {"owners": entry("private", "owners")}
    assert check_catalog(higher, {"owners": entry("public", "owners")}) == []


def test_entry_keeps_no_credentials() -> None:
    parsed = Entry.parse("x", {**entry("private", "x"), "credentials": {"key": "hidden"}})
    assert parsed.label is Label.PRIVATE
    assert "hidden" not in repr(parsed)
