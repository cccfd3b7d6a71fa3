"""Nodes of the training stage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raptor.launch.config import HERE, LaunchConfig
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.training.config import PrivacyConfig, TrainingConfig
from raptor.progress import track

if TYPE_CHECKING:
    from raptor.accounting.facts import Records
    from raptor.pipelines.training.models import TunedLanguageModel, TunedModel

logger = logging.getLogger(__name__)


def measure_public(
    base_model: Path,
    public_corpus: Any,
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    training: TrainingConfig,
    owner_vote: Literal["weight", "count"],
    max_length: int,
) -> dict[str, Any]:
    """Clipping norms and step sizes that the parameters leave to public records; nothing where they leave none.

    No private record is read: the outcome is a function of the public model, the public corpus and public constants.

    Raises:
        DataError: the corpus is empty, or no record of it has a gradient.
        ParameterError: experts of several layers would be told apart, or there are no classes to measure norms with.
    """
    if not training.is_measured:
        return {}
    from raptor.errors import ParameterError
    from raptor.pipelines.training.measured import measure
    from raptor.pipelines.training.planning import continues_texts, protected_layers

    if continues_texts(public_constants) and training.is_clipped_by_public:
        raise ParameterError(
            "training has a clipping norm that is auto: it is measured with surrogate classes, and the records here "
            "are prompts with completions. Give the clipping norms as numbers."
        )
    classes = int(public_constants["num_classes"])
    layers = protected_layers(layer_plan, training)
    found = measure(base_model, public_corpus["text"][:], layers, classes, training, owner_vote, max_length)
    logger.info("Measured on public records: %s.", found)
    return found.to_json()


def plan_privacy(
    base_model: Path,
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
    public_measures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fix every public constant of the mechanism and calibrate its noise, before any private gradient.

    `public_measures` are those of `measure_public`.

    Raises:
        BudgetError: epsilon, delta, batch size and population do not fit together.
        ParameterError: a parameter is out of range, or asks for what private records do not allow.
        ModelError: a trainable parameter has no exact per-record gradient.
    """
    from raptor.pipelines.training.measured import Measured
    from raptor.pipelines.training.planning import (
        blurred_evaluation,
        check_model,
        continues_texts,
        raptor_plan,
        require_declared,
    )

    continues = continues_texts(public_constants)
    check_model(base_model, layer_plan, training, 0 if continues else 2)
    require_declared(privacy, public_constants)
    scope = evaluation_scope(evaluation, str(public_constants["source"]), continues)
    measured = Measured.from_json(public_measures or {})
    plan = raptor_plan(layer_plan, public_constants, privacy, training, evaluation, scope, measured)
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
    training_checkpoints: Path,
    training: TrainingConfig,
    ingestion: IngestionConfig,
    launch: LaunchConfig = HERE,
) -> tuple[TunedModel | TunedLanguageModel, list[dict[str, Any]]]:
    """Train the model by the plan; every release is on disk before it is used.

    Of `ingestion`, the model keeps which columns it was trained on and how long their texts may be. `launch` says in
    how many processes it is trained; this one writes the ledger, the checkpoints and the log in any case.

    A training that was killed goes on from its last private checkpoint (see `raptor.dp.resume.PrivateRun`).

    Guarantee:
        Released are the model and the list of releases. The model is post-processing of the releases of
        `raptor.dp.mechanism`, whose sensitivities, rates and noise stand in the list. Adjacency and unit are
        the plan's. Assumes that owners are a function of one record and public weights.

    Raises:
        DataError: tokens, labels and owners do not belong together.
        BudgetError: the plan and the parameters do not fit together.
        ModelError: the isolation gate has found what couples records, or a gradient that is not exact.
        CheckpointError: a training that has not ended is another one than this, or its checkpoint is damaged.
        LaunchError: the processes of the training cannot be started, or were lost.
    """
    from raptor.accounting.plan import read_plan
    from raptor.dp.checkpoints import CheckpointStore
    from raptor.dp.identity import run_identity
    from raptor.dp.plan import EXPERT
    from raptor.dp.resume import PrivateRun
    from raptor.dp.training import random_source, resolve_device
    from raptor.launch.job import Recipe
    from raptor.launch.trainer import open_trainer
    from raptor.moe.language import load_untrained
    from raptor.pipelines.training.facts import RunWatch, run_start
    from raptor.pipelines.training.models import tuned_model
    from raptor.pipelines.training.planning import require_isolated, require_planned, require_same_task
    from raptor.pipelines.training.records import encoded_records

    plan = read_plan(privacy_plan)
    require_planned(plan, training)
    require_same_task(label_names, ingestion.lengths is not None)
    records = encoded_records(private_train, owner_partition, plan.layers)
    expert = plan.find(EXPERT)
    records.require_below(classes=len(label_names), owners=None if expert is None else expert.blocks)
    recipe = Recipe.of(load_untrained, base_model, len(label_names))
    model = recipe.build()
    device = resolve_device(training.device)
    logger.info("Training on %s.", device)
    # On synthetic records, and before the journal is opened: what it refuses has cost nothing.
    isolation = require_isolated(model, plan.layers, training, expert_norms=plan.expert_norms)
    logger.info("%s", isolation)
    watch = RunWatch(model, records)
    with CheckpointStore(training_checkpoints) as store:
        run, words = PrivateRun.open(
            store,
            release_journals,
            plan,
            training,
            random_source(training),
            lambda salt: {
                **run_identity(plan, training, base_model, records, device, salt),
                **launch.identity(),
            },
        )
        is_plain = training.resume == "auto" and not run.is_resumed
        logger.log(logging.INFO if is_plain else logging.WARNING, "%s", words)
        with (
            run.journal as journal,
            open_trainer(
                launch, training_checkpoints, recipe, model, records, plan, training, run.randomness, journal
            ) as trainer,
        ):
            logger.info("%s", trainer.trainable.table())
            origin: Records = "same" if run.is_resumed else "first"
            journal.note(run_start(isolation, trainer.trainable, origin, launch.size))
            steps = training.steps(training.shared) + training.steps(training.expert) - run.finished
            for _ in track(run.steps(trainer), "Training privately", steps, long=True):
                pass
            if trainer.left_out:
                logger.warning(
                    "The last %d steps are left out: releases that were lost in a crash have used up their budget.",
                    trainer.left_out,
                )
            trainer.finish()
            journal.note(watch.end(model, trainer.keystreams, trainer.left_out))
            return tuned_model(model, base_model, label_names, ingestion), journal.lines()


def end_training(
    raptor_model: Path, release_log: Sequence[Mapping[str, Any]], training_checkpoints: Path
) -> None:
    """Delete the private checkpoint once the model and its releases are kept.

    Before that, a run that is killed would have lost a model that is paid for. Afterwards the next run is a new
    one, with fresh randomness. A checkpoint of another training than the log's stays.

    Args:
        raptor_model: not read; it has to be there.
    """
    from raptor.dp.checkpoints import CheckpointStore

    with CheckpointStore(training_checkpoints) as store:
        store.discard_if_ended(release_log)
