"""What `--dry-run` prints: numbers, noise, memory and time of a run, from configurations alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raptor.dryrun import Memory, Sizes, Speeds, Work
    from raptor.forecast import Costs

GIB = 2**30


def described(parameters: dict[str, Any], operations: float | None, as_json: bool) -> str:
    """The description of a run, in words or as JSON. No model, record or network is touched.

    Args:
        parameters: all of them, validated.
        operations: operations a second of another machine's accelerator in products in float32; measured here if None.

    Raises:
        RaptorError: the parameters do not fit together, or the config of the base model is not here.
    """
    import json

    from raptor.dryrun import (
        memory,
        routing_seconds,
        sizes,
        speeds,
        training_seconds,
        work,
    )
    from raptor.forecast import Forecast, most_records
    from raptor.moe.classifier import read_config
    from raptor.pipelines.base_model.source import locate_config

    source = parameters["base_model"].source
    training, ingestion = parameters["training"], parameters["ingestion"]
    length = ingestion.max_length
    place, origin = locate_config(parameters["base_model"])
    classes = 2 if ingestion.lengths is None else 0
    most = parameters["selection"].protected_layers
    found = sizes(
        read_config(place),
        source,
        training,
        classes,
        images=ingestion.image is not None,
        image_tiles=ingestion.image_tiles,
        protected_layers=most,
    )
    parameters["selection"].require_enough(found.layers)
    forecast = Forecast(parameters, found.experts, found.layers[-most:])
    costs = forecast.costs()
    records = int(forecast.privacy.population) * most_records(forecast.privacy)
    needed = memory(found, training, length)
    done = work(found, costs.record_steps, records, parameters["selection"].corpus_records, length)
    measured = speeds(training) if operations is None else speeds_of(operations)
    steps = {stream.name: stream.steps for stream in costs.streams}
    seconds = training_seconds(done, found.trained, steps, measured)
    routing = routing_seconds(done, measured)
    if as_json:
        shown = {
            "base_model": {
                "source": source,
                "config": origin,
                "total": found.total,
                **dataclasses.asdict(found),
            },
            "privacy": {"delta": forecast.privacy.delta, **dataclasses.asdict(costs)},
            "memory": {**dataclasses.asdict(needed), "device": needed.device},
            "work": dataclasses.asdict(done),
            "speeds": dataclasses.asdict(measured),
            "seconds": {"training": seconds, "routing": routing},
        }
        return json.dumps(shown, allow_nan=False)
    record = f"{length} tokens"
    if found.pictures is not None:
        record += f" and an image of {found.pictures.tokens:,} ({found.pictures.views} views)"
    return "\n".join(
        [
            "Dry run: from configurations alone. Nothing was downloaded, no weight loaded, no record read.",
            "",
            *_model(source, origin, found),
            "",
            *_privacy(parameters, costs),
            "",
            *_memory(needed, training.physical_batch_size, record),
            "",
            *_time(done, measured, seconds, routing, record),
        ]
    )


def speeds_of(operations: float) -> Speeds:
    """Those of an accelerator elsewhere, and of this machine's processor."""
    from raptor.dp.config import TrainingConfig
    from raptor.dryrun import speeds

    return dataclasses.replace(
        speeds(TrainingConfig(device="cpu")), device="an accelerator of that speed", operations=operations
    )


def _model(source: str, origin: str, found: Sizes) -> list[str]:
    from raptor.dryrun import EXPERT, HEAD, ROUTER, SHARED

    what = {
        SHARED: "",
        ROUTER: "frozen",
        EXPERT: f"{len(found.layers)} sparse layers of {found.experts} experts, {found.top_k} for each token",
        HEAD: "for two classes; how many there are is known when the records are read",
    }
    lines = [
        f"Base model {source} ({found.family}), from {origin}:",
        f"  {'numbers':<10} {found.total:>16,}   {found.active:,.0f} of them active for a token, "
        "embeddings left out",
    ]
    lines += [
        f"    {role:<8} {found.roles[role]:>16,}   {words}".rstrip()
        for role, words in what.items()
        if found.roles[role]
    ]
    lines.append(f"  {'trained':<10} {sum(found.trained.values()):>16,}   {found.words}")
    return lines + [f"    {name:<8} {count:>16,}" for name, count in found.trained.items()]


def _privacy(parameters: dict[str, Any], costs: Costs) -> list[str]:
    from raptor.cli_plan import stream_lines

    return stream_lines(parameters, costs)


def _memory(needed: Memory, records: int, record: str) -> list[str]:
    return [
        "Memory, about:",
        f"  {_gib(needed.device)} where the training is: {_gib(needed.weights)} of weights in float32, "
        f"{_gib(needed.trained)} of sums and moments of what is trained, {_gib(needed.kept)} for a pass of {records} "
        f"records of {record} (training.physical_batch_size)",
        f"  {_gib(needed.main)} of main memory, while owners are decided in float64 and the gate has a copy",
        f"  {_gib(needed.disk)} on disk for base model and trained model in float32",
    ]


def _time(done: Work, measured: Speeds, seconds: float, routing: float, record: str) -> list[str]:
    from raptor.cli_plan import duration

    return [
        f"Time, if every record had {record} and all work ran as fast as large products do:",
        f"  {duration(seconds)} of training: {done.training:.2g} operations on {measured.device} at "
        f"{_billions(measured.operations)}, and noise",
        f"  {duration(routing)} of routing: {done.routing:.2g} operations on this machine's processor at "
        f"{_billions(measured.processor)}",
        "  Real steps are slower, shorter records faster (docs/models.md). Once the model is here, `raptor plan` "
        "without --dry-run measures steps.",
    ]


def _billions(operations: float) -> str:
    return f"{operations / 1e9:,.0f} billion a second"


def _gib(number: int) -> str:
    return f"{number / GIB:.2g} GiB" if number < 100 * GIB else f"{number / GIB:.0f} GiB"
