"""Nodes of the evaluation stage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.pipelines.evaluation.config import EvaluationConfig, evaluation_scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

CERTIFICATE = "data/08_reporting/privacy_certificate.json"


def train_baselines(
    base_model: Path,
    label_names: Sequence[str],
    private_train: Any,
    private_heldout: Any,
    layer_plan: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy_plan: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
) -> dict[str, Any]:
    """Train and score what RAPTOR is compared with; exact and private, so the result stays on this machine.

    Raises:
        ParameterError: a baseline is asked for that private records do not allow.
    """
    from raptor.accounting.plan import read_plan
    from raptor.pipelines.evaluation.baselines import baseline_tables, results_to_json
    from raptor.pipelines.evaluation.consistency import require_scope
    from raptor.pipelines.training.planning import require_planned
    from raptor.pipelines.training.records import encoded_records, held_out_records

    scope = evaluation_scope(evaluation, str(public_constants["source"]), not label_names)
    plan = read_plan(privacy_plan)
    require_scope(scope, plan)
    require_planned(plan, training)
    tables = baseline_tables(
        scope,
        base_model,
        len(label_names),
        encoded_records(private_train, None, ()),
        held_out_records(private_heldout, plan.unit),
        plan,
        layer_plan,
        public_constants,
        privacy,
        training,
        evaluation,
    )
    return results_to_json(tables, privacy_plan)


def evaluate_model(
    raptor_model: Path,
    label_names: Sequence[str],
    private_heldout: Any,
    baseline_results: Mapping[str, Any],
    public_constants: Mapping[str, Any],
    privacy_plan: Mapping[str, Any],
    privacy_ledger: Sequence[Mapping[str, Any]],
    release_journals: Path,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics of the private model and of its baselines on the held-out records, and the log of releases.

    Guarantee:
        Of private records, released are two tables a model with Gaussian noise: a confusion matrix
        (sensitivity 1) and a reliability table (sensitivity sqrt(3)); or, where texts are continued, one table of
        four sums to each of which a record adds at most 1 (sensitivity 2), its loss cut at a public bound. All go by
        the stream `evaluation` of the plan; everything else is post-processing. Adjacency and unit are the plan's.
        Public records are evaluated exactly and nothing is claimed for them. Assumes that a record's answer depends
        on that record and on released weights alone, and that `evaluation.records_are_public` is true only of public
        records.

    Raises:
        BudgetError: the plan has reserved no, or too few, releases for this evaluation.
        DataError: the baselines were made with other parameters, or the held-out records for another unit of privacy.
    """
    from raptor.accounting.plan import read_plan
    from raptor.dp.plan import EVALUATION
    from raptor.dp.training import random_source, resolve_device
    from raptor.errors import ModelError
    from raptor.moe.classifier import MoEClassifier
    from raptor.moe.language import load_tuned
    from raptor.pipelines.evaluation.baselines import results_from_json
    from raptor.pipelines.evaluation.consistency import require_certified, require_scope
    from raptor.pipelines.evaluation.noise import release_tables
    from raptor.pipelines.evaluation.scoring import score
    from raptor.pipelines.training.records import held_out_records
    from raptor.reporting.comparison import EXACT, NOT_MEASURABLE
    from raptor.reporting.evaluation import evaluation_to_json
    from raptor.reporting.methods import RAPTOR

    scope = evaluation_scope(evaluation, str(public_constants["source"]), not label_names)
    plan = read_plan(privacy_plan)
    require_scope(scope, plan)
    model_digest = require_certified(plan, privacy_ledger, raptor_model)
    baselines = results_from_json(baseline_results, privacy_plan, scope.models[1:])
    model = load_tuned(raptor_model)
    classes = model.num_labels if isinstance(model, MoEClassifier) else 0
    if classes != len(label_names):
        raise ModelError(
            f"{raptor_model} knows {classes} classes, but label_names has {len(label_names)}. They come "
            "from different runs: run the training stage again."
        )
    heldout = held_out_records(private_heldout, plan.unit)
    heldout.require_task(classes)
    own = score(model, heldout, evaluation, resolve_device(training.device), "Evaluating: RAPTOR")
    tables = {RAPTOR: own, **baselines}
    log: list[dict[str, Any]] = [{"stream": EVALUATION, "releases": 0, "why": EXACT}]
    if not scope.records_are_public:
        tables, log = release_tables(tables, plan, raptor_model, release_journals, random_source(training))
    metrics = evaluation_to_json(tables, scope.baselines, scope.records_are_public)
    metrics["model"] = model_digest
    if not metrics["measurable"]:
        # Noisy tables decided that, so saying it reveals nothing more than they do.
        logger.warning("%s", NOT_MEASURABLE)
    logger.info("%s", metrics["evaluation"])
    return metrics, log


