"""MLflow tracking: one run for each ``kedro run``, with nothing labelled private in it.

A catalog entry asks to be recorded with ``metadata.mlflow``::

    mlflow: {kind: metrics | artifact | [metrics, artifact], artifact_dir: audit, prefix: evaluation, keys: [...]}
    mlflow: {kind: children, keys: [...]}

``artifact_dir`` is the folder among the run's artifacts, ``prefix`` comes before the names of metrics (default:
the data set's name), ``keys`` names those to record (default: every number). With ``children`` each row of the data
becomes a run below this one; ``keys`` are its metrics, all else its parameters. Keys called ``path`` or ``filepath``
would not do: Kedro rewrites them. What is recorded must be labelled public or released. No text of an exception is
recorded.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline

from raptor import __version__
from raptor.errors import ParameterError, PrivacyFlowError
from raptor.hooks.config import TrackingConfig
from raptor.hooks.mlflow_run import MlflowRun

_LOGGED_LABELS = ("public", "released")
_KINDS = ("metrics", "artifact", "children")


@dataclass(frozen=True)
class Record:
    """A saved data set that is to be recorded."""

    dataset: str
    kinds: tuple[str, ...]
    folder: str | None
    prefix: str
    keys: tuple[str, ...]
    place: Path
    data: Any


@dataclass(frozen=True)
class RunFacts:
    """What is known when the run starts."""

    config: TrackingConfig
    root: Path
    name: str
    started: int
    tags: dict[str, str]
    parameters: dict[str, Any]


class TrackingHook:
    """Opens the MLflow run at the first thing to record, or at the end; never for a run without nodes.

    What is saved is recorded before the next node starts and not at once, since an error of the tracking
    store must not come between the outputs of one node: a model would be saved without its release log.
    """

    def __init__(self) -> None:
        self._config: TrackingConfig | None = None
        self._root = Path()
        self._facts: RunFacts | None = None
        self._run: MlflowRun | None = None
        self._pending: list[Record] = []
        self._catalog: Any = None
        self._node_started = False
        self._lock = threading.Lock()

    @hook_impl
    def after_context_created(self, context: Any) -> None:
        params = context.params
        config = params.get("tracking", {})
        self._config = config if isinstance(config, TrackingConfig) else TrackingConfig.model_validate(config)
        self._root = Path(context.project_path)

    @hook_impl
    def before_pipeline_run(self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: Any) -> None:
        self._facts, self._run, self._pending, self._node_started = None, None, [], False
        self._catalog = catalog
        if self._config is None or not self._config.enabled:
            return
        if "ParallelRunner" in str(run_params.get("runner")):
            raise ParameterError(
                "ParallelRunner saves data in other processes, where they are not recorded. Use SequentialRunner "
                "or ThreadRunner, or turn tracking off with --params tracking.enabled=false."
            )
        names = sorted(run_params.get("pipeline_names") or []) or ["__default__"]
        self._facts = RunFacts(
            config=self._config,
            root=self._root,
            name="+".join(names),
            started=int(time.time() * 1000),
            tags=_tags(self._root, run_params),
            parameters=_parameters(pipeline, catalog),
        )

    @hook_impl
    def before_node_run(self) -> None:
        self._node_started = True
        self._flush()

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        if self._facts is None:
            return
        record = _record(dataset_name, self._catalog.config_resolver.resolve_pattern(dataset_name), data)
        if record is not None:
            with self._lock:
                self._pending.append(record)

    @hook_impl
    def after_pipeline_run(self) -> None:
        self._end("FINISHED")

    @hook_impl
    def on_pipeline_error(self) -> None:
        self._end("FAILED")

    def _end(self, status: str) -> None:
        if self._facts is not None and self._node_started:
            self._flush()
            self._opened().close(status)
        self._facts, self._run, self._catalog = None, None, None

    def _flush(self) -> None:
        with self._lock:
            records, self._pending = self._pending, []
            for record in records:
                run = self._opened()
                if "metrics" in record.kinds:
                    run.log_metrics(record.data, record.prefix, record.keys)
                if "children" in record.kinds:
                    run.log_children(record.data, record.keys)
                if "artifact" in record.kinds:
                    run.log_artifact(record.place, record.folder)

    def _opened(self) -> MlflowRun:
        if self._run is None:
            facts = self._facts
            assert facts is not None  # noqa: S101 - callers check it
            self._run = MlflowRun(facts.config, facts.root, facts.name, facts.started, facts.tags)
            self._run.log_parameters(facts.parameters)
        return self._run


def _record(name: str, config: Mapping[str, Any], data: Any) -> Record | None:
    """What to record of a data set, None when its entry does not ask for it.

    Raises:
        PrivacyFlowError: the entry is not labelled public or released.
        ParameterError: the entry's ``mlflow`` section cannot be understood.
    """
    metadata = config.get("metadata") or {}
    spec = metadata.get("mlflow")
    if not spec:
        return None
    if metadata.get("privacy") not in _LOGGED_LABELS:
        raise PrivacyFlowError(f"{name} is not labelled public or released and must not be logged to MLflow.")
    kinds = spec.get("kind")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds or ())
    if not kinds or not set(kinds) <= set(_KINDS):
        raise ParameterError(
            f"Catalog entry {name}: metadata.mlflow.kind is {spec.get('kind')!r}; use {_KINDS}."
        )
    place = Path(str(config.get("filepath") or config.get("path") or ""))
    return Record(
        dataset=name,
        kinds=kinds,
        folder=spec.get("artifact_dir"),
        prefix=spec.get("prefix", name),
        keys=tuple(spec.get("keys") or ()),
        place=place,
        data=data,
    )


def _parameters(pipeline: Pipeline, catalog: Any) -> dict[str, Any]:
    """Parameters that the pipeline reads: name to value, typed or plain."""
    return {
        name.removeprefix("params:"): catalog[name].load()
        for name in sorted(pipeline.inputs())
        if name.startswith("params:")
    }


def _tags(root: Path, run_params: Mapping[str, Any]) -> dict[str, str]:
    commit, dirty = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    tags = {
        "kedro.command": command_line(),
        "kedro.env": str(run_params.get("env") or "local"),
        "kedro.run_id": str(run_params.get("run_id")),
        "git.commit": commit or "none",
        "git.dirty": "unknown" if dirty is None else str(bool(dirty)).lower(),
        "raptor.version": __version__,
        "mlflow.source.name": "raptor",
        "mlflow.source.type": "LOCAL",
    }
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


def command_line() -> str:
    """The command as it was typed, without the folders of the interpreter and the script."""
    words = list(sys.orig_argv)
    if len(words) > 1 and not words[1].startswith("-"):
        words = words[1:]
    return shlex.join([Path(words[0]).name, *words[1:]]) if words else ""


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command; None when this is not a repository or git is absent."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
