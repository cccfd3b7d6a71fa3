"""Refusals of an evaluation whose parts come from different runs: its figures would belong to no certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.accounting.certificate import model_digest
from raptor.accounting.ledger import read_ledger
from raptor.accounting.plan import PrivacyPlan, read_plan
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.plan import EVALUATION
from raptor.errors import BudgetError, DataError
from raptor.pipelines.evaluation.config import EvaluationScope


def require_scope(scope: EvaluationScope, plan: PrivacyPlan) -> None:
    """The plan has reserved evaluation releases exactly when the records are private.

    Raises:
        BudgetError: the records were private when the budget was planned and are called public now, or the
            other way round.
    """
    planned_public = plan.find(EVALUATION) is None
    if scope.records_are_public != planned_public:
        words = {True: "public", False: "private"}
        raise BudgetError(
            f"The privacy plan was made for {words[planned_public]} records, but ingestion and "
            f"evaluation.records_are_public now say that they are {words[scope.records_are_public]}. Nothing was "
            "released. Set it back, or run training and accounting again, so that all say the same."
        )


def require_certified(plan: PrivacyPlan, ledger: Sequence[Mapping[str, Any]], model: Path) -> str:
    """Digest of the model, which must be the one that the ledger was made for, under this plan.

    Raises:
        BudgetError: releases would be made by a plan, or for a model, that the certificate does not know.
        LedgerError: the ledger is broken.
    """
    checked = read_ledger(ledger)
    digest = model_digest(model)
    if checked.plan != plan or checked.model != digest:
        what = "the privacy plan" if checked.plan != plan else "the model"
        raise BudgetError(
            f"The ledger does not belong to {what} on disk, so the certificate would not cover this evaluation. "
            "Nothing was released. Run the training and accounting stages again."
        )
    return digest


def require_one_run(
    metrics: Mapping[str, Any],
    plan: Mapping[str, Any],
    certificate: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
) -> None:
    """Metrics, certificate and parameters must be of one model and one plan.

    Raises:
        DataError: says which do not belong together.
    """
    from raptor.pipelines.training.planning import require_planned

    if metrics.get("model") != certificate["model"]["digest"]:
        raise DataError(
            "The metrics and the certificate belong to different models. Run the evaluation stage again."
        )
    checked = read_plan(plan)
    require_planned(checked, training)
    if (privacy.epsilon, privacy.delta) != (checked.epsilon_target, checked.delta):
        raise DataError(
            f"privacy.epsilon and privacy.delta are {privacy.epsilon} and {privacy.delta}, but the model was "
            f"trained for {checked.epsilon_target} and {checked.delta}. Give the parameters it was trained with."
        )


def require_same_model(failure_modes: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
    """Diagnostics, unless they were switched off, must be of the certified model.

    Raises:
        DataError: they are of another one.
    """
    if failure_modes["enabled"] and failure_modes["model"] != certificate["model"]["digest"]:
        raise DataError(
            "failure_modes and the certificate belong to different models. Run the evaluation stage again."
        )
