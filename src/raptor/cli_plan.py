"""`raptor plan`: what a run would cost, before any record is touched."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from raptor.dp.config import TrainingConfig
    from raptor.forecast import Alternative, Costs, Speed

BASE_MODEL = Path("data/06_models/base_model")


def _changed(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    from raptor.cli_run import split_parameters

    return split_parameters(ctx, option, value)


@click.command()
@click.option("--env", metavar="NAME", help="Environment, as of `kedro run --env`.")
@click.option(
    "--no-measure", is_flag=True, help="Do not run the model on made-up records: no time and memory."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="From configurations alone, before the base model is here: also the numbers of the model in each role.",
)
@click.option(
    "--tflops",
    type=click.FloatRange(0, min_open=True),
    help="With --dry-run: speed of another machine's accelerator in products in float32.",
)
@click.option("--params", metavar="NAME=VALUE,...", callback=_changed, help="As of `kedro run --params`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    env: str | None,
    no_measure: bool,
    dry_run: bool,
    tflops: float | None,
    params: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Print noise multipliers, epsilon, time and memory of a run, and how three other choices change them.

    From parameters, the declared number of records and the public base model alone.
    """
    if tflops is not None and not dry_run:
        raise click.UsageError("--tflops goes with --dry-run; without it steps are measured on this machine.")
    # First, as the project's settings keep the model library from drawing bars of its own.
    parameters, project = project_parameters(env, params)
    if dry_run:
        from raptor.cli_dry_run import described

        click.echo(described(parameters, None if tflops is None else 1e12 * tflops, as_json))
        return
    from raptor.forecast import Forecast, measure, most_records
    from raptor.moe.classifier import load_encoder
    from raptor.moe.families import sparse_layers
    from raptor.progress import on_stderr

    base_model = _base_model(parameters, project)
    sparse, selection = sparse_layers(load_encoder(base_model)), parameters["selection"]
    selection.require_enough([layer.index for layer in sparse])
    layers = [layer.index for layer in sparse[-selection.protected_layers :]]
    forecast = Forecast(parameters, sparse[-1].num_experts, layers)
    training = parameters["training"]
    with on_stderr():
        costs = forecast.costs()
        others = forecast.alternatives(costs)
        speed = None
        if not no_measure:
            speed = measure(
                base_model,
                training,
                parameters["ingestion"].max_length,
                layers,
                int(forecast.privacy.population) * most_records(forecast.privacy),
                parameters["ingestion"].lengths is not None,
            )
    if as_json:
        shown = {
            **dataclasses.asdict(costs),
            "delta": forecast.privacy.delta,
            "seconds": _duration(costs, speed),
            "memory": None if speed is None else speed.memory,
            "alternatives": [
                {**dataclasses.asdict(other), "seconds": _duration(other.costs, speed)} for other in others
            ],
        }
        click.echo(json.dumps(shown, allow_nan=False))
        return
    click.echo(_words(parameters, costs, speed, others))


def project_parameters(env: str | None, changed: dict[str, Any] | None = None) -> tuple[dict[str, Any], Path]:
    """All parameters of an environment with some changed for this time, validated, and the project's folder."""
    from kedro.framework.project import settings

    from raptor.cli_run import check_env
    from raptor.parameters import MODELS, load_models, validate
    from raptor.project import bootstrap

    conf_source = bootstrap()
    check_env(env, conf_source)
    given: dict[str, Any] = {"runtime_params": changed or {}} | ({} if env is None else {"env": env})
    loader = settings.CONFIG_LOADER_CLASS(str(conf_source), **given, **settings.CONFIG_LOADER_ARGS)
    return validate(loader["parameters"], load_models(MODELS)), conf_source.parent


def _base_model(parameters: dict[str, Any], project: Path) -> Path:
    """Where the base model is; nothing is downloaded.

    Raises:
        DataError: a model of the hub is not here yet.
    """
    from raptor.errors import DataError
    from raptor.pipelines.base_model.config import EMBEDDED
    from raptor.pipelines.base_model.source import locate

    source = parameters["base_model"].source
    if source == EMBEDDED or Path(source).expanduser().is_dir():
        return locate(parameters["base_model"])
    if (project / BASE_MODEL / "config.json").is_file():
        return project / BASE_MODEL
    raise DataError(
        f"The base model {source} is not here yet. `kedro run --pipelines base_model` with this environment fetches it."
    )


def _duration(costs: Costs, speed: Speed | None) -> float | None:
    if speed is None:
        return None
    releases = sum(stream.steps for stream in costs.streams)
    return costs.record_steps * speed.seconds_a_record + releases * speed.seconds_a_release


def _batch_sizes(training: TrainingConfig) -> list[int]:
    """Different expected batch sizes of the streams that have steps."""
    return list(
        dict.fromkeys(training.batch(stream) for stream in training.streams if training.steps(stream))
    )


def stream_lines(parameters: dict[str, Any], costs: Costs) -> list[str]:
    """Sampling, and noise and epsilon of each stream."""
    privacy = parameters["privacy"]
    sizes = _batch_sizes(parameters["training"])
    lines = [
        f"n = {privacy.population:,} {privacy.unit}s (declared), B = {' and '.join(f'{size:,}' for size in sizes)}, so "
        f"each step draws a {privacy.unit} with chance "
        f"{' and '.join(f'{size / privacy.population:.3g}' for size in sizes)}.",
        "",
        "  stream       steps   noise multiplier   epsilon if it were alone",
    ]
    lines += [
        f"  {stream.name:<10} {stream.steps:>7}   {stream.noise_multiplier:>16.4g}   {stream.epsilon:>8.4g}"
        for stream in costs.streams
    ]
    lines += [
        f"  together: epsilon {costs.epsilon:.4g} of {privacy.epsilon:g} at delta {privacy.delta:g}. One ledger counts "
        "all streams; their epsilons do not add up.",
    ]
    return lines


def _words(parameters: dict[str, Any], costs: Costs, speed: Speed | None, others: list[Alternative]) -> str:
    privacy, sizes = parameters["privacy"], _batch_sizes(parameters["training"])
    lines = [*stream_lines(parameters, costs), ""]
    if speed is not None:
        lines.append(
            f"Training takes about {duration(_duration(costs, speed))} on this machine's {speed.device}, and "
            f"{speed.memory / 2**30:.2g} GiB of memory (measured on made-up records of full length; reading, baselines "
            "and report come on top)."
        )
    if max(sizes, default=0) > 0.5 * privacy.population:
        lines.append(
            "Most records are in every sample: sampling hardly protects, a smaller batch costs little."
        )
    lines.append("")
    lines.append("Other choices, with the noise on the mean of all steps (smaller is better):")
    rows = [("as it is", costs)]
    rows += [(f"{other.parameter}={other.value:g}", other.costs) for other in others]
    for what, found in rows:
        took = "" if speed is None else f", {duration(_duration(found, speed))}"
        lines.append(
            f"  {what:<28} noise {found.noise / costs.noise:>5.2f} x, noise multiplier "
            f"{found.streams[0].noise_multiplier:.4g}, epsilon {found.epsilon:.4g}{took}"
        )
    return "\n".join(lines)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 86400:.0f} days"
