"""Run a classifier over held-out records and count its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from raptor.progress import track
from raptor.reporting.tables import EvaluationTables, tables_from_probabilities

if TYPE_CHECKING:
    from raptor.dp.records import EncodedRecords
    from raptor.moe.classifier import MoEClassifier


def score_model(
    model: MoEClassifier,
    records: EncodedRecords,
    bins: int,
    batch_size: int,
    device: torch.device,
    description: str,
) -> EvaluationTables:
    """Exact, private tables of a model's answers.

    Records of like length share a pass, which changes no answer: a record's logits depend on it alone.

    Args:
        model: moved to `device` and left there, in evaluation mode.
        records: the held-out records; their owners play no part.
        bins: bins of the reliability table.
        batch_size: records of one forward pass.
        description: words before the progress bar.
    """
    model = model.to(device).eval()
    probabilities = [np.zeros((0, model.num_labels))]
    labels = [np.zeros(0, dtype=np.int64)]
    batches = records.physical_batches(torch.arange(len(records)), batch_size, device)
    with torch.no_grad():
        for batch in track(batches, description, total=-(-len(records) // batch_size)):
            logits = model(batch.input_ids, batch.attention_mask)
            # In float64 on the CPU: one accelerator lacks that type, and confidences must sum alike.
            probabilities.append(logits.cpu().double().softmax(dim=1).numpy())
            labels.append(batch.labels.cpu().numpy())
    return tables_from_probabilities(np.concatenate(probabilities), np.concatenate(labels), bins)
