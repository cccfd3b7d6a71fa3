"""The released model on public texts: failure modes, public denominator, drift. No private record is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raptor.accounting.certificate import model_digest
from raptor.accounting.plan import PrivacyPlan
from raptor.diagnostics.drift import drift_between, drift_grid, owner_stability, routed_tokens
from raptor.diagnostics.failure_modes import QUANTILES, diagnose, plain
from raptor.diagnostics.gradients import BATCH
from raptor.dp.config import TrainingConfig
from raptor.dp.plan import EXPERT
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import make_trainable
from raptor.errors import ModelError
from raptor.moe.classifier import MoEClassifier, load_encoder
from raptor.moe.language import load_tuned
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import Vote, record_votes
from raptor.pipelines.evaluation.config import FailureModesConfig
from raptor.pipelines.ingestion.encoding import load_tokenizer
from raptor.progress import working
from raptor.text.encoding import encode_texts, pad_batch

logger = logging.getLogger(__name__)

DRAWN = "drawn from the trained model's own answers"
FRESH = "The trained adapters are folded into the model, so new ones on it were measured."
COMMON = "Norms of single experts and residual weights were left aside."
FIRST = "Of several protected layers the first is shown, as if its experts alone were trained."
# The texts and the draws are public, and the same ones make two runs comparable.
SEED = 0


def diagnose_publicly(
    base_model: Path,
    raptor_model: Path,
    public_corpus: Any,
    routing_profile: Mapping[str, Any],
    plan: PrivacyPlan,
    training: TrainingConfig,
    config: FailureModesConfig,
) -> dict[str, Any]:
    """`failure_modes`: see `raptor.diagnostics`; with `enabled` false, or a reason in `left_out`, nothing else.

    The public corpus has no labels of the private task. Each text gets one that is drawn from the probabilities the
    trained model gives it: right for norms as far as the model is calibrated, and without any direction that texts
    would agree on, since at its own answers a model has nothing to learn on average.

    Args:
        public_corpus: table with the column `text`.
        routing_profile: of the same corpus; loads come from all of it.
    """
    if not config.enabled:
        return {"enabled": False}
    result: dict[str, Any] = {"enabled": True, "model": model_digest(raptor_model), "layer": plan.layers[0]}
    if plan.find(EXPERT) is None:
        return {**result, "left_out": "The plan has no expert stream, so there are no roles to compare."}
    layer = plan.layers[0]
    vote: Vote = routing_profile["owner_vote"]
    model = load_tuned(raptor_model)
    if not isinstance(model, MoEClassifier):
        return {**result, "left_out": "These diagnostics are of classifiers, and this model continues texts."}
    with working("Diagnosing the trained model on public text"):
        texts = public_corpus["text"][: config.records]
        records = public_records(texts, base_model, model, layer, vote, int(routing_profile["max_length"]))
        drift = _drift(base_model, model, records, layer, vote)
        trainable = make_trainable(model, training, [layer])
        found = diagnose(
            model, records, public_loads(routing_profile, layer), trainable, training, plan, SEED
        )
    stream = plan.stream(EXPERT)
    logger.info(
        "Failure modes on %d public texts: one clip over everything would leave the experts %.0f %% of what their own "
        "clip leaves them",
        len(records),
        100 * found.roles[EXPERT].interference.retained,
    )
    return {
        **result,
        "vote": vote,
        "labels": DRAWN,
        "caveats": caveats(training, len(plan.layers)),
        "batch_size": training.batch(training.expert),
        "optimizer": training.optimizer,
        "noise_of_a_number": stream.noise_multiplier * stream.clipping_norm / stream.denominator,
        "adam_epsilon": training.adam_epsilon,
        "quantiles": list(QUANTILES),
        **plain(found),
        "drift": drift,
    }


def caveats(training: TrainingConfig, layers: int = 1) -> list[str]:
    """In what the measured gradients are not those of the training."""
    has_own = training.expert_norms != "common" or training.residual_weights
    return [FRESH] * (training.trainable == "lora") + [COMMON] * has_own + [FIRST] * (layers > 1)


def public_records(
    texts: Sequence[str], base_model: Path, model: MoEClassifier, layer: int, vote: Vote, max_length: int
) -> EncodedRecords:
    """Public texts with owners by the base model, as private records get them, and labels drawn by the trained one."""
    tokenizer = load_tokenizer(base_model)
    ids, mask = (
        torch.from_numpy(part)
        for part in pad_batch(encode_texts(tokenizer, texts, None, max_length), tokenizer.pad_token_id)
    )
    owners = assign_owners(record_votes(load_encoder(base_model), ids, mask, vote=vote)[layer])
    with torch.no_grad():
        starts = range(0, len(ids), BATCH)
        parts = [model(ids[start : start + BATCH], mask[start : start + BATCH]) for start in starts]
    logits = torch.cat(parts)
    labels = drawn_labels(logits.double().softmax(dim=1).numpy(), np.random.default_rng(SEED))
    return EncodedRecords(ids.int(), mask.sum(dim=1), torch.from_numpy(labels), owners)


def drawn_labels(probabilities: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
    """One label for each row of (records, classes) probabilities, drawn by them."""
    heights = probabilities.cumsum(axis=1)
    coins = generator.random((len(heights), 1)) * heights[:, -1:]
    labels: NDArray[np.int64] = (heights <= coins).sum(axis=1).astype(np.int64)
    return labels


def public_loads(routing_profile: Mapping[str, Any], layer: int) -> NDArray[np.float64]:
    """Owner shares of the whole public corpus at a layer."""
    (row,) = (row for row in routing_profile["layers"] if row["layer"] == layer)
    counts = np.array(row["counts"], dtype=np.float64)
    loads: NDArray[np.float64] = counts / counts.sum()
    return loads


def _drift(
    base_model: Path, model: MoEClassifier, records: EncodedRecords, layer: int, vote: Vote
) -> dict[str, Any]:
    try:
        before, router = routed_tokens(load_encoder(base_model), records.input_ids, records.lengths, layer)
        after, same = routed_tokens(model.encoder, records.input_ids, records.lengths, layer)
    except ModelError as error:
        # A router of another kind: everything else can still be told.
        return {"left_out": str(error)}
    found = drift_between(before, after, (router, same), vote)
    stability = owner_stability(before, router, vote, drift_grid(found.norm).tolist())
    result: dict[str, Any] = plain(found)
    return {**result, "stability": plain(stability)}
