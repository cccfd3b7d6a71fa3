"""Nodes of the training stage."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope
from raptor.pipelines.training.config import PrivacyConfig, TrainingConfig
from raptor.progress import track

if TYPE_CHECKING:
    from raptor.pipelines.training.models import TunedModel

logger = logging.getLogger(__name__)


def plan_privacy(
    base_model: Path,
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
) -> dict[str, Any]:
    """Fix every public constant of the mechanism and calibrate its noise, before any private gradient.

    Raises:
        BudgetError: epsilon, delta, batch size and population do not fit together.
        ParameterError: a parameter is out of range, or asks for what private records do not allow.
        ModelError: a trainable parameter has no exact per-record gradient.
    """
    from raptor.pipelines.training.planning import (
        blurred_evaluation,
        check_model,
        raptor_plan,
        require_declared,
    )

    check_model(base_model, layer_plan, training)
    require_declared(privacy, public_constants)
    scope = evaluation_scope(evaluation, str(public_constants["source"]))
    plan = raptor_plan(layer_plan, public_constants, privacy, training, evaluation, scope)
    logger.info(
        "Privacy plan: epsilon %.4g of %.4g at delta %.3g; noise multipliers %s",
        plan.epsilon_planned,
        plan.epsilon_target,
        plan.delta,
        ", ".join(f"{stream.name} {stream.noise_multiplier:.4g}" for stream in plan.streams),
    )
    if warning := blurred_evaluation(plan, public_constants, evaluation):
        logger.warning("%s", warning)
    return plan.to_json()


def train_raptor(
    base_model: Path,
    label_names: Sequence[str],
    private_train: Any,
    owner_partition: Any,
    privacy_plan: Mapping[str, Any],
    release_journals: Path,
    training: TrainingConfig,
) -> tuple[TunedModel, list[dict[str, Any]]]:
    """Train the model by the plan; every release is on disk before it is used.

    Guarantee:
        Released are the model and the list of releases. The model is post-processing of the releases of
        `raptor.dp.mechanism`, whose sensitivities, rates and noise stand in the list. Adjacency and unit are
        the plan's. Assumes that owners are a function of one record and public weights.

    Raises:
        DataError: tokens, labels and owners do not belong together.
        BudgetError: the plan and the parameters do not fit together.
        ModelError: the isolation gate has found what couples records, or a gradient that is not exact.
    """
    from raptor.accounting.journal import ReleaseJournal
    from raptor.accounting.plan import read_plan
    from raptor.dp.plan import EXPERT
    from raptor.dp.training import Trainer, random_source, resolve_device
    from raptor.moe.classifier import MoEClassifier
    from raptor.pipelines.training.facts import RunWatch, run_start
    from raptor.pipelines.training.models import TunedModel
    from raptor.pipelines.training.planning import require_isolated, require_planned
    from raptor.pipelines.training.records import encoded_records

    plan = read_plan(privacy_plan)
    require_planned(plan, training)
    records = encoded_records(private_train, owner_partition, plan.layer)
    expert = plan.find(EXPERT)
    records.require_below(classes=len(label_names), owners=None if expert is None else expert.blocks)
    model = MoEClassifier.from_encoder(base_model, len(label_names))
    logger.info("Training on %s.", resolve_device(training.device))
    # On synthetic records, and before the journal is opened: what it refuses has cost nothing.
    isolation = require_isolated(model, plan.layer, training)
    logger.info("%s", isolation)
    watch = RunWatch(model, records)
    # A random name: neither the data nor the time of the run can be read from it.
    with ReleaseJournal.create(release_journals / f"{secrets.token_hex(8)}.jsonl", plan.to_json()) as journal:
        trainer = Trainer(model, records, plan, training, random_source(training), journal)
        logger.info("%s", trainer.trainable.table())
        journal.note(run_start(isolation, trainer.trainable, "first"))
        steps = training.steps(training.shared) + training.steps(training.expert)
        for _ in track(trainer.steps("raptor"), "Training privately", steps, long=True):
            pass
        trainer.finish()
        journal.note(watch.end(model, trainer.keystreams))
        return TunedModel(model, base_model, tuple(label_names)), journal.lines()