def release_diagnostics(
    raptor_model: Path,
    private_train: Any,
    owner_partition: Any,
    privacy_plan: Mapping[str, Any],
    privacy_ledger: Sequence[Mapping[str, Any]],
    release_journals: Path,
    training: TrainingConfig,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of the training records under the trained model, as `training.diagnostics` asks, and their log.

    Guarantee:
        Released is one Gaussian release for each figure, by the stream `diagnostics` of the plan: the loss of a
        record cut at 2 ln(classes), or 2 ln(vocabulary) where texts are continued; one indicator a stream of a
        gradient that is clipped; the record's owner. Sensitivities: that bound, the root of the number of streams, 1.
        Adjacency and unit are the plan's. They are noisy for public records too. Assumes that a record's figures
        depend on that record and on released weights alone.

    Raises:
        BudgetError: the plan has reserved no such releases, or does not belong to the model.
    """
    from raptor.accounting.plan import read_plan
    from raptor.dp.plan import DIAGNOSTICS
    from raptor.dp.training import random_source
    from raptor.moe.language import load_tuned
    from raptor.pipelines.evaluation.consistency import require_certified
    from raptor.pipelines.evaluation.diagnostics import exact_tallies, release_tallies
    from raptor.pipelines.evaluation.noise import release_once
    from raptor.pipelines.training.planning import require_planned
    from raptor.pipelines.training.records import encoded_records

    if not training.diagnostics:
        return {}, [{"stream": DIAGNOSTICS, "releases": 0, "why": "training.diagnostics asks for none"}]
    plan = read_plan(privacy_plan)
    require_planned(plan, training)
    require_certified(plan, privacy_ledger, raptor_model)
    records = encoded_records(private_train, owner_partition, plan.layers)
    records.require_unit(plan.unit)
    tallies = exact_tallies(load_tuned(raptor_model), records, plan, training)
    content = release_once(
        plan.stream(DIAGNOSTICS),
        plan,
        raptor_model,
        release_journals,
        random_source(training),
        lambda mechanism: release_tallies(tallies, mechanism, plan),
    )
    return content["tables"], content["log"]


def diagnose_failure_modes(
    base_model: Path,
    raptor_model: Path,
    public_corpus: Any,
    routing_profile: Mapping[str, Any],
    privacy_plan: Mapping[str, Any],
    training: TrainingConfig,
    evaluation: EvaluationConfig,
) -> dict[str, Any]:
    """The three failure modes, the public denominator and drift, at the released model on public texts.

    No private record is an input, so nothing is released beyond the model, which is released already.

    Raises:
        BudgetError: the parameters are not those of the plan.
    """
    from raptor.accounting.plan import read_plan
    from raptor.pipelines.evaluation.public_diagnostics import diagnose_publicly
    from raptor.pipelines.training.planning import require_planned

    plan = read_plan(privacy_plan)
    require_planned(plan, training)
    return diagnose_publicly(
        base_model, raptor_model, public_corpus, routing_profile, plan, training, evaluation.failure_modes
    )


def draw_figures(
    evaluation_metrics: Mapping[str, Any], label_names: Sequence[str], privacy_certificate: Mapping[str, Any]
) -> tuple[Figure, Figure, Figure]:
    """Accuracy of all methods, confusion matrix and calibration of the private model; released numbers only."""
    from raptor.reporting.completion_report import completion_figure
    from raptor.reporting.completions import CompletionComparison
    from raptor.reporting.evaluation import evaluation_from_json
    from raptor.reporting.figures import accuracy_comparison, calibration, confusion_matrix, message
    from raptor.reporting.methods import RAPTOR
    from raptor.reporting.report import NO_CLASSES, UNREADABLE, method_bars

    comparison = evaluation_from_json(evaluation_metrics)
    if not comparison.is_measurable:
        return message(UNREADABLE), message(UNREADABLE), message(UNREADABLE)
    if isinstance(comparison, CompletionComparison):
        drawn = completion_figure(comparison, float(privacy_certificate["epsilon"]))
        return drawn, message(NO_CLASSES), message(NO_CLASSES)
    tables = comparison.tables[RAPTOR]
    return (
        accuracy_comparison(method_bars(comparison, float(privacy_certificate["epsilon"]))),
        confusion_matrix(tables, label_names),
        calibration(tables),
    )


def write_report(
    evaluation_metrics: Mapping[str, Any],
    label_names: Sequence[str],
    privacy_plan: Mapping[str, Any],
    privacy_certificate: Mapping[str, Any],
    routing_profile: Mapping[str, Any],
    layer_plan: Mapping[str, Any],
    audit_results: Mapping[str, Any] | None,
    failure_modes: Mapping[str, Any],
    privacy: PrivacyConfig,
    training: TrainingConfig,
    evaluation: EvaluationConfig,
) -> str:
    """The report as one self-contained HTML page, from released and public values only.

    `audit_results` is None or empty where no audit was made.
    """
    from raptor import __version__
    from raptor.pipelines.evaluation.consistency import require_one_run, require_same_model
    from raptor.pipelines.selection.figure import draw
    from raptor.pipelines.selection.profile import headline
    from raptor.reporting.audit import read_audit
    from raptor.reporting.diagnostics import read_diagnosis
    from raptor.reporting.evaluation import evaluation_from_json
    from raptor.reporting.guarantee import read_guarantee
    from raptor.reporting.report import ReportInputs, flat_parameters, render_report

    routing = draw(dict(routing_profile), dict(layer_plan))
    for axes in routing.axes:
        # The page has the headline beside the figure, where it can wrap.
        axes.set_title("", loc="left")
    require_one_run(evaluation_metrics, privacy_plan, privacy_certificate, privacy, training)
    require_same_model(failure_modes, privacy_certificate)
    return render_report(
        ReportInputs(
            comparison=evaluation_from_json(evaluation_metrics),
            labels=label_names,
            guarantee=read_guarantee(privacy_plan, privacy_certificate),
            routing=routing,
            routing_headline=headline(dict(layer_plan)),
            parameters={
                "privacy": flat_parameters(privacy),
                "training": flat_parameters(training),
                "evaluation": flat_parameters(evaluation),
            },
            certificate=CERTIFICATE,
            audit=read_audit(audit_results, privacy_plan),
            diagnosis=read_diagnosis(failure_modes, routing_profile),
            version=__version__,
        )
    )
