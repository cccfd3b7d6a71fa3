"""Run a model over held-out records and count its answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from raptor.dp.gradients.kernels import accumulate
from raptor.dp.records import IGNORED
from raptor.moe.classifier import MoEClassifier
from raptor.progress import track
from raptor.reporting.completions import CompletionTable, table_of
from raptor.reporting.tables import EvaluationTables, tables_from_probabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from raptor.dp.records import Batch, EncodedRecords
    from raptor.pipelines.evaluation.config import EvaluationConfig


def score(
    model: MoEClassifier | PreTrainedModel,
    records: EncodedRecords,
    evaluation: EvaluationConfig,
    device: torch.device,
    description: str,
) -> EvaluationTables | CompletionTable:
    """Exact, private tables of a model's answers, by what it answers with."""
    size = evaluation.batch_size
    if isinstance(model, MoEClassifier):
        return score_model(model, records, evaluation.calibration_bins, size, device, description)
    bound = evaluation.loss_bound
    largest = math.log(model.config.vocab_size) if bound == "auto" else bound
    return score_completions(model, records, largest, size, device, description)


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
            logits = model(*batch.inputs)
            # In float64 on the CPU: one accelerator lacks that type, and confidences must sum alike.
            probabilities.append(logits.cpu().double().softmax(dim=1).numpy())
            labels.append(batch.labels.cpu().numpy())
    return tables_from_probabilities(np.concatenate(probabilities), np.concatenate(labels), bins)


def score_completions(
    model: PreTrainedModel,
    records: EncodedRecords,
    loss_bound: float,
    batch_size: int,
    device: torch.device,
    description: str,
) -> CompletionTable:
    """The exact, private table of a language model's answers.

    One pass over prompt and completion tells both figures: greedy decoding gives the completion if and only if every
    one of its tokens is the likeliest after those before it, since then each step meets the prefix of this pass.
    Records of like length share a pass, padded behind their end, which a causal model never looks at.

    Args:
        model: moved to `device` and left there, in evaluation mode.
        records: the held-out records; their owners play no part.
        loss_bound: see `CompletionTable`.
        batch_size: records of one forward pass.
        description: words before the progress bar.
    """
    model = model.to(device).eval()  # type: ignore[arg-type]
    found = [np.zeros((3, 0))]
    batches = records.physical_batches(torch.arange(len(records)), batch_size, device)
    with torch.no_grad():
        for batch in track(batches, description, total=-(-len(records) // batch_size)):
            found.append(_completions(model, batch))
    losses, exact, counted = np.concatenate(found, axis=1)
    return table_of(losses, exact > 0, counted > 0, loss_bound)


def _completions(model: PreTrainedModel, batch: Batch) -> NDArray[np.float64]:
    """(3, records): mean loss of the completion's tokens, whether all are the likeliest, whether there are any."""
    output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    counted = batch.labels[:, 1:] != IGNORED
    # Of those tokens alone that count: all logits in one more copy would be the largest tensor by far.
    logits, targets = output.logits[:, :-1][counted], batch.labels[:, 1:][counted]
    token_losses = functional.cross_entropy(accumulate(logits), targets, reduction="none")
    is_wrong = (logits.argmax(dim=1) != targets) | ~torch.isfinite(token_losses)
    rows = counted.nonzero()[:, 0].cpu()
    numbers = counted.sum(dim=1).cpu()
    sums = torch.zeros(2, len(counted), dtype=torch.float64)
    sums.index_add_(1, rows, torch.stack([token_losses, is_wrong.to(token_losses)]).cpu().double())
    return torch.stack([sums[0] / numbers.clamp_min(1), sums[1] == 0, numbers > 0]).numpy()
