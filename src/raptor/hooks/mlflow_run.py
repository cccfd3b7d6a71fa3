"""One MLflow run, opened when there is something to record."""

from __future__ import annotations

import atexit
import json
import logging
import math
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.hooks.config import TrackingConfig

_LONGEST_PARAMETER = 6000
_PARAMETERS_AT_ONCE = 100
# So many of its parameters name a child.
_NAMING = 4


class MlflowRun:
    """A run in the project's store, addressed by its id.

    MLflow's "active run" is not used: it is global, bound to a thread, and closed as FINISHED when the
    process ends. MLflow is imported here, on first use, as that takes longer than a small stage.
    """

    def __init__(
        self, config: TrackingConfig, root: Path, name: str, started: int, tags: Mapping[str, str]
    ) -> None:
        """Open the run.

        Args:
            root: the project's folder; database and artifacts are relative to it.
            started: milliseconds since the epoch.
        """
        from mlflow import MlflowClient

        # The first use of a database prints each of its migrations.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store").setLevel(logging.WARNING)
        self._client = MlflowClient(
            tracking_uri=config.uri or f"sqlite:///{(root / config.database).as_posix()}"
        )
        place = None if config.uri else (root / config.artifacts).as_uri()
        run = self._client.create_run(
            self._experiment(config.experiment, place), start_time=started, run_name=name, tags=dict(tags)
        )
        self.run_id: str = run.info.run_id
        self._open = True
        atexit.register(self._at_exit)

    def _experiment(self, name: str, place: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, artifact_location=place))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Flattened parameters, one by one for comparison and as one file without a limit of length."""
        from mlflow.entities import Param

        flat = dict(flatten(parameters))
        items = [Param(sanitise(name), _short(value)) for name, value in sorted(flat.items())]
        for start in range(0, len(items), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self.run_id, params=items[start : start + _PARAMETERS_AT_ONCE])
        self._client.log_text(self.run_id, json.dumps(flat, indent=2, default=str), "parameters.json")

    def log_metrics(self, data: Any, prefix: str, keys: Collection[str] = ()) -> None:
        """The finite numbers of nested mappings; one that is not finite becomes a tag.

        MLflow stores infinity as the largest float and NaN as 0, which would be read as results.

        Args:
            data: nested mappings.
            prefix: comes before each name, with a slash.
            keys: dotted names to record, all numbers by default; of these, what is no number becomes a tag.
        """
        for name, value in flatten(data):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in keys if keys else not number:
                continue
            key = sanitise(f"{prefix}/{name}" if prefix else name)
            if number and math.isfinite(value):
                self._client.log_metric(self.run_id, key, float(value))
            else:
                self._client.set_tag(self.run_id, key, str(value))

    def log_children(self, rows: Sequence[Mapping[str, Any]], keys: Collection[str]) -> None:
        """A finished run below this one for each row: `keys` are its metrics, all else are its parameters."""
        from mlflow.entities import Metric, Param
        from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

        experiment = self._client.get_run(self.run_id).info.experiment_id
        for row in rows:
            flat = dict(flatten(row))
            given = {name: value for name, value in flat.items() if name not in keys}
            now = int(time.time() * 1000)
            child = self._client.create_run(
                experiment,
                run_name=" ".join(str(value) for value in list(given.values())[:_NAMING]),
                tags={MLFLOW_PARENT_RUN_ID: self.run_id},
            )
            metrics = [
                Metric(sanitise(name), float(flat[name]), now, 0)
                for name in keys
                if isinstance(flat.get(name), int | float) and math.isfinite(flat[name])
            ]
            params = [Param(sanitise(name), _short(value)) for name, value in given.items()]
            self._client.log_batch(child.info.run_id, metrics=metrics, params=params)
            self._client.set_terminated(child.info.run_id, "FINISHED")

    def log_artifact(self, place: Path, folder: str | None) -> None:
        """A file or a folder, as it lies on the disk."""
        self._client.log_artifact(self.run_id, str(place), folder)

    def close(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; a second call does nothing."""
        if self._open:
            self._open = False
            atexit.unregister(self._at_exit)
            self._client.set_terminated(self.run_id, status)

    def _at_exit(self) -> None:
        # Reached when the run was interrupted: Kedro calls no hook then.
        self.close("KILLED")


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and leaves of nested mappings and models; lists are leaves."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping) and (value or not prefix):
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def sanitise(name: str) -> str:
    """A name that MLflow accepts for parameters and metrics."""
    cleaned = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
    # MLflow refuses names that are not a plain relative path, such as "a//b" or "../a".
    parts = [part.lstrip(".") or "_" for part in cleaned.split("/")]
    return "/".join(parts)[:250]


def _short(value: Any) -> str:
    text = str(value)
    if len(text) <= _LONGEST_PARAMETER:
        return text
    note = " ... (whole value: parameters.json)"
    return text[: _LONGEST_PARAMETER - len(note)] + note
