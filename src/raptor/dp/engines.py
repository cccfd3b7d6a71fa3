"""The engines of each method's private streams."""

from __future__ import annotations

from raptor.dp.config import TrainingConfig
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.isolation import EngineSpec
from raptor.dp.methods import ONE_STREAM, Method
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.trainable import TrainableSet


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
