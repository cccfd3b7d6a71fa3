"""Which parameters are trained, in each role: the one place where `training.trainable` is resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching

from torch import nn

from raptor.dp.config import TrainingConfig
from raptor.dp.isolation.synthetic import token_table
from raptor.dp.methods import Scope
from raptor.errors import ParameterError
from raptor.moe.adapters import add_lora
from raptor.moe.roles import expert_parameters, shared_parameters

HEAD = "head."
EMBEDDINGS = "embeddings"
"""In `training.frozen` the table of token embeddings, whatever it is called; with it a head that is tied to it."""
NOTHING_LEFT = "training.frozen leaves no shared parameter to train."


@dataclass(frozen=True)
class TrainableSet:
    """Names of the trained parameters of a model. Public: they follow from the model and the parameters.

    Attributes:
        words: `TrainingConfig.trainable_set`.
        shared: those of the shared stream.
        expert: those of the expert stream, all in the protected layers.
        joint: those of the baselines, which know no roles: with adapters the very same parameters, otherwise
            the shared ones and the experts of all layers.
        sizes: numbers in each parameter named above.
        total: numbers in the whole model.
    """

    words: str
    shared: tuple[str, ...]
    expert: tuple[str, ...]
    joint: tuple[str, ...]
    sizes: Mapping[str, int]
    total: int

    def of(self, scope: Scope) -> tuple[str, ...]:
        """The names of a scope."""
        return {
            "shared": self.shared,
            "expert": self.expert,
            "protected": self.shared + self.expert,
            "joint": self.joint,
        }[scope]

    @property
    def all_experts(self) -> frozenset[str]:
        """Trained parameters of experts, in any layer."""
        return frozenset(self.expert + self.joint) - frozenset(self.shared)

    def count(self, names: Sequence[str]) -> int:
        """How many numbers some of the parameters hold."""
        return sum(self.sizes[name] for name in names)

    def table(self) -> str:
        """Roles, parameters and sizes, one line for all that differ in numbers of blocks and experts only."""
        rows = [("role", "parameters", "tensors", "numbers")]
        for role, names in (("shared", self.shared), ("expert", self.expert)):
            groups: dict[str, list[str]] = {}
            for name in names:
                groups.setdefault(re.sub(r"\d+", "*", name), []).append(name)
            rows += [
                (role, _common(found), f"{len(found):,}", f"{self.count(found):,}")
                for found in groups.values()
            ]
            rows.append((role, "in all", f"{len(names):,}", f"{self.count(names):,}"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            f"{role:<{widths[0]}}  {name:<{widths[1]}}  {tensors:>{widths[2]}}  {numbers:>{widths[3]}}"
            for role, name, tensors, numbers in rows
        ]
        trained = self.count(self.shared + self.expert)
        heading = f"Trained ({self.words}): {trained:,} of {self.total:,} numbers of the model."
        return "\n  ".join([heading, *lines])


def _common(names: Sequence[str]) -> str:
    """One pattern for names that differ in numbers only: a star where they differ."""
    columns = zip(*(name.split(".") for name in names), strict=True)
    parts = [parts[0] if len(set(parts)) == 1 else re.sub(r"\d+", "*", parts[0]) for parts in columns]
    return ".".join(parts)


def make_trainable(model: nn.Module, config: TrainingConfig, layers: Sequence[int]) -> TrainableSet:
    """Put adapters on the model where the parameters ask for them, in place, and say what is trained.

    Args:
        model: a sparse classifier.
        config: `trainable`, `lora` and `frozen` count.
        layers: the protected sparse layers.

    Raises:
        ParameterError: a pattern matches nothing, nothing is left in the shared role, or the rank is too large.
        ModelError: the model has adapters already, or an adapter is not possible.
    """
    kept = _not_frozen(shared_parameters(model), _patterns(model, config.frozen))
    if config.trainable == "full":
        experts = expert_parameters(model, layers)
        return _trainable_set(model, config, kept, experts, expert_parameters(model))
    lora = config.lora
    adapters = set(
        add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, expert_layers=list(layers))
    )
    # An adapter is frozen with the weight that it is on; what is neither adapter nor head is never trained.
    shared = tuple(
        name
        for name in shared_parameters(model)
        if (name in adapters or name.startswith(HEAD)) and re.sub(r"\.lora_[ab]", "", name) in kept
    )
    if not shared:
        raise ParameterError(NOTHING_LEFT)
    experts = tuple(name for name in expert_parameters(model, layers) if name in adapters)
    return _trainable_set(model, config, shared, experts, experts)


def _trainable_set(
    model: nn.Module,
    config: TrainingConfig,
    shared: tuple[str, ...],
    experts: tuple[str, ...],
    all_experts: tuple[str, ...],
) -> TrainableSet:
    joint = shared + all_experts
    sizes = {name: model.get_parameter(name).numel() for name in joint}
    total = sum(parameter.numel() for parameter in model.parameters())
    return TrainableSet(config.trainable_set, shared, experts, joint, sizes, total)


def _patterns(model: nn.Module, frozen: Sequence[str]) -> list[str]:
    """Patterns of frozen parameters, `EMBEDDINGS` by the name that the table has in this model."""
    table = token_table(model)
    names = [name for name, value in model.named_parameters() if table is not None and value is table.weight]
    return [pattern for given in frozen for pattern in (names if given == EMBEDDINGS else [given])]


def _not_frozen(names: Sequence[str], frozen: Sequence[str]) -> tuple[str, ...]:
    """The names that no pattern of frozen parameters matches."""
    for pattern in frozen:
        if not matching(names, pattern):
            raise ParameterError(
                f"training.frozen has the pattern {pattern!r}, which matches no shared parameter."
            )
    out = {name for pattern in frozen for name in matching(names, pattern)}
    kept = tuple(name for name in names if name not in out)
    if not kept:
        raise ParameterError(NOTHING_LEFT)
    return kept
