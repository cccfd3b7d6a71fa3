"""The methods of the benchmark: a few words of configuration each, over one mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.methods import ONE_STREAM, Method

LayerRule = Literal["chosen", "first", "last", "all"]


@dataclass(frozen=True)
class Recipe:
    """How a method differs from RAPTOR on the same bed.

    Attributes:
        title: for tables and figures.
        method: what it trains, in how many streams.
        trainable: full or lora where the method says so itself; None takes the bed's.
        layer: which sparse layers are protected.
        is_split: whether the budget is split between the streams as in the paper, instead of one ledger.
        of: the recipe that this one is with one lever moved; it takes that one's step sizes where it has none.
        changes: what the lever is, as parameters of training that differ from the bed's.
    """

    title: str
    method: Method
    trainable: Literal["full", "lora"] | None = None
    layer: LayerRule = "chosen"
    is_split: bool = False
    of: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether the lever is measured on the public corpus, so that the outcome depends on it."""
        return "auto" in str(self.changes) or "public" in str(self.changes)

    @property
    def is_private(self) -> bool:
        return self.method not in ONE_STREAM or ONE_STREAM[self.method].is_private

    def training(
        self,
        bed: TrainingConfig,
        step_size: float,
        expert_step_size: float,
        full_frozen: Sequence[str],
        full_step_sizes: Mapping[str, float],
    ) -> TrainingConfig:
        """The bed's training with this method's trainable set and step sizes.

        Args:
            step_size: factor on all step sizes, tuned for each method alike on sets that are not reported.
            expert_step_size: a further factor on those of experts.
            full_frozen: what methods that train everything leave out.
            full_step_sizes: step sizes of shared and expert parameters where whole weights are trained and not
                adapters, which bear other steps.
        """
        changed = bed.model_dump(mode="python", exclude_unset=True)
        if self.trainable is not None:
            # Trains everything, also what the bed leaves out of the shared part.
            frozen = tuple(full_frozen) if self.trainable == "full" else ()
            changed |= {"trainable": self.trainable, "frozen": frozen}
            if self.trainable == "full":
                changed.pop("lora", None)
                for name, rate in full_step_sizes.items():
                    changed[name] = {**changed.get(name, {}), "learning_rate": rate}
        for name, value in self.changes.items():
            changed[name] = {**changed.get(name, {}), **value} if isinstance(value, Mapping) else value
        config = TrainingConfig.model_validate(changed)
        head = config.head_learning_rate
        streams = {
            name: stream.model_copy(update={"learning_rate": factor * stream.learning_rate})
            for name, stream, factor in (
                ("shared", config.shared, step_size),
                ("expert", config.expert, step_size * expert_step_size),
            )
        }
        return config.model_copy(
            update={**streams, "head_learning_rate": None if head is None else step_size * head}
        )

    def privacy(self, epsilon: float, delta: float, rho: float) -> PrivacyConfig:
        """The budget; non-private methods get one too, since the plan fixes their sampler, and never use it."""
        split = {"accounting": "split", "rho": rho} if self.is_split else {}
        return PrivacyConfig.model_validate({"epsilon": epsilon, "delta": delta, **split})

    def protected(self, chosen: Sequence[int], sparse: Sequence[int]) -> tuple[int, ...]:
        """The protected layers among the sparse ones, `chosen` being those of the layer plan."""
        return {
            "chosen": tuple(chosen),
            "first": (min(sparse),),
            "last": (max(sparse),),
            "all": tuple(sparse),
        }[self.layer]


RAPTOR = "raptor"
# Name behind that of the recipe -> title, and parameters of training that differ from the bed's.
_ANY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bc": ("DP-AdamBC", {"optimizer": "adam_bc"}),
    "sgd": ("SGD with momentum", {"optimizer": "sgd"}),
}
_ROLES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **_ANY,
    "norms": (
        "norms of public records",
        {"shared": {"clipping_norm": "auto"}, "expert": {"clipping_norm": "auto"}},
    ),
    "expert_norms": ("norms by expert", {"expert_norms": "auto"}),
    "steps": ("step sizes by expert", {"expert_steps": "public"}),
    "residual": ("residual weights", {"residual_weights": True}),
}


