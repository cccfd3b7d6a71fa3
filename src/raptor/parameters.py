"""Typed parameters: every key is known and every value valid before anything runs.

Kedro checks the parameters that some node of the run annotates. Here the whole tree is checked, since a
misspelt key of another stage would otherwise change nothing and say nothing.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import types
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Union, get_args, get_origin

from kedro.framework.context import KedroContext
from pydantic import BaseModel, ValidationError

from raptor.errors import ParameterError

MODELS: Mapping[str, str] = {
    "base_model": "raptor.pipelines.base_model.config:BaseModelConfig",
    "selection": "raptor.pipelines.selection.config:SelectionConfig",
    "ingestion": "raptor.pipelines.ingestion.config:IngestionConfig",
    "privacy": "raptor.pipelines.training.config:PrivacyConfig",
    "training": "raptor.pipelines.training.config:TrainingConfig",
    "launch": "raptor.launch.config:LaunchConfig",
    "accounting": "raptor.pipelines.accounting.config:AccountingConfig",
    "evaluation": "raptor.pipelines.evaluation.config:EvaluationConfig",
    "benchmark": "raptor.pipelines.benchmark.config:BenchmarkConfig",
    "audit": "raptor.pipelines.audit.config:AuditConfig",
    "tracking": "raptor.hooks.config:TrackingConfig",
}
"""Top-level parameter key to the model that describes it, imported when the parameters are read."""


class RaptorContext(KedroContext):
    """Kedro's context with all parameters validated, whichever pipelines run."""

    parameter_models: ClassVar[Mapping[str, str]] = MODELS

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """Top-level key to its validated model.

        Raises:
            ParameterError: one line for each parameter that is unknown, missing or invalid.
        """
        return validate(self.config_loader["parameters"], load_models(self.parameter_models))


def load_models(models: Mapping[str, str]) -> dict[str, type[BaseModel]]:
    """Import the models: key to ``module:name`` becomes key to class."""
    loaded = {}
    for key, reference in models.items():
        module, _, name = reference.partition(":")
        loaded[key] = getattr(importlib.import_module(module), name)
    return loaded


def validate(raw: Mapping[str, Any], models: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Validate the whole parameter tree; a key that is absent gets its model's defaults.

    Args:
        raw: parameters from the configuration files and the command line, merged.
        models: top-level key to model.

    Raises:
        ParameterError: with one line for each wrong parameter.
    """
    known = sorted(name for key, model in models.items() for name in _names(key, model))
    problems = [_unknown(name, known) for key in raw if key not in models for name in _leaves(key, raw[key])]
    valid = {}
    for key, model in models.items():
        try:
            valid[key] = model.model_validate(raw.get(key, {}))
        except ValidationError as error:
            problems += _problems(key, model, error, known)
    if problems:
        heading = "A parameter is wrong" if len(problems) == 1 else f"{len(problems)} parameters are wrong"
        raise ParameterError("\n  ".join([f"{heading}, nothing was run:", *problems]))
    return valid


def _problems(key: str, model: type[BaseModel], error: ValidationError, known: list[str]) -> list[str]:
    """One line for each field, though a union reports each of its members."""
    lines: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for item in error.errors(include_url=False):
        name = ".".join([key, *_field_path(model, item["loc"])])
        if item["type"] == "extra_forbidden":
            lines[name] = [_unknown(name, known)]
        elif item["type"] == "missing":
            lines[name] = [f"{name} is missing. Set it in conf or with --params {name}=VALUE"]
        else:
            message = item["msg"].removeprefix("Value error, ").removesuffix(".")
            if name not in values:
                # A rule over several fields names them itself; the whole section would say less.
                shown = "" if isinstance(item["input"], Mapping | BaseModel) else f" = {item['input']!r:.80}"
                values[name] = f"{name}{shown}: "
            lines.setdefault(name, []).append(message[:1].lower() + message[1:])
    return [values.get(name, "") + ", or ".join(dict.fromkeys(parts)) for name, parts in lines.items()]


def _field_path(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The part of a pydantic location that a user can type: without the members of unions."""
    path: list[str] = []
    current: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            path.append(str(part))
        elif current is None:
            break
        else:
            field = current.model_fields.get(part)
            path.append(part)
            current = None if field is None else next(_models_in(field.annotation), None)
    return path


def _unknown(name: str, known: list[str]) -> str:
    same_ending = [candidate for candidate in known if candidate.endswith(f".{name}")]
    close = same_ending or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{name} is unknown" + (f"; did you mean {close[0]}?" if close else "")


def _names(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    """All names of a model, dotted, leaves and sections."""
    for name, field in model.model_fields.items():
        yield f"{prefix}.{name}"
        for nested in _models_in(field.annotation):
            yield from _names(f"{prefix}.{name}", nested)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _models_in(member)


def _leaves(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(f"{prefix}.{key}", item)
    else:
        yield prefix
