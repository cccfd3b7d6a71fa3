"""Where the information-flow check runs: before each run, and over a whole project on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kedro.config import MissingConfigException
from kedro.framework.hooks import hook_impl
from kedro.framework.project import pipelines, settings
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline

from raptor.errors import ParameterError, PrivacyFlowError
from raptor.hooks.flow import Leak, check_catalog, check_pipeline


@dataclass(frozen=True)
class FlowReport:
    """Outcome of the check in one environment."""

    env: str
    pipelines: int
    datasets: int
    leaks: tuple[Leak, ...]


class FlowHook:
    """Refuses a run that would publish something that depends on private data."""

    def __init__(self) -> None:
        self._conf_source = ""
        self._config: Mapping[str, Any] = {}

    @hook_impl
    def after_context_created(self, context: Any) -> None:
        self._conf_source = str(context.config_loader.conf_source)

    @hook_impl
    def after_catalog_created(self, conf_catalog: Mapping[str, Any]) -> None:
        self._config = conf_catalog

    # First of all hooks: one that opens a tracking run must not come before a refusal.
    @hook_impl(tryfirst=True)
    def before_pipeline_run(self, pipeline: Pipeline, catalog: Any) -> None:
        base = catalog_config(self._conf_source, base_env())
        leaks = check_catalog(self._config, base)
        leaks += check_pipeline(
            pipeline, catalog.config_resolver.resolve_pattern, _catalog(base).config_resolver.resolve_pattern
        )
        if leaks:
            raise PrivacyFlowError(refusal(leaks))


def refusal(leaks: list[Leak]) -> str:
    """The message of a refused run: each leak once."""
    lines = dict.fromkeys(str(leak) for leak in leaks)
    return "\n  ".join(["The run was refused and nothing was run, as private data could leave it:", *lines])


def base_env() -> str:
    """Name of the environment that all others change."""
    return str(settings.CONFIG_LOADER_ARGS.get("base_env", "base"))


def environments(conf_source: Path) -> list[str]:
    """Every environment of the project, base first."""
    names = sorted(path.name for path in conf_source.iterdir() if path.is_dir() and path.name[0] not in "._")
    return sorted(names, key=lambda name: name != base_env())


def catalog_config(conf_source: str | Path, env: str) -> dict[str, Any]:
    """The catalog's configuration in an environment; empty when there is none."""
    loader = settings.CONFIG_LOADER_CLASS(str(conf_source), env=env, **settings.CONFIG_LOADER_ARGS)
    try:
        config: dict[str, Any] = loader["catalog"]
    except MissingConfigException:
        return {}
    return config


def check_project(conf_source: Path, envs: list[str] | None = None) -> list[FlowReport]:
    """Check every registered pipeline and the whole catalog, in each environment.

    Args:
        conf_source: the project's ``conf`` folder. The project must be bootstrapped.
        envs: environments, all by default.

    Raises:
        ParameterError: an environment does not exist.
    """
    known = environments(conf_source)
    for env in envs or []:
        if env not in known:
            raise ParameterError(f"There is no environment {env}; {conf_source.name} has {', '.join(known)}.")
    base = catalog_config(conf_source, base_env())
    base_resolve = _catalog(base).config_resolver.resolve_pattern
    registered = {name: pipeline for name, pipeline in pipelines.items() if pipeline is not None}
    reports = []
    for env in envs or known:
        config = catalog_config(conf_source, env)
        resolve = _catalog(config).config_resolver.resolve_pattern
        leaks = check_catalog(config, base)
        for pipeline in registered.values():
            leaks += check_pipeline(pipeline, resolve, base_resolve)
        names = set(config).union(*(pipeline.datasets() for pipeline in registered.values()))
        kept = [name for name in names if not name.startswith(("_", "params:")) and name != "parameters"]
        reports.append(FlowReport(env, len(registered), len(kept), tuple(dict.fromkeys(leaks))))
    return reports


def _catalog(config: Mapping[str, Any]) -> DataCatalog:
    return DataCatalog.from_config(dict(config))
