"""One run of the benchmark: a method on a set, at a budget, with a seed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raptor.accounting.accountant import epsilon as joint_epsilon
from raptor.accounting.plan import PrivacyPlan
from raptor.accounting.types import Adjacency, Event, Release
from raptor.dp.config import PrivacyConfig, TrainingConfig
from raptor.dp.methods import ONE_STREAM
from raptor.dp.training import Trainer, random_source, resolve_device
from raptor.errors import BudgetError
from raptor.moe.classifier import MoEClassifier
from raptor.pipelines.benchmark.config import BenchmarkConfig
from raptor.pipelines.benchmark.recipes import RECIPES, Recipe, factor
from raptor.pipelines.benchmark.sets import BenchmarkSet
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.evaluation.scoring import score_model
from raptor.pipelines.training.measured import Measured, measure
from raptor.pipelines.training.planning import monolithic_plan, raptor_plan, require_isolated

# Non-private methods take the sampler of a plan; what noise stands in it plays no part.
NO_BUDGET = 8.0
SCOPE = EvaluationScope(records_are_public=True, baselines=())


@dataclass(frozen=True)
class Cell:
    """What is run. `epsilon` is None for a method without privacy."""

    dataset: str
    method: str
    epsilon: float | None
    seed: int

    @property
    def key(self) -> tuple[str, str, float, int]:
        return (self.dataset, self.method, self.epsilon or 0.0, self.seed)


@dataclass(frozen=True)
class Trained:
    """A model that was just trained, with what it was trained by."""

    model: MoEClassifier
    trainer: Trainer
    plan: PrivacyPlan
    training: TrainingConfig
    releases: list[Release]


@dataclass(frozen=True)
class Corpus:
    """Public records of no set, for what levers measure on them; `vote` and `max_length` as in the selection stage."""

    texts: Sequence[str] = ()
    vote: Literal["weight", "count"] = "weight"
    max_length: int = 0


@dataclass
class Bed:
    """What all cells share, and what they need not do twice: plans, and the isolation gate."""

    base_model: Path
    layer_plan: Mapping[str, Any]
    sparse: tuple[int, ...]
    training: TrainingConfig
    config: BenchmarkConfig
    corpus: Corpus = Corpus()
    plans: dict[Any, PrivacyPlan] = field(default_factory=dict)
    isolated: set[Any] = field(default_factory=set)
    measures: dict[Any, Measured] = field(default_factory=dict)

    def run(self, cell: Cell, data: BenchmarkSet) -> dict[str, Any]:
        """Train and score; the row of the results.

        Raises:
            BudgetError: the releases that were made cost more than the cell's budget.
        """
        started = time.perf_counter()
        recipe = RECIPES[cell.method]
        trained = self.train(cell, data)
        model, trainer, plan, releases = trained.model, trained.trainer, trained.plan, trained.releases
        delta = plan.delta
        trainer.finish()
        spent = spent_of(cell, releases, delta)
        accuracy = score_model(
            model, data.test, 10, 512, resolve_device(self.training.device), f"{cell.dataset}, {recipe.title}"
        ).confusion
        noises = {stream.name: stream.noise_multiplier for stream in plan.streams}
        return {
            "dataset": cell.dataset,
            "method": cell.method,
            "epsilon": cell.epsilon or 0.0,
            "seed": cell.seed,
            "accuracy": float(accuracy.trace() / accuracy.sum()),
            "epsilon_spent": spent or 0.0,
            "delta": delta,
            "releases": len(releases),
            "noise_shared": noises.get("shared", noises.get("monolithic", 0.0)) if spent else 0.0,
            "noise_expert": noises.get("expert", 0.0) if spent else 0.0,
            "layer": plan.layers[0],
            "trained": trainer.trainable.count(_names(trainer, recipe)),
            "train_records": len(data.train),
            "test_records": len(data.test),
            "seconds": time.perf_counter() - started,
        }

    def train(self, cell: Cell, data: BenchmarkSet, population: int | None = None) -> Trained:
        """Train a cell's model; adapters are still in place.

        Args:
            population: the public number of records, which rates and delta rest on, where that is not the number
                there is.

        Raises:
            ModelError: the isolation gate has found what couples records.
            BudgetError: no noise meets the budget.
        """
        recipe = RECIPES[cell.method]
        training = self.training_of(cell.method, recipe, cell.seed)
        layers = recipe.protected(self.layer_plan["layers"], self.sparse)
        measured = self._measured(cell.method, training, layers, data.classes)
        training = measured.settle(training)
        records = population or len(data.train)
        plan = self._plan(cell, recipe, training, layers, records, float(records**-1.1), measured)
        model = MoEClassifier.from_encoder(self.base_model, data.classes)
        if recipe.is_private and (cell.method, data.classes) not in self.isolated:
            require_isolated(model, layers, training, recipe.method, plan.expert_norms)
            self.isolated.add((cell.method, data.classes))
        releases: list[Release] = []
        trainer = Trainer(model, data.owned(layers), plan, training, random_source(training), _Sink(releases))
        trainer.train(recipe.method)
        return Trained(model, trainer, plan, training, releases)

    def training_of(self, method: str, recipe: Recipe, seed: int) -> TrainingConfig:
        """The training of a method with a seed of its own: records are public, and cells are compared by seed."""
        config = self.config
        training = recipe.training(
            self.training,
            factor(config.step_sizes, method),
            factor(config.expert_step_sizes, method),
            config.full_frozen,
            {str(name): rate for name, rate in config.full_step_sizes.items()},
        )
        return training.model_copy(update={"randomness": "seeded", "seed": seed, "checkpoint_every": 0})

    def _plan(
        self,
        cell: Cell,
        recipe: Recipe,
        training: TrainingConfig,
        layers: tuple[int, ...],
        records: int,
        delta: float,
        measured: Measured,
    ) -> PrivacyPlan:
        key = (cell.method, cell.epsilon, records, measured)
        if key not in self.plans:
            privacy = recipe.privacy(cell.epsilon or NO_BUDGET, delta, self.config.rho)
            self.plans[key] = _make_plan(
                recipe, privacy, training, {**self.layer_plan, "layers": list(layers)}, records, measured
            )
        return self.plans[key]

    def _measured(
        self, method: str, training: TrainingConfig, layers: tuple[int, ...], classes: int
    ) -> Measured:
        key = (method, layers, classes)
        if key not in self.measures:
            corpus = self.corpus
            self.measures[key] = measure(
                self.base_model, corpus.texts, layers, classes, training, corpus.vote, corpus.max_length
            )
        return self.measures[key]


class _Sink:
    """Releases of a run on public records, in memory: nothing of it survives the run but its score."""

    def __init__(self, releases: list[Release]) -> None:
        self._releases = releases

    def append(self, release: Release) -> None:
        self._releases.append(release)


def _names(trainer: Trainer, recipe: Recipe) -> tuple[str, ...]:
    scope = ONE_STREAM[recipe.method].scope if recipe.method in ONE_STREAM else "protected"
    return trainer.trainable.of(scope)


def _make_plan(
    recipe: Recipe,
    privacy: PrivacyConfig,
    training: TrainingConfig,
    layer_plan: Mapping[str, Any],
    records: int,
    measured: Measured,
) -> PrivacyPlan:
    constants = {
        "population": records,
        "population_source": "declared: rows of the training split",
        "taken_as_public": ["all records and labels: this is a benchmark on public sets"],
    }
    if recipe.method in ONE_STREAM:
        return monolithic_plan(layer_plan, constants, privacy, training, recipe.method, measured)
    return raptor_plan(layer_plan, constants, privacy, training, EvaluationConfig(), SCOPE, measured)


def spent_of(cell: Cell, releases: Iterable[Release], delta: float) -> float | None:
    """Epsilon that a cell's releases have cost; None without privacy.

    Raises:
        BudgetError: it is more than the cell's budget.
    """
    if not RECIPES[cell.method].is_private:
        return None
    spent = spent_epsilon(releases, delta)
    if cell.epsilon is not None and spent > cell.epsilon:
        raise BudgetError(f"{cell} has spent epsilon {spent:.6g}.")
    return spent


def events_of(releases: Iterable[Release]) -> list[Event]:
    """What was released, by rate and noise, from what the mechanism wrote about each release."""
    counts: dict[tuple[float, float], int] = {}
    for release in releases:
        pair = (release.rate, release.noise_multiplier)
        counts[pair] = counts.get(pair, 0) + 1
    return [Event(rate, noise, count) for (rate, noise), count in counts.items()]


def spent_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Epsilon of releases that were made, all in one ledger."""
    return joint_epsilon(events_of(releases), delta, Adjacency.ADD_REMOVE).epsilon
