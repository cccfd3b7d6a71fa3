"""Run a classifier over held-out records and count its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raptor.reporting.tables import EvaluationTables, tables_from_probabilities
from raptor.text.encoding import pad_batch

if TYPE_CHECKING:
    from raptor.moe.classifier import MoEClassifier


def score_model(
    model: MoEClassifier,
    heldout: Any,
    bins: int,
    batch_size: int,
    progress: Callable[[int], None] | None = None,
) -> EvaluationTables:
    """Exact, private tables of a model on records with the columns `input_ids` and `label`.

    Records of like length share a pass, which changes no answer: a record's logits depend on it alone.
    progress: called with the number of records done after each pass.
    """
    ids: list[list[int]] = list(heldout["input_ids"])
    labels = np.asarray(heldout["label"], dtype=np.int64)
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    probabilities = np.zeros((len(ids), model.num_labels))
    device = next(model.parameters()).device
    pad_id = int(model.encoder.config.pad_token_id or 0)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                tokens, mask = pad_batch([ids[index] for index in chosen], pad_id)
                logits = model(torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device))
                probabilities[chosen] = logits.double().softmax(dim=1).cpu().numpy()
                if progress is not None:
                    progress(len(chosen))
    finally:
        model.train(was_training)
    return tables_from_probabilities(probabilities, labels, bins)
