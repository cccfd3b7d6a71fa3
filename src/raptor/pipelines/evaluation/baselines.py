"""The methods that RAPTOR is compared with, trained on records that are public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.accounting.plan import PrivacyPlan, plan_digest
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.methods import Method
from raptor.dp.records import EncodedRecords
from raptor.dp.training import Trainer, random_source, resolve_device
from raptor.errors import DataError
from raptor.moe.language import load_untrained
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.evaluation.noise import Answers, read_answers
from raptor.pipelines.evaluation.scoring import score
from raptor.pipelines.training.measured import Measured
from raptor.pipelines.training.planning import monolithic_plan, require_isolated
from raptor.progress import track
from raptor.reporting.methods import BASE, MONOLITHIC, NONPRIVATE, RAPTOR, TITLES

METHODS: Mapping[str, Method] = {NONPRIVATE: "nonprivate", MONOLITHIC: "monolithic"}


def baseline_tables(
    scope: EvaluationScope,
    base_model: Path,
    classes: int,
    train: EncodedRecords,
    heldout: EncodedRecords,
    plan: PrivacyPlan,
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
) -> dict[str, Answers]:
    """Exact, private tables of the base model and of each baseline that the scope allows to train.

    `classes` is 0 where texts are continued.

    The trained baselines use RAPTOR's sampler, rate, number of steps and optimizer. The monolithic one spends
    the whole budget of the plan on one stream. Their releases are not recorded: the scope lets them train on
    public records only, and their models are dropped once they are scored.
    """
    device = resolve_device(training.device)
    training = Measured.of_plan(plan).settle(training)
    tables: dict[str, Answers] = {}
    for name in scope.models:
        if name == RAPTOR:
            continue
        model = load_untrained(base_model, classes)
        if name != BASE:
            own_plan = plan
            if name == MONOLITHIC:
                own_plan = monolithic_plan(layer_plan, public_constants, privacy, training)
                require_isolated(model, own_plan.layers, training, METHODS[name])
            own_steps = scaled(training, getattr(evaluation.step_sizes, name))
            trainer = Trainer(model, train, own_plan, own_steps, random_source(training), sink=[])
            steps = training.steps(training.shared) + training.steps(training.expert)
            description = f"Training a baseline: {TITLES[name]}"
            for _ in track(trainer.steps(METHODS[name]), description, steps, long=True):
                pass
            trainer.finish()
        tables[name] = score(model, heldout, evaluation, device, f"Evaluating: {TITLES[name]}")
    return tables


def scaled(training: TrainingConfig, factor: float) -> TrainingConfig:
    """The same training with all step sizes times a factor."""
    head = training.head_learning_rate
    return training.model_copy(
        update={
            "head_learning_rate": None if head is None else factor * head,
            "shared": training.shared.model_copy(
                update={"learning_rate": factor * training.shared.learning_rate}
            ),
            "expert": training.expert.model_copy(
                update={"learning_rate": factor * training.expert.learning_rate}
            ),
        }
    )


def results_to_json(tables: Mapping[str, Answers], plan: Mapping[str, Any]) -> dict[str, Any]:
    """`baseline_results`: tables by method, and the plan that they belong to."""
    return {
        "plan": plan_digest(plan),
        "tables": {name: value.to_json() for name, value in tables.items()},
    }


def results_from_json(
    results: Mapping[str, Any], plan: Mapping[str, Any], wanted: Sequence[str]
) -> dict[str, Answers]:
    """Tables of the wanted methods.

    Raises:
        DataError: a method is missing, or the results were made under another privacy plan, so that steps and
            budget would differ from the private model's.
    """
    found = results.get("tables", {})
    missing = [name for name in wanted if name not in found]
    if missing or results.get("plan") != plan_digest(plan):
        why = f"lacks {', '.join(missing)}" if missing else "was made with another privacy plan"
        raise DataError(
            f"baseline_results {why}. Run `kedro run --pipelines evaluation` to make it again with the present "
            "parameters."
        )
    return {name: read_answers(found[name]) for name in wanted}
