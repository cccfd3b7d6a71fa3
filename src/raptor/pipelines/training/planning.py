"""From parameters and declared facts to the privacy plans of RAPTOR and of its monolithic baseline."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.selection import Search
from raptor.accounting.types import Adjacency, Unit
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.engines import engine_specs, role_norm
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import loss_of
from raptor.dp.isolation import Isolation, check_isolation
from raptor.dp.methods import ONE_STREAM, Method
from raptor.dp.plan import (
    DIAGNOSTICS,
    EVALUATION,
    EXPERT,
    MONOLITHIC,
    SHARED,
    StreamShape,
    make_plan,
)
from raptor.dp.trainable import make_trainable
from raptor.dp.training import random_source, resolve_device
from raptor.environment import FEWEST_USERS
from raptor.errors import BudgetError, ModelError, ParameterError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer
from raptor.moe.language import load_untrained
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.training.measured import NOTHING, Measured
from raptor.reporting.completions import readable_completions
from raptor.reporting.metrics import readable_records

# The share of the public number of training records that a held-out set usually has.
USUALLY_HELD_OUT = 0.1
PUBLIC_RECORDS = (
    "all records and labels (evaluation.records_are_public): baselines train on them without protection, and the "
    "held-out ones are evaluated without noise"
)


def protected_layers(layer_plan: Mapping[str, Any], training: TrainingConfig) -> tuple[int, ...]:
    """The layers whose experts are trained, that of the largest entropy first.

    Raises:
        ParameterError: the layer plan names none, or several where the parameters tell the experts of one apart.
    """
    layers = tuple(int(layer) for layer in layer_plan["layers"])
    if not layers:
        raise ParameterError("The layer plan names no layer. Run the selection stage again.")
    training.require_layers(len(layers))
    return layers


def continues_texts(public_constants: Mapping[str, Any]) -> bool:
    """Whether the records are prompts with completions: there are no classes then."""
    return int(public_constants["num_classes"]) == 0


def check_model(
    base_model: Path, layer_plan: Mapping[str, Any], training: TrainingConfig, classes: int
) -> None:
    """Refuse a model or a device that training could not use, before anything is spent.

    Args:
        classes: 0 where texts are continued.

    Raises:
        ModelError: a trainable parameter has no exact per-record gradient, a layer is not sparse, or the layers have
            different numbers of experts.
        ParameterError: the device is missing, or a pattern of frozen parameters or adapters matches nothing.
    """
    resolve_device(training.device)
    model = load_untrained(base_model, classes)
    layers = protected_layers(layer_plan, training)
    trainable = make_trainable(model, training, layers)
    JointGradients(model, trainable.shared)
    OwnerExpertGradients(model, layers, parameters=trainable.expert)
    experts = {layer: sparse_layer(model, layer).num_experts for layer in layers}
    if len(set(experts.values())) > 1:
        raise ModelError(
            f"The protected layers have {', '.join(f'{n} experts (layer {layer})' for layer, n in experts.items())}. "
            "They share one public denominator, so protect layers of as many experts each, or one layer."
        )


def require_isolated(
    model: nn.Module,
    layers: Sequence[int],
    training: TrainingConfig,
    method: Method = "raptor",
    expert_norms: Sequence[float] = (),
) -> Isolation:
    """Run the isolation gate on a copy of a model, made ready as the trainer does it.

    `expert_norms` are the plan's.

    Raises:
        ModelError: names what couples records, or what is not exact. Nothing was spent.
    """
    ready = copy.deepcopy(model).to(resolve_device(training.device)).eval()
    specs = engine_specs(make_trainable(ready, training, layers), layers, training, method, expert_norms)
    classes = model.num_labels if isinstance(model, MoEClassifier) else None
    return check_isolation(ready, specs, loss_of(ready), classes=classes)


def require_declared(privacy: PrivacyConfig, public_constants: Mapping[str, Any]) -> None:
    """Refuse a population that is not the one that ingestion declared.

    Raises:
        ParameterError: says both numbers.
    """
    declared = int(public_constants["population"])
    if privacy.population not in ("auto", declared):
        raise ParameterError(
            f"privacy.population is {privacy.population}, but the ingestion stage declared {declared}. Run "
            "ingestion again with the present parameters."
        )


def require_same_task(label_names: Sequence[str], continues: bool) -> None:
    """Refuse parameters of another task than that of the records, before anything is spent.

    Args:
        continues: whether the parameters of ingestion name completions.

    Raises:
        ParameterError: says which.
    """
    if continues == bool(label_names):
        raise ParameterError(
            f"ingestion.completion is {'given' if continues else 'not given'}, but the records were read "
            f"{'without' if continues else 'with'} completions. Run the ingestion stage again with the present "
            "parameters, or give those that it was run with. Nothing was spent."
        )


def require_planned(plan: PrivacyPlan, training: TrainingConfig) -> None:
    """Refuse parameters that are not those of the plan, before anything is spent.

    Raises:
        BudgetError: names the parameter, its value and the plan's.
    """
    streams = {
        SHARED: (training.shared, float(training.batch(training.shared))),
        EXPERT: (
            training.expert,
            training.batch(training.expert) / max(stream.blocks for stream in plan.streams),
        ),
    }
    diagnostics = plan.find(DIAGNOSTICS)
    pairs: list[tuple[str, object, object]] = [
        ("randomness", random_source(training).name, plan.generator),
        ("trainable, with lora", training.trainable_set, plan.trainable),
        ("number of diagnostics", len(training.diagnostics), 0 if diagnostics is None else diagnostics.steps),
    ]
    for name, (config, denominator) in streams.items():
        planned = plan.find(name)
        pairs.append(
            (f"steps of stream {name}", training.steps(config), 0 if planned is None else planned.steps)
        )
        if planned is not None:
            norms = training.expert_norms if name == EXPERT else "common"
            if norms != "auto":
                wanted = () if norms == "common" else tuple(norm / planned.clipping_norm for norm in norms)
                pairs.append(("expert_norms, over expert.clipping_norm", wanted, planned.block_norms))
            if config.clipping_norm != "auto":
                pairs.append((f"{name}.clipping_norm", config.clipping_norm, planned.clipping_norm))
            pairs += [
                (f"denominator of stream {name}, from batch_size", denominator, planned.denominator),
                (
                    f"sampling rate of stream {name}, from batch_size",
                    training.batch(config) / plan.population,
                    planned.rate,
                ),
            ]
    for what, given, planned_value in pairs:
        if given != planned_value:
            raise BudgetError(
                f"training: {what} is {given} by the present parameters, but {planned_value} in the privacy plan. "
                "Nothing was spent. Run the training stage as a whole, so that the plan is made anew."
            )


def raptor_plan(
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
    scope: EvaluationScope,
    measured: Measured = NOTHING,
) -> PrivacyPlan:
    """The plan of RAPTOR: both streams, and what the evaluation has reserved, in one ledger.

    `measured` has the constants that the parameters leave to public records.
    """
    experts = int(layer_plan["experts"])
    training = measured.settle(training)
    shapes = [
        StreamShape(
            SHARED,
            training.steps(training.shared),
            training.shared.norm,
            float(training.batch(training.shared)),
            training.batch(training.shared),
            training.shared.noise_weight,
        ),
        StreamShape(
            EXPERT,
            training.steps(training.expert),
            training.expert.norm,
            training.batch(training.expert) / experts,
            training.batch(training.expert),
            training.expert.noise_weight,
            experts,
            *measured.by_expert(training),
        ),
    ]
    noise = evaluation.noise_for(privacy.epsilon)
    numbers = {EVALUATION: scope.releases, DIAGNOSTICS: len(training.diagnostics)}
    reserved = [StreamPlan(name, 1.0, noise, count, 1.0, 1.0) for name, count in numbers.items() if count]
    facts = [PUBLIC_RECORDS] * scope.records_are_public
    return _plan(layer_plan, public_constants, privacy, training, shapes, reserved, facts, privacy.rho)


def blurred_evaluation(
    plan: PrivacyPlan, public_constants: Mapping[str, Any], evaluation: EvaluationConfig
) -> str | None:
    """A warning when a usual held-out set would be lost in the planned noise, None otherwise.

    It rests on public facts alone: noise, numbers of classes and bins, and the public number of training records.
    How many records are really held out is private.
    """
    stream = plan.find(EVALUATION)
    if stream is None:
        return None
    if continues_texts(public_constants):
        needed = readable_completions(stream.noise_multiplier)
    else:
        needed = readable_records(
            stream.noise_multiplier, int(public_constants["num_classes"]), evaluation.calibration_bins
        )
    if needed <= USUALLY_HELD_OUT * plan.population:
        return None
    return (
        f"The accuracy of fewer than about {needed:,} held-out records will not be measurable: with a noise multiplier "
        f"of {stream.noise_multiplier:.4g} (evaluation.noise_multiplier) they are lost in the noise on the tables. If "
        "there are fewer, raise ingestion.held_out_fraction, or give a smaller multiplier, which costs budget."
    )


def monolithic_plan(
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    method: Method = "monolithic",
    measured: Measured = NOTHING,
) -> PrivacyPlan:
    """The plan of a method with one stream: as many steps as RAPTOR has in all, one noise, the same budget."""
    training = measured.settle(training)
    steps = training.steps(training.shared) + training.steps(training.expert)
    by_role = ONE_STREAM[method].by_role
    norm = role_norm(training) if by_role else training.shared.norm
    norms, sizes = measured.by_expert(training) if by_role else ((), ())
    shape = StreamShape(
        MONOLITHIC,
        steps,
        norm,
        float(training.batch_size),
        training.batch_size,
        block_norms=norms,
        block_steps=sizes,
    )
    return _plan(layer_plan, public_constants, privacy, training, [shape], [], [])


def _plan(
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    shapes: Sequence[StreamShape],
    reserved: Sequence[StreamPlan],
    facts: Sequence[str],
    rho: float | None = None,
) -> PrivacyPlan:
    population = int(public_constants["population"])
    if privacy.unit == "user" and population < FEWEST_USERS:
        raise BudgetError(
            f"privacy.unit is user, and there are only {population} users ({public_constants['population_source']}). "
            f"One of them is 1/{population} of any mean, so noise that hides one hides what all say together, and who "
            f"took part in so small a group is hardly a secret. At least {FEWEST_USERS} users are asked for, and "
            "useful models need hundreds. Nothing was spent. privacy.unit=record protects single records instead; a "
            "person with k of them is then protected k times less."
        )
    return make_plan(
        shapes=[shape for shape in shapes if shape.steps],
        reserved=reserved,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        adjacency=Adjacency(privacy.adjacency),
        unit=Unit(privacy.unit),
        population=population,
        population_source=str(public_constants["population_source"]),
        layers=protected_layers(layer_plan, training),
        generator=random_source(training).name,
        taken_as_public=[*public_constants["taken_as_public"], *facts],
        allow_large_delta=privacy.allow_large_delta,
        trainable=training.trainable_set,
        rho=rho,
        search=Search(privacy.search.runs, privacy.search.selection),  # type: ignore[arg-type]
    )
