"""All diagnostics of a trained model on public records, in one value.

Records of the private training are never given here. What stands for them are public records of the same form, with
owners by the same rule and labels that are public; the figures say of the private ones what the public ones resemble.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from raptor.accounting.plan import PrivacyPlan
from raptor.diagnostics.estimator import (
    Errors,
    OwnerSums,
    draw_updates,
    errors,
    made_up_gradients,
    owner_sums,
    unbiased_mean_squares,
)
from raptor.diagnostics.gradients import GradientPass, expert_blocks, gradient_pass
from raptor.diagnostics.interference import (
    Interference,
    interference,
    interference_ratios,
    role_mismatch,
)
from raptor.diagnostics.load import EntropyBounds, drawn_empty_rates, empty_rates, entropy_bounds
from raptor.diagnostics.signal import Signal, signal
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import TrainableSet
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layer
from raptor.moe.roles import expert_parameters
from raptor.moe.statistics import Floats

QUANTILES = tuple(np.linspace(0, 1, 21).round(2).tolist())
EMPTY_DRAWS = 2000
REPETITIONS = 2000
WIDTH = 16


@dataclass(frozen=True)
class RoleClipping:
    """One role under a joint clip.

    Attributes:
        median_norm: median norm of a record's gradient in the role.
        interference: summary of its ratios.
        ratios: quantiles of the ratios at `QUANTILES`.
    """

    median_norm: float
    interference: Interference
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class FormulaCheck:
    """Formulas of the public denominator against repeated draws of made-up gradients with the public loads.

    Attributes:
        mean: largest deviation of an expert's mean update from E q mu, in standard errors of its norm.
        variance: largest relative deviation of an expert's variance.
        repetitions: how many times the step was made.
    """

    mean: float
    variance: float
    repetitions: int


@dataclass(frozen=True)
class FailureModes:
    """What public records show of the three failure modes at a model; arrays have one entry an expert.

    Attributes:
        records: public records.
        roles: `shared` and `expert` under one clip over both.
        mismatch: half the sum of |norm share - parameter share| over both roles.
        loads: shares of the records.
        bounds: the bias of the public denominator between functions of the entropy.
        empty, empty_drawn: rate of steps without a record, by formula and drawn.
        errors: mean squared error of an update in units of C^2, by formula.
        check: the formulas against repeated draws.
        signal: against the noise of a step.
        numbers: trained numbers of an expert, on average.
    """

    records: int
    roles: Mapping[str, RoleClipping]
    mismatch: float
    loads: Floats
    bounds: EntropyBounds
    empty: Floats
    empty_drawn: Floats
    errors: Errors
    check: FormulaCheck
    signal: Signal
    numbers: float


def diagnose(
    model: MoEClassifier,
    records: EncodedRecords,
    loads: Floats,
    trainable: TrainableSet,
    training: TrainingConfig,
    plan: PrivacyPlan,
    seed: int = 0,
) -> FailureModes:
    """Measure a model whose trainable parameters are in place; it is moved to the CPU. Of several protected layers the
    first one is measured, as if it were the only one.

    Residual weights and norms of single experts are left aside: all experts are clipped to the common norm.

    Args:
        records: public, with labels and owners.
        loads: (E,) owner shares of public records, these or more.
        plan: of the private training; it has an expert stream.
        seed: of the draws, which touch public or made-up values only.
    """
    model = model.cpu().eval()
    layer, stream = plan.layers[0], plan.stream(EXPERT)
    mine = set(expert_parameters(model, [layer]))
    trainable = replace(trainable, expert=tuple(name for name in trainable.expert if name in mine))
    records = replace(records, owners=records.first_owners)
    norm, batch_size = stream.clipping_norm, training.batch(training.expert)
    clip = plan.stream(SHARED).clipping_norm if plan.find(SHARED) else norm
    shared = gradient_pass(JointGradients(model, trainable.shared), records, clip)
    owned = gradient_pass(OwnerExpertGradients(model, layer, parameters=trainable.expert), records, norm)
    expert = owned
    if training.owners == "active":
        expert = gradient_pass(JointGradients(model, trainable.expert), records, norm)
    (spec,) = engine_specs(trainable, [layer], training, "matched")
    joint = gradient_pass(spec.build(model), records, clip)
    norms = {SHARED: shared.norms, EXPERT: expert.norms}
    sums = _owner_sums(model, layer, records, owned, norm, loads)
    generator = np.random.default_rng(seed)
    constants = {
        "batch_size": float(batch_size),
        "rate": stream.rate,
        "noise_multiplier": stream.noise_multiplier,
        "clipping_norm": norm,
    }
    return FailureModes(
        records=len(records),
        roles={role: _role(joint.norms, value, clip) for role, value in norms.items()},
        mismatch=role_mismatch(
            norms, {SHARED: trainable.count(trainable.shared), EXPERT: trainable.count(trainable.expert)}
        ),
        loads=loads,
        bounds=entropy_bounds(loads),
        empty=empty_rates(loads, batch_size),
        empty_drawn=drawn_empty_rates(loads, batch_size, plan.population, EMPTY_DRAWS, generator),
        errors=errors(sums, **constants),
        check=check_formulas(
            records.owners.numpy(), len(loads), stream.rate, stream.noise_multiplier, generator
        ),
        signal=signal(sums, **constants),
        numbers=float(sums.sizes.mean()),
    )


def check_formulas(
    owners: Any, experts: int, rate: float, noise_multiplier: float, generator: np.random.Generator
) -> FormulaCheck:
    """Repeat an expert step on made-up gradients that have these owners, and compare with `errors`.

    Args:
        owners: (n,) owners of public records; the batch is `rate` times n.
    """
    gradients = made_up_gradients(len(owners), WIDTH, 1.0, generator)
    batch_size = rate * len(owners)
    drawn = draw_updates(
        gradients,
        owners,
        experts,
        batch_size=batch_size,
        noise_multiplier=noise_multiplier,
        clipping_norm=1.0,
        repetitions=REPETITIONS,
        generator=generator,
    )
    expected = errors(
        owner_sums(gradients, owners, experts),
        batch_size=batch_size,
        rate=rate,
        noise_multiplier=noise_multiplier,
        clipping_norm=1.0,
    )
    variance = expected.sampling + expected.noise
    mean = (
        np.stack([gradients[owners == expert].sum(axis=0) for expert in range(experts)])
        * experts
        / len(owners)
    )
    return FormulaCheck(
        mean=float((np.linalg.norm(drawn.mean - mean, axis=1) / np.sqrt(variance / REPETITIONS)).max()),
        variance=float(np.abs(drawn.variance / variance - 1.0).max()),
        repetitions=REPETITIONS,
    )


def _role(joint: Floats, part: Floats, clip: float) -> RoleClipping:
    ratios = interference_ratios(joint, part, clip)
    return RoleClipping(
        median_norm=float(np.median(part)),
        interference=interference(joint, part, clip),
        ratios=tuple(np.quantile(ratios, QUANTILES).tolist())
        if len(ratios)
        else (math.nan,) * len(QUANTILES),
    )


def _owner_sums(
    model: MoEClassifier,
    layer: int,
    records: EncodedRecords,
    owned: GradientPass,
    norm: float,
    loads: Floats,
) -> OwnerSums:
    experts = sparse_layer(model, layer).num_experts
    owners = records.owners.numpy()
    clipped = np.minimum(owned.norms, norm) ** 2
    counts = np.bincount(owners, minlength=experts).astype(np.float64)
    squares: Floats = np.bincount(owners, weights=clipped, minlength=experts).astype(np.float64)
    sums, sizes = expert_blocks(model, layer, owned.total)
    return OwnerSums(
        loads=loads,
        means=unbiased_mean_squares(sums, squares, counts),
        squares=squares / np.maximum(counts, 1.0),
        sizes=sizes,
    )


def plain(value: Any) -> Any:
    """Nested dataclasses and arrays as JSON has them, with None for what is no number."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
