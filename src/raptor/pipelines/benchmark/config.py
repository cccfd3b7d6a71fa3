"""Parameters of the benchmark."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from raptor.pipelines.benchmark.recipes import BASELINES, HEADROOM, RAPTOR, RECIPES

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def known_methods(methods: tuple[str, ...]) -> tuple[str, ...]:
    """The names as they are; ValueError where one is no method."""
    if unknown := [name for name in methods if name not in RECIPES]:
        raise ValueError(f"unknown methods {', '.join(unknown)}; known are {', '.join(RECIPES)}")
    return methods


Methods = Annotated[tuple[str, ...], AfterValidator(known_methods)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class AttackConfig(BaseModel):
    """Membership inference on models of the benchmark. All records are taken as public."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sets: tuple[str, ...] = Field(
        default=(), description="names of sets that are attacked where benchmark.sets has them"
    )
    methods: Methods = Field(
        default=(RAPTOR, "monolithic_lora", "scope_a", "nonprivate_a"), description="methods to attack"
    )
    epsilons: tuple[Positive, ...] = Field(default=(1.0, 8.0), description="budgets of the private ones")
    models: int = Field(
        default=16,
        ge=4,
        description="models of each method and budget, each trained on a random half of the records; each is attacked "
        "in turn, with the others as its shadow models",
    )
    records: int = Field(
        default=10_000, ge=20, description="most training records of a set, of which halves are"
    )
    control_methods: Methods = Field(
        default=("nonprivate_a",),
        description="methods that are attacked again after a training that is far too long; () for none",
    )
    control_cycles: int = Field(default=20, gt=0, description="training.cycles of that training")
    control_batch_size: int = Field(default=128, gt=0, description="training.batch_size of that training")
    false_rates: tuple[Rate, ...] = Field(
        default=(0.001, 0.01, 0.1), min_length=1, description="false-positive rates of the tables"
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="confidence of intervals and bounds")


class BenchmarkConfig(BaseModel):
    """Which methods are compared on which sets. All records of the sets are taken as public."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = Field(default=".", description="folder of the sets")
    sets: tuple[str, ...] = Field(
        default=(), description="names of Parquet files in the folder, or paths of their own"
    )
    methods: Methods = Field(
        default=(RAPTOR, "raptor_split", *BASELINES, *HEADROOM, "nonprivate", "nonprivate_lora"),
        min_length=1,
        description="methods to compare",
    )
    only: dict[str, tuple[str, ...]] = Field(
        default={}, description="method -> the sets that it is run on, where that is not all of them"
    )
    seeds: dict[str, int] = Field(
        default={"1": 5, "4": 3, "8": 3},
        min_length=1,
        description="epsilon -> number of seeds; methods without privacy get the smallest number",
    )
    epsilons: tuple[Positive, ...] | None = Field(
        default=None, min_length=1, description="some of the budgets; null for all"
    )
    most_seeds: int | None = Field(default=None, gt=0, description="at most so many seeds; null for all")
    step_sizes: dict[str, Positive] = Field(
        default={}, description="factor on all step sizes, by method; tuned on sets that are not reported"
    )
    expert_step_sizes: dict[str, Positive] = Field(
        default={}, description="a further factor on the step sizes of experts, by method"
    )
    full_frozen: tuple[str, ...] = Field(
        default=("*.shared.weight",), description="what methods that train everything leave as it is"
    )
    full_step_sizes: dict[Literal["shared", "expert"], Positive] = Field(
        default={"shared": 8e-3, "expert": 4e-3},
        description="peak step sizes where whole weights are trained, whatever the bed trains",
    )
    rho: float = Field(
        default=0.8, gt=0, lt=1, description="the paper's split: share of epsilon for shared parameters"
    )
    train_records: int = Field(default=10_000, gt=0, description="most training records of a set")
    test_records: int = Field(default=2_000, gt=0, description="most test records of a set")
    attacks: AttackConfig = Field(default=AttackConfig(), description="membership inference")

    @field_validator("only")
    @classmethod
    def _of_known_methods(cls, only: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        known_methods(tuple(only))
        return only

    @field_validator("step_sizes", "expert_step_sizes")
    @classmethod
    def _of_known(cls, factors: dict[str, float]) -> dict[str, float]:
        known_methods(tuple(factors))
        return factors

    @field_validator("seeds")
    @classmethod
    def _numbers(cls, seeds: dict[str, int]) -> dict[str, int]:
        for epsilon, number in seeds.items():
            try:
                value = float(epsilon)
            except ValueError:
                value = -1.0
            if not 0 < value < math.inf or number < 1:
                raise ValueError(
                    f"an epsilon above 0 and a number of seeds are needed, not {epsilon}: {number}"
                )
        return seeds

    def methods_on(self, dataset: str) -> tuple[str, ...]:
        """The methods that are run on a set."""
        return tuple(name for name in self.methods if dataset in self.only.get(name, (dataset,)))

    @property
    def budgets(self) -> dict[float, int]:
        """Epsilon -> number of seeds, of those that are to be run."""
        most = self.most_seeds or max(self.seeds.values(), default=0)
        chosen = {float(epsilon): min(number, most) for epsilon, number in self.seeds.items()}
        return {
            epsilon: number
            for epsilon, number in chosen.items()
            if self.epsilons is None or epsilon in self.epsilons
        }

    @model_validator(mode="after")
    def _known_budgets(self) -> Self:
        if self.epsilons is not None and not set(self.epsilons) <= {float(epsilon) for epsilon in self.seeds}:
            raise ValueError(
                f"benchmark.epsilons has a budget that benchmark.seeds gives no number of seeds: it has "
                f"{', '.join(self.seeds)}"
            )
        return self
