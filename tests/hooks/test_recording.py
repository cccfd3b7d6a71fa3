"""What may be recorded, and under which name; no store is opened here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kedro.pipeline import Pipeline

from raptor.errors import ParameterError, PrivacyFlowError
from raptor.hooks.config import TrackingConfig
from raptor.hooks.mlflow_run import flatten, sanitise
from raptor.hooks.tracking import TrackingHook, _record, command_line


@pytest.mark.parametrize("label", ["private", None, "secret"])
def test_what_is_not_public_or_released_is_refused(label: str | None) -> None:
    config = {"type": "JSONDataset", "metadata": {"privacy": label, "mlflow": {"kind": "metrics"}}}
    with pytest.raises(PrivacyFlowError, match="owners is not labelled public or released"):
        _record("owners", config, {})


@pytest.mark.parametrize("spec", [{"kind": "figure"}, {"artifact_dir": "x"}, {"kind": []}])
def test_unknown_kind_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"metadata\.mlflow\.kind"):
        _record("x", {"metadata": {"privacy": "public", "mlflow": spec}}, {})


def test_nothing_is_recorded_between_the_outputs_of_a_node() -> None:
    """The hook only notes what was saved; a store that fails cannot part a model from its release log."""

    class Resolver:
        def resolve_pattern(self, _: str) -> dict[str, Any]:
            return {"filepath": "x", "metadata": {"privacy": "public", "mlflow": {"kind": "artifact"}}}

    class Catalog:
        config_resolver = Resolver()

    hook = TrackingHook()
    hook._config = TrackingConfig(uri="http://127.0.0.1:9")
    hook.before_pipeline_run({"run_id": "1"}, Pipeline([]), Catalog())
    hook.after_dataset_saved("model", None)
    assert [record.dataset for record in hook._pending] == ["model"]
    assert hook._run is None


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("eps(delta=1e-5)", "eps_delta_1e-5_"),
        ("expert[3].load", "expert_3_.load"),
        ("privacy/eps", "privacy/eps"),
        ("a//b", "a/_/b"),
        ("../up", "_/up"),
        ("größe", "gr__e"),
        ("", "_"),
    ],
)
def test_names_are_sanitised(name: str, clean: str) -> None:
    assert sanitise(name) == clean


def test_flatten_and_command_line() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert dict(flatten({})) == {}
    assert str(Path.home()) not in command_line().split()[0]
