"""Tables of private records: each leaves with noise, once, within what the plan has reserved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raptor.accounting.plan import PrivacyPlan, StreamPlan
from raptor.accounting.types import Sensitivity
from raptor.dp.clipping import ClippedSum
from raptor.dp.mechanism import GaussianMechanism
from raptor.dp.plan import EVALUATION
from raptor.errors import BudgetError
from raptor.pipelines.evaluation.config import TABLES_OF_COMPLETIONS, TABLES_PER_MODEL
from raptor.reporting.completions import SENSITIVITY, CompletionTable
from raptor.reporting.tables import CONFUSION_SENSITIVITY, RELIABILITY_SENSITIVITY, EvaluationTables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor.dp.streams import RandomSource


Answers = EvaluationTables | CompletionTable


def read_answers(value: Mapping[str, Any]) -> Answers:
    """What `to_json` of either kind has written."""
    return EvaluationTables.from_json(value) if "confusion" in value else CompletionTable.from_json(value)


def noised_table(
    table: NDArray[np.float64], sensitivity: float, mechanism: GaussianMechanism, plan: PrivacyPlan
) -> NDArray[np.float64]:
    """One noisy release of a table of counts.

    Guarantee:
        Released is table + N(0, (sigma s)^2 I), s = `sensitivity`, through `raptor.dp.mechanism`. The table is
        scaled so that one record moves it by the norm of the plan's evaluation stream, and scaled back
        afterwards, which is post-processing. Adjacency and unit are the plan's; under replace-one the
        accountant doubles the distance. Assumes that one record moves the table by at most `sensitivity` in
        L2 norm when it is added or removed.
    """
    norm = mechanism.stream.clipping_norm
    scaled = torch.from_numpy(table * (norm / sensitivity))
    total = ClippedSum({"table": scaled}, Sensitivity(norm, plan.adjacency, plan.unit))
    released = mechanism.release(total)["table"].numpy()
    return released * (mechanism.stream.denominator * sensitivity / norm)


def noised_tables(exact: Answers, mechanism: GaussianMechanism, plan: PrivacyPlan) -> Answers:
    """Both tables of a model as two releases, or the one of completions."""
    multiplier = plan.stream(EVALUATION).noise_multiplier
    if isinstance(exact, CompletionTable):
        sums = noised_table(exact.sums, SENSITIVITY, mechanism, plan)
        return CompletionTable(sums, exact.loss_bound, multiplier * SENSITIVITY)
    return EvaluationTables(
        confusion=noised_table(exact.confusion, CONFUSION_SENSITIVITY, mechanism, plan),
        reliability=noised_table(exact.reliability, RELIABILITY_SENSITIVITY, mechanism, plan),
        confusion_noise=multiplier * CONFUSION_SENSITIVITY,
        reliability_noise=multiplier * RELIABILITY_SENSITIVITY,
    )


def release_tables(
    exact: Mapping[str, Answers],
    plan: PrivacyPlan,
    model: Path,
    journals: Path,
    randomness: RandomSource,
) -> tuple[dict[str, Answers], list[dict[str, Any]]]:
    """Noisy tables of all models and the log of their releases; released once for a trained model.

    What was released is kept beside its journal, so that evaluating the same model again reads it back and
    spends nothing. Both are bound to the model's weights: a new training has its own plan and budget.

    Args:
        exact: private tables by method.
        plan: the privacy plan; its stream `evaluation` has reserved the releases.
        model: directory of the released model.
        journals: folder of the release journals.
        randomness: source of the noise.

    Raises:
        BudgetError: the plan has not reserved enough releases or names another generator, other tables of
            this model were released before, or an evaluation was cut off after its budget was spent.
    """
    stream = plan.stream(EVALUATION)
    needed = sum(
        TABLES_OF_COMPLETIONS if isinstance(tables, CompletionTable) else TABLES_PER_MODEL
        for tables in exact.values()
    )
    if needed > stream.steps:
        raise BudgetError(
            f"The evaluation of {', '.join(exact)} needs {needed} noisy tables, but the privacy plan has "
            f"reserved {stream.steps}. Nothing was released. Train again with the present evaluation.baselines, "
            "so that the plan reserves them."
        )
    content = release_once(
        stream,
        plan,
        model,
        journals,
        randomness,
        lambda mechanism: {
            name: noised_tables(tables, mechanism, plan).to_json() for name, tables in exact.items()
        },
    )
    tables = {name: read_answers(value) for name, value in content["tables"].items()}
    if missing := set(exact) - set(tables):
        raise BudgetError(
            f"{', '.join(sorted(missing))} was not among the models whose evaluation was released for this "
            f"training ({', '.join(tables)}), and the reserved releases are spent. Leave it out of "
            "evaluation.baselines, or train again."
        )
    return {name: tables[name] for name in tables if name in exact}, content["log"]


def release_once(
    stream: StreamPlan,
    plan: PrivacyPlan,
    model: Path,
    journals: Path,
    randomness: RandomSource,
    make: Callable[[GaussianMechanism], dict[str, Any]],
) -> dict[str, Any]:
    """What `make` releases by a reserved stream for this model, with the log of it; read back the next time.

    Raises:
        BudgetError: the plan names another generator, or an earlier call was cut off after its budget was spent.
    """
    from raptor.accounting.journal import ReleaseJournal

    if randomness.name != plan.generator:
        raise BudgetError(
            f"The privacy plan names the generator {plan.generator}, but training.randomness asks for "
            f"{randomness.name}. Nothing was released. Set it back, or train again."
        )
    place = journals / f"{stream.name}-{model_digest(model)}.jsonl"
    kept = place.with_suffix(".json")
    if place.exists():
        if not kept.is_file():
            raise BudgetError(
                f"The {stream.name} of this model was cut off after its releases were charged ({place.name}). They are "
                "spent, so it cannot be repeated; train again."
            )
        content: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return content
    with ReleaseJournal.create(place, plan.to_json()) as journal:
        noise = randomness.stream(f"{stream.name}/noise")
        made = make(GaussianMechanism(stream, noise, randomness.name, journal))
        content = {"tables": made, "log": journal.lines()}
    partial = kept.with_suffix(".partial")
    partial.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
    partial.replace(kept)
    return content


def model_digest(directory: Path) -> str:
    """Digest of the released weights; it names the evaluation of one trained model."""
    digest = hashlib.sha256()
    for file in sorted(directory.glob("*.safetensors")):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
