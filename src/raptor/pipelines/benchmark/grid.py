"""The grid of cells, in an order that makes a grid that is cut off useful, and where finished cells lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raptor.dp.config import TrainingConfig
from raptor.errors import DataError
from raptor.pipelines.benchmark.cells import Cell, Corpus
from raptor.pipelines.benchmark.config import BenchmarkConfig
from raptor.pipelines.benchmark.recipes import RECIPES, factor
from raptor.pipelines.benchmark.sets import set_name

# What says which cells are run, and changes no result of a cell.
_CHOICES = frozenset(
    {
        "folder",
        "sets",
        "methods",
        "only",
        "seeds",
        "epsilons",
        "most_seeds",
        "step_sizes",
        "expert_step_sizes",
        "attacks",
    }
)


def cells_of(config: BenchmarkConfig) -> list[Cell]:
    """All cells, seed by seed: after each seed there is a whole comparison with one repetition more."""
    budgets = config.budgets
    # Without privacy there is one cell for all budgets.
    without = min(budgets.values(), default=0)
    names = [set_name(dataset) for dataset in config.sets]
    found = []
    for seed in range(max(budgets.values(), default=0)):
        for epsilon in sorted(budgets):
            for dataset in names:
                found += [
                    Cell(dataset, method, epsilon, seed)
                    for method in config.methods_on(dataset)
                    if RECIPES[method].is_private and seed < budgets[epsilon]
                ]
        for dataset in names:
            found += [
                Cell(dataset, method, None, seed)
                for method in config.methods_on(dataset)
                if not RECIPES[method].is_private and seed < without
            ]
    return found


class CellStore:
    """Finished cells on disk, each under what its result depends on: other parameters find nothing.

    A cell is written when it ends, so that a grid that is cut off goes on with the same command.
    """

    def __init__(
        self,
        folder: Path,
        base_model: Path,
        layer_plan: Mapping[str, Any],
        training: TrainingConfig,
        config: BenchmarkConfig,
        corpus: Corpus,
        *,
        prefix: str = "",
        also: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Where cells are not those of the comparison they have a prefix, and `also` is what else they depend on.

        The texts of the corpus count where something is measured on them.
        """
        self._folder = folder
        self._prefix = prefix
        self._steps = (config.step_sizes, config.expert_step_sizes)
        self._digests: dict[str, str] = {}
        self._is_measured = training.is_measured
        self._corpus = hashlib.sha256("\n".join(corpus.texts).encode()).hexdigest()
        model = sorted(file for file in base_model.iterdir() if file.is_file())
        self._settings = {
            "model": {file.name: _file_digest(file) for file in model},
            "layers": list(layer_plan["layers"]),
            # Defaults are left out, so that a parameter that is new changes nothing; nor does where it is computed.
            "training": training.model_dump(
                mode="json",
                exclude_defaults=True,
                exclude={"device", "threads", "physical_batch_size", "checkpoint_every", "resume"},
            ),
            "benchmark": config.model_dump(mode="json", exclude_defaults=True, exclude=set(_CHOICES)),
            "max_length": corpus.max_length,
            "owner_vote": corpus.vote,
            **also,
        }

    def add_set(self, name: str, place: Path) -> None:
        """Say which file a set is, before its cells are looked for."""
        self._digests[name] = _file_digest(place)

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """The row of a finished cell.

        Raises:
            DataError: what lies there is not a row.
        """
        place = self._place(cell)
        if not place.is_file():
            return None
        damaged = f"{place} is no result of a cell. Delete it, and run the benchmark again."
        try:
            row = json.loads(place.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(damaged) from error
        if not isinstance(row, dict) or not row:
            raise DataError(damaged)
        return row

    def get(self, cell: Cell) -> dict[str, Any]:
        """The row of a cell that is finished.

        Raises:
            DataError: it is not there any more.
        """
        row = self.find(cell)
        if row is None:
            raise DataError(f"{self._place(cell)} is gone. Run the benchmark again, which makes it anew.")
        return row

    def keep(self, cell: Cell, row: Mapping[str, Any]) -> None:
        """Write a row; it appears under its name when it is whole."""
        place = self._place(cell)
        partial = place.with_suffix(".partial")
        partial.write_text(json.dumps(row, allow_nan=False), encoding="utf-8")
        partial.replace(place)

    def _place(self, cell: Cell) -> Path:
        steps = [factor(factors, cell.method) for factors in self._steps]
        depends = {**self._settings, "set": self._digests[cell.dataset], "steps": steps}
        if changes := RECIPES[cell.method].changes:
            depends["changes"] = dict(changes)
        if self._is_measured or RECIPES[cell.method].is_measured:
            depends["corpus"] = self._corpus
        digest = hashlib.sha256(json.dumps([depends, cell.key], sort_keys=True).encode()).hexdigest()
        budget = "none" if cell.epsilon is None else f"{cell.epsilon:g}"
        name = f"{self._prefix}{cell.dataset}-{cell.method}-{budget}-{cell.seed}-{digest[:12]}.json"
        return self._folder / name


def _file_digest(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def layers_of(methods: Sequence[str], chosen: Sequence[int], sparse: Sequence[int]) -> list[int]:
    """Layers that some method protects."""
    return sorted({layer for method in methods for layer in RECIPES[method].protected(chosen, sparse)})
