"""The methods that are compared, as data: what each trains, with how many streams, and with privacy or without.

All of them run on one engine, sampler, accountant and schedule. RAPTOR (arXiv 2609.05770) has a stream for each
role. The others are one stream with as many steps as both streams of RAPTOR have together: monolithic training
(Tholoniat et al., arXiv 2402.07334; with adapters Yu et al., arXiv 2110.06500) over everything, and the matched
scopes A (RAPTOR's parameters, one clip and one noise), B (its shared parameters) and C (its experts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from raptor.dp.config import TrainingConfig
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.isolation import EngineSpec
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.trainable import Scope, TrainableSet

Method = Literal[
    "raptor",
    "monolithic",
    "matched",
    "shared_only",
    "experts_only",
    "nonprivate",
    "nonprivate_matched",
    "nonprivate_shared",
]


@dataclass(frozen=True)
class OneStream:
    """A method without roles.

    Attributes:
        scope: the parameters that its single stream trains.
        is_private: False for training without clipping and noise, on public records only.
    """

    scope: Scope
    is_private: bool = True


ONE_STREAM: Mapping[Method, OneStream] = {
    "monolithic": OneStream("joint"),
    "matched": OneStream("protected"),
    "shared_only": OneStream("shared"),
    "experts_only": OneStream("expert"),
    "nonprivate": OneStream("joint", is_private=False),
    "nonprivate_matched": OneStream("protected", is_private=False),
    "nonprivate_shared": OneStream("shared", is_private=False),
}
"""Every method but RAPTOR."""


def engine_specs(
    trainable: TrainableSet, layer: int, config: TrainingConfig, method: Method = "raptor"
) -> list[EngineSpec]:
    """The engines of a method's private streams, by the streams' names; a stream without steps has none.

    The isolation gate checks what this gives, and the trainer uses what this gives.
    """
    single = ONE_STREAM.get(method)
    if single is not None:
        names = trainable.of(single.scope)
        return (
            [EngineSpec(MONOLITHIC, lambda model: JointGradients(model, names))] if single.is_private else []
        )
    specs = []
    if config.shared.steps_per_cycle:
        specs.append(EngineSpec(SHARED, lambda model: JointGradients(model, trainable.shared)))
    if config.expert.steps_per_cycle:
        specs.append(_expert_spec(trainable, layer, config))
    return specs


def _expert_spec(trainable: TrainableSet, layer: int, config: TrainingConfig) -> EngineSpec:
    """The expert stream: a record feeds its owner alone, or all its active experts under one clip.

    Guarantee: under both rules one record moves the concatenation of all experts' sums by at most C, so that the
    release is the same Gaussian mechanism. Whose blocks that norm is spent on is a choice of utility alone.
    """
    if config.owners == "active":
        return EngineSpec(EXPERT, lambda model: JointGradients(model, trainable.expert))
    return EngineSpec(
        EXPERT, lambda model: OwnerExpertGradients(model, layer, parameters=trainable.expert), (layer,)
    )
