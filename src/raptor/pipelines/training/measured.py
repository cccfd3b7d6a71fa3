"""Constants of the mechanism that the parameters leave to public records, from the corpus of the selection stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from raptor.accounting.plan import PrivacyPlan
from raptor.dp.config import TrainingConfig
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.public_measures import load_steps, public_norms
from raptor.dp.records import EncodedRecords
from raptor.errors import ParameterError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.routing import Vote
from raptor.pipelines.ingestion.encoding import load_tokenizer
from raptor.pipelines.selection.voting import public_owners
from raptor.text.encoding import encode_texts, pad_batch

# As many public records give a median to a few percent.
MOST = 2048


@dataclass(frozen=True)
class Measured:
    """What was measured on public records; None and empty where no parameter asks for it.

    Attributes:
        shared, expert: clipping norms of the streams.
        experts: clipping norm of each expert.
        steps: step size of each expert over the stream's.
    """

    shared: float | None = None
    expert: float | None = None
    experts: tuple[float, ...] = ()
    steps: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**known)

    @classmethod
    def of_plan(cls, plan: PrivacyPlan) -> Self:
        """The streams' clipping norms as they stand in a plan."""
        shared, expert = plan.find(SHARED), plan.find(EXPERT)
        return cls(
            None if shared is None else shared.clipping_norm, None if expert is None else expert.clipping_norm
        )

    def settle(self, training: TrainingConfig) -> TrainingConfig:
        """The training with the measured clipping norms where they are auto."""
        return training.settled(self.shared, self.expert)

    def by_expert(self, training: TrainingConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Clipping norms over that of the stream, and step sizes over that of the stream; empty where all are alike.

        Raises:
            ParameterError: they were to be measured, and were not.
        """
        norms = training.expert_norms
        if (norms == "auto" and not self.experts) or (training.expert_steps == "public" and not self.steps):
            raise ParameterError(
                "training.expert_norms=auto and training.expert_steps=public need public records, and none were "
                "measured here. Give training.expert_norms as a list, and set training.expert_steps=same."
            )
        given = () if norms == "common" else self.experts if norms == "auto" else norms
        steps = self.steps if training.expert_steps == "public" else ()
        return tuple(norm / training.expert.norm for norm in given), steps


NOTHING = Measured()


def measure(
    base_model: Path,
    texts: Sequence[str],
    layers: Sequence[int],
    classes: int,
    training: TrainingConfig,
    vote: Vote,
    max_length: int,
) -> Measured:
    """Measure what the parameters leave to public records.

    Args:
        texts: the public corpus; the first `MOST` of them are used.
        layers: the protected layers, one where experts are told apart.
        classes: of the task, a public constant.
        vote, max_length: as in the selection stage.

    Raises:
        DataError: the corpus is empty, or no record of it has a gradient.
    """
    if not training.is_measured:
        return NOTHING
    texts = texts[:MOST]
    owners, experts = public_owners(base_model, texts, max_length)
    mine = [owners[vote][layer] for layer in layers]
    steps = load_steps(np.bincount(mine[0], minlength=experts[layers[0]]).tolist(), training.load_signal)
    if not training.is_clipped_by_public:
        return Measured(steps=steps)
    tokenizer = load_tokenizer(base_model)
    ids = encode_texts(tokenizer, texts, None, max_length)
    inputs, mask = (torch.from_numpy(part) for part in pad_batch(ids, tokenizer.pad_token_id))
    records = EncodedRecords(
        inputs.int(),
        mask.sum(dim=1).long(),
        torch.zeros(len(ids), dtype=torch.int64),
        torch.from_numpy(mine[0] if len(layers) == 1 else np.stack(mine, axis=1)),
    )
    model = MoEClassifier.from_encoder(base_model, classes).eval()
    norms = public_norms(model, records, layers, training, training.clipping_quantile)
    return Measured(norms.shared, norms.expert, norms.experts, steps)