def _levers(of: str, method: Method, title: str, levers: Mapping[str, tuple[str, Any]]) -> dict[str, Recipe]:
    return {
        f"{of}_{name}": Recipe(f"{title}, {what}", method, of=of, changes=changes)
        for name, (what, changes) in levers.items()
    }


LEVERS: Mapping[str, Recipe] = {
    **_levers(RAPTOR, "raptor", "RAPTOR", _ROLES),
    **_levers(
        RAPTOR, "raptor", "RAPTOR", {"batch": ("batches of 512 for experts", {"expert": {"batch_size": 512}})}
    ),
    **_levers("raptor_together", "together", "roles on one sample", _ROLES),
    **_levers(
        "raptor_together",
        "together",
        "roles on one sample",
        {
            "calm": (
                "experts with four times the noise multiplier",
                {"role_noise": "weighted", "expert": {"noise_weight": 4.0}},
            ),
            "loud": (
                "one noise multiplier for both roles",
                {"role_noise": "weighted", "expert": {"noise_weight": 1.0}},
            ),
        },
    ),
    **_levers("scope_a", "matched", "matched scope A", _ANY),
}
"""Recipes with one lever moved, each to be compared with the one that it is of, at the same number of releases."""
RECIPES: Mapping[str, Recipe] = {
    RAPTOR: Recipe("RAPTOR, one ledger", "raptor"),
    "raptor_split": Recipe(
        # The split says how much noise each stream gets, so it goes with no weights of its own.
        "RAPTOR, the paper's split",
        "raptor",
        is_split=True,
        changes={"shared": {"noise_weight": 1.0}, "expert": {"noise_weight": 1.0}},
    ),
    "raptor_together": Recipe("RAPTOR, roles clipped on one sample", "together"),
    "monolithic": Recipe("monolithic, full", "monolithic", trainable="full"),
    "monolithic_lora": Recipe("monolithic, LoRA", "monolithic", trainable="lora"),
    "scope_a": Recipe("matched scope A: one clip, one noise", "matched"),
    "scope_b": Recipe("matched scope B: shared only", "shared_only"),
    "scope_c": Recipe("matched scope C: experts only", "experts_only"),
    "raptor_first": Recipe("RAPTOR, first sparse layer", "raptor", layer="first", of=RAPTOR),
    "raptor_last": Recipe("RAPTOR, last sparse layer", "raptor", layer="last", of=RAPTOR),
    "raptor_layers": Recipe("RAPTOR, all sparse layers protected", "raptor", layer="all", of=RAPTOR),
    "raptor_together_layers": Recipe(
        "roles on one sample, all sparse layers protected", "together", layer="all", of="raptor_together"
    ),
    "nonprivate": Recipe("no privacy, full", "nonprivate", trainable="full"),
    "nonprivate_lora": Recipe("no privacy, LoRA", "nonprivate", trainable="lora"),
    "nonprivate_a": Recipe("no privacy, shared and experts", "nonprivate_matched"),
    "nonprivate_b": Recipe("no privacy, shared only", "nonprivate_shared"),
    **LEVERS,
}
"""Name in parameters and results -> recipe."""
BASELINES = ("monolithic", "monolithic_lora", "scope_a", "scope_b", "scope_c")
"""The private methods that RAPTOR is compared with; its own variants are not among them."""
OURS = (
    RAPTOR,
    "raptor_together",
    "raptor_split",
    "raptor_first",
    "raptor_last",
    "raptor_layers",
    "raptor_together_layers",
)
"""RAPTOR and its variants; the first one is what the goals are about."""
HEADROOM = ("nonprivate_a", "nonprivate_b")
"""What experts add without privacy: the first minus the second."""


def factor(factors: Mapping[str, float], name: str) -> float:
    """The factor of a recipe; where it has none, that of the recipe that it is a lever of; 1 without both."""
    parent = RECIPES[name].of
    return factors.get(name, 1.0 if parent is None else factors.get(parent, 1.0))
