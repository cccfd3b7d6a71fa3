"""The engines of each method's private streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from raptor.dp.clipping import ClippedSum, ClippingRule, Scales
from raptor.dp.config import TrainingConfig
from raptor.dp.gradients.engine import GradientEngine, JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import residual_weights
from raptor.dp.isolation import EngineSpec
from raptor.dp.methods import ONE_STREAM, Method
from raptor.dp.plan import EXPERT, MONOLITHIC, SHARED
from raptor.dp.records import Batch
from raptor.dp.trainable import TrainableSet
from raptor.errors import ModelError


def engine_specs(
    trainable: TrainableSet,
    layers: Sequence[int],
    config: TrainingConfig,
    method: Method = "raptor",
    expert_norms: Sequence[float] = (),
) -> list[EngineSpec]:
    """The engines of a method's private streams, by the streams' names; a stream without steps has none.

    The isolation gate checks what this gives, and the trainer uses what this gives.

    Args:
        expert_norms: clipping norm of each expert over the common one (`StreamPlan.block_norms`), where the experts
            have a clip of their own; none where all have the common norm.
    """
    single = ONE_STREAM.get(method)
    if single is not None and single.by_role:
        # Checked one by one: what they do is put together afterwards (`RoleGradients`).
        return [_shared_spec(trainable), _expert_spec(trainable, layers, config, expert_norms)]
    if single is not None:
        names = trainable.of(single.scope)
        return (
            [EngineSpec(MONOLITHIC, lambda model: JointGradients(model, names))] if single.is_private else []
        )
    specs = []
    if config.shared.steps_per_cycle:
        specs.append(_shared_spec(trainable))
    if config.expert.steps_per_cycle:
        specs.append(_expert_spec(trainable, layers, config, expert_norms))
    return specs


def _shared_spec(trainable: TrainableSet) -> EngineSpec:
    return EngineSpec(SHARED, lambda model: JointGradients(model, trainable.shared))


def _expert_spec(
    trainable: TrainableSet, layers: Sequence[int], config: TrainingConfig, norms: Sequence[float]
) -> EngineSpec:
    """The expert stream: a record feeds its owner alone, or all its active experts under one clip.

    Of several protected layers it has one owner each, and what it feeds in all of them is clipped as one vector.

    With residual weights a record's gradient is weighted by what the model without the experts' updates leaves, before
    it is clipped. Where expert e has the norm r_e C, its gradients are divided by r_e before the clip, and its noisy
    sum is multiplied by r_e again.

    Guarantee: under both rules one record moves the concatenation of all experts' sums, each over r_e, by at most C, so
    that the release is the same Gaussian mechanism: noise of deviation sigma r_e C on expert e's sum, to which a record
    that feeds it alone adds at most r_e C. Whose blocks that norm is spent on is a choice of utility alone.
    """
    weights = residual_weights if config.residual_weights else None
    factors = [1.0 / norm for norm in norms]
    if config.owners == "active":
        return EngineSpec(
            EXPERT,
            lambda model: JointGradients(model, trainable.expert, weights=weights, factors=factors),
            weights=weights,
        )
    return EngineSpec(
        EXPERT,
        lambda model: OwnerExpertGradients(
            model, layers, parameters=trainable.expert, weights=weights, factors=factors
        ),
        tuple(layers),
        weights,
    )


def role_norm(config: TrainingConfig) -> float:
    """Norm of a record over both roles, each clipped for itself: sqrt(C_s^2 + C_e^2)."""
    return math.hypot(config.shared.norm, config.expert.norm)


def role_shares(config: TrainingConfig) -> dict[str, float]:
    """Share a_r of each role in a release of both: its noise multiplier is that of the release over a_r.

    The noise on role r has the deviation (sigma / a_r) C_r, and the squares of the shares add up to 1. With common
    noise it is the same for all coordinates, so that a_r is C_r / sqrt(C_s^2 + C_e^2); with weighted noise
    a_r is 1 / w_r over the norm of both, so that the noise multipliers are in the ratio of the weights w_r.
    """
    streams = {SHARED: config.shared, EXPERT: config.expert}
    if config.role_noise == "common":
        sizes = {role: stream.norm for role, stream in streams.items()}
    else:
        sizes = {role: 1.0 / stream.noise_weight for role, stream in streams.items()}
    whole = math.hypot(*sizes.values())
    return {role: size / whole for role, size in sizes.items()}


class RoleGradients:
    """Both roles on one sample, each clipped for itself.

    Guarantee:
        Released is nothing. A record contributes at most C_r to the sum of role r, which is then scaled by the
        public a_r C / C_r, where C is sqrt(C_s^2 + C_e^2) and a_s^2 + a_e^2 = 1: at most a_r C, and at most C to both
        roles as one vector. So it is one Gaussian release of sensitivity C on one sample, in which the role has the
        noise multiplier sigma_r = sigma / a_r for its own norm: 1 / sigma^2 = 1 / sigma_s^2 + 1 / sigma_e^2. Assumes
        what the two engines assume, and that no parameter is in both.
    """

    def __init__(self, engines: Mapping[str, GradientEngine], config: TrainingConfig) -> None:
        """`engines` are those of the streams shared and expert."""
        total = role_norm(config)
        norms = {SHARED: config.shared.norm / total, EXPERT: config.expert.norm / total}
        shares = role_shares(config)
        self._parts = [(engines[role], norms[role], shares[role] / norms[role]) for role in norms]
        self.parameters = tuple(name for engine, _, _ in self._parts for name in engine.parameters)
        if len(set(self.parameters)) < len(self.parameters):
            raise ModelError("A parameter has both roles, so that it would be clipped twice.")
        self._of_roles = {
            name: scale for engine, _, scale in self._parts if scale != 1.0 for name in engine.parameters
        }
        inside = {name: scale for engine, _, _ in self._parts for name, scale in engine.scales.items()}
        self.scales: Scales = {
            name: self._of_roles.get(name, 1.0) * inside.get(name, 1.0)
            for name in {**self._of_roles, **inside}
        }

    def clipped_sum(self, batch: Batch, rule: ClippingRule) -> ClippedSum:
        """The sums of both roles; `rule` has the norm of both together."""
        tensors: dict[str, Tensor] = {}
        nonfinite = 0
        for engine, norm, _ in self._parts:
            part = engine.clipped_sum(batch, replace(rule, norm=rule.norm * norm))
            nonfinite += part.nonfinite
            tensors |= part.tensors
        for name, scale in self._of_roles.items():
            tensors[name].mul_(scale)
        return ClippedSum(tensors, rule.sensitivity, nonfinite, self.scales)
