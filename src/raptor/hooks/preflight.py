"""What can be refused before the first node: inputs that are not there, and columns that the source does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.framework.project import pipelines
from kedro.pipeline import Pipeline

from raptor.datasets.atomic import AtomicDataset, shown
from raptor.dp.config import TrainingConfig
from raptor.errors import DataError, ParameterError
from raptor.pipelines.selection.config import SelectionConfig

READS_THE_SOURCE = "read_records"
LAYER_PLAN = "layer_plan"


class PreflightHook:
    """Refuses early, from parameters, headers and the names of files: no record is read and nothing is logged."""

    def __init__(self) -> None:
        self._ingestion: Any = None
        self._privacy: Any = None
        self._catalog: Any = None
        self._protected: int | None = None

    @hook_impl
    def after_context_created(self, context: Any) -> None:
        self._ingestion = context.params.get("ingestion")
        self._privacy = context.params.get("privacy")
        selection, training = context.params.get("selection"), context.params.get("training")
        if isinstance(selection, SelectionConfig) and isinstance(training, TrainingConfig):
            training.require_layers(selection.protected_layers)
            self._protected = selection.protected_layers

    @hook_impl
    def before_pipeline_run(self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: Any) -> None:
        self._catalog = catalog
        # With this option it is not known yet which nodes will run.
        if run_params.get("only_missing_outputs"):
            return
        for name in sorted(pipeline.inputs()):
            require_made(name, catalog)
        if LAYER_PLAN in pipeline.inputs() and self._protected is not None:
            require_chosen(catalog.load(LAYER_PLAN)["layers"], self._protected)
        if self._ingestion is not None and any(node.name == READS_THE_SOURCE for node in pipeline.nodes):
            _check_unit(self._privacy, self._ingestion)
            _check_source(self._ingestion)

    @hook_impl
    def before_dataset_loaded(self, dataset_name: str) -> None:
        if self._catalog is not None:
            require_made(dataset_name, self._catalog)


def require_chosen(layers: Sequence[int], protected: int) -> None:
    """Refuse a layer plan of an earlier selection that protected another number of layers.

    Raises:
        ParameterError: names both.
    """
    if len(layers) != protected:
        raise ParameterError(
            f"selection.protected_layers is {protected}, but the selection stage that was run protects the layers "
            f"{list(layers)}. Run `kedro run --pipelines selection` and the stages after it with the present "
            "parameters, or give this stage those of the selection."
        )


def require_made(name: str, catalog: Any) -> None:
    """Refuse a data set that has to be on disk and is not.

    Raises:
        DataError: names the stage that makes it.
    """
    if name.startswith("params:") or name == "parameters":
        return
    dataset = catalog.get(name)
    if isinstance(dataset, AtomicDataset) and not dataset.is_optional and not dataset.filepath.exists():
        raise DataError(missing(name, dataset))


def missing(name: str, dataset: AtomicDataset[Any, Any]) -> str:
    """What is missing, and the command that makes it."""
    stage = stage_of(name)
    one = f"Run `kedro run --pipelines {stage}`, which makes it, or `kedro run` for all." if stage else ""
    return f"{shown(dataset.filepath)} ({name}) is not there yet. {one or 'Run `kedro run`.'}"


def stage_of(name: str) -> str | None:
    """The pipeline that makes a data set; None when there is none."""
    # `--pipelines` loads the pipelines that it names alone.
    pipelines.set_requested(None)
    for stage, pipeline in pipelines.items():
        if stage != "__default__" and pipeline is not None and name in pipeline.all_outputs():
            return str(stage)
    return None


def _check_unit(privacy: Any, config: Any) -> None:
    """Refuse users as the unit of privacy where no column says who they are.

    Raises:
        ParameterError: names both parameters.
    """
    if privacy is not None and privacy.unit == "user" and config.user is None:
        raise ParameterError(
            "privacy.unit is user, but ingestion.user names no column that says whose record it is. Name it, or set "
            "privacy.unit=record. Nothing was run."
        )


def _check_source(config: Any) -> None:
    from raptor.text.sources import check_source

    check_source(config.source, config.columns, config.encoding)
