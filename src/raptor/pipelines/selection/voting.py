"""Owners of public records under both vote rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from raptor.errors import DataError
from raptor.moe.classifier import load_encoder
from raptor.moe.families import sparse_layers
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import Vote, record_votes
from raptor.moe.statistics import Owners
from raptor.pipelines.ingestion.encoding import load_tokenizer
from raptor.progress import track
from raptor.text.encoding import encode_texts, pad_batch

VOTES: tuple[Vote, Vote] = ("weight", "count")
BATCH = 256
"""Records of one forward pass."""


def public_owners(
    base_model: Path, texts: Sequence[str], max_length: int
) -> tuple[dict[str, dict[int, Owners]], dict[int, int]]:
    """Owners of every text in every sparse layer.

    Args:
        base_model: directory of the base model and its tokenizer.
        texts: public texts.
        max_length: tokens of a text that are read.

    Returns:
        Vote rule to layer index to ``(N,)`` owners, and layer index to number of experts.

    Raises:
        DataError: there is no text.
        ModelError: the model has no sparse layer, or routes to no finite weight.
    """
    if not texts:
        raise DataError("The public corpus is empty. Set selection.corpus to a corpus with text.")
    tokenizer = load_tokenizer(base_model)
    encoder = load_encoder(base_model)
    ids = encode_texts(tokenizer, texts, None, max_length)
    inputs, mask = (torch.from_numpy(part) for part in pad_batch(ids, 0))
    # Records of like length share a pass, so that little of it is padding.
    order = np.argsort(mask.sum(dim=1).numpy(), kind="stable")
    layers = sparse_layers(encoder)
    owners: dict[str, dict[int, Owners]] = {
        vote: {layer.index: np.empty(len(ids), dtype=np.int64) for layer in layers} for vote in VOTES
    }
    for start in track(range(0, len(order), BATCH), "Routing public records"):
        rows = order[start : start + BATCH]
        for vote in VOTES:
            for layer, votes in record_votes(encoder, inputs[rows], mask[rows], vote=vote).items():
                owners[vote][layer][rows] = assign_owners(votes).numpy()
    return owners, {layer.index: layer.num_experts for layer in layers}
