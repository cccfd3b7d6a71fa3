"""Nodes of the benchmark."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raptor.pipelines.benchmark.config import BenchmarkConfig
from raptor.pipelines.training.config import TrainingConfig
from raptor.progress import track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raptor.pipelines.benchmark.cells import Bed, Corpus
    from raptor.pipelines.benchmark.sets import BenchmarkSet

logger = logging.getLogger(__name__)


def run_benchmark(
    base_model: Path,
    layer_plan: Mapping[str, Any],
    benchmark_cells: Path,
    config: BenchmarkConfig,
    training: TrainingConfig,
    owner_vote: Literal["weight", "count"],
    max_length: int,
    public_corpus: Any = None,
) -> list[dict[str, Any]]:
    """Run every cell that is not finished yet; one row a cell.

    All records are public: they are labelled sets that the operator names here for a comparison. Nothing is
    claimed for the models, which are dropped when they are scored.

    Args:
        benchmark_cells: folder of finished cells.
        public_corpus: public records of none of the sets, with a column `text`, for levers that measure on them.

    Raises:
        ParameterError: no set is named, or a set is not there.
        DataError: a set cannot be read.
        BudgetError: a budget does not fit a set, or a cell has spent more than it had.
    """
    from raptor.errors import ParameterError
    from raptor.pipelines.benchmark.grid import CellStore, cells_of

    corpus = _corpus(public_corpus, owner_vote, max_length)
    bed, places = _open(base_model, layer_plan, config, training, corpus)
    store = CellStore(benchmark_cells, base_model, layer_plan, training, config, corpus)
    for name, place in places.items():
        store.add_set(name, place)
    cells = cells_of(config)
    if not cells:
        raise ParameterError(
            "No cell is left to run: benchmark.only leaves every method out on every set, or benchmark.seeds is empty."
        )
    rows = [row for cell in cells if (row := store.find(cell)) is not None]
    missing = [cell for cell in cells if store.find(cell) is None]
    logger.info("Benchmark: %d cells, %d of them finished before.", len(cells), len(rows))
    wanted = {name: place for name, place in places.items() if any(cell.dataset == name for cell in missing)}
    data = _load(wanted, bed, owner_vote, max_length)
    for cell in track(missing, "Benchmark", is_public=True):
        row = bed.run(cell, data[cell.dataset])
        store.keep(cell, row)
        rows.append(row)
    return sorted(rows, key=lambda row: (row["dataset"], row["epsilon"], row["method"], row["seed"]))


def diagnose_benchmark(
    base_model: Path,
    layer_plan: Mapping[str, Any],
    config: BenchmarkConfig,
    training: TrainingConfig,
    owner_vote: Literal["weight", "count"],
    max_length: int,
    public_corpus: Any = None,
) -> list[dict[str, Any]]:
    """Interference, load and signal of every set, at a model that RAPTOR has trained at the largest epsilon.

    Raises:
        ParameterError: no set is named, or a set is not there.
        DataError: a set cannot be read.
    """
    from raptor.pipelines.benchmark.cells import Cell
    from raptor.pipelines.benchmark.diagnostics import diagnose
    from raptor.pipelines.benchmark.recipes import RAPTOR

    corpus = _corpus(public_corpus, owner_vote, max_length)
    bed, places = _open(base_model, layer_plan, config, training, corpus)
    largest = max(config.budgets)
    found = []
    for name, data in track(
        _load(places, bed, owner_vote, max_length).items(), "Diagnostics", is_public=True
    ):
        trained = bed.train(Cell(name, RAPTOR, largest, 0), data)
        layers = trained.plan.layers
        figures = diagnose(
            trained.model, data.owned(layers), trained.trainer.trainable, trained.training, trained.plan
        )
        found.append({"dataset": name, "epsilon": largest, "layer": layers[0], **figures})
    return found


def attack_benchmark(
    base_model: Path,
    layer_plan: Mapping[str, Any],
    benchmark_cells: Path,
    config: BenchmarkConfig,
    training: TrainingConfig,
    owner_vote: Literal["weight", "count"],
    max_length: int,
    public_corpus: Any = None,
) -> dict[str, list[dict[str, Any]]]:
    """Membership inference on models of the methods, each trained on a random half of a set's records.

    Models that were trained and asked before are not trained again; see `run_benchmark` for what is public.

    Args:
        benchmark_cells: folder of finished cells; here a cell is a model's answers to all records.

    Returns:
        See `attacks.collect`; empty where no set of the comparison is to be attacked.

    Raises:
        ParameterError: no set is named, a set is not there, or a training has diverged.
        DataError: a set cannot be read.
        BudgetError: a budget does not fit a set, or a model has spent more than it had.
    """
    from raptor.pipelines.benchmark.attack_report import contradictions
    from raptor.pipelines.benchmark.attacks import answers, arms_of, collect, control_bed
    from raptor.pipelines.benchmark.grid import CellStore

    attacked = config.attacks
    corpus = _corpus(public_corpus, owner_vote, max_length)
    bed, places = _open(base_model, layer_plan, config, training, corpus)
    arms = arms_of(attacked, places)
    beds = {False: bed, True: control_bed(bed, attacked)}
    stores = {
        is_control: CellStore(
            benchmark_cells,
            base_model,
            layer_plan,
            beds[is_control].training,
            config,
            corpus,
            prefix="control-" if is_control else "attack-",
            also={"attacked_records": attacked.records},
        )
        for is_control in beds
    }
    for store in stores.values():
        for name, place in places.items():
            store.add_set(name, place)
    # Model by model, so that an attack that is cut off has whole models for a smaller number of them.
    missing = [
        (arm, cell)
        for model in range(attacked.models)
        for arm in arms
        if stores[arm.is_control].find(cell := arm.cell(model)) is None
    ]
    logger.info(
        "Attacks: %d models, %d of them trained before.",
        len(arms) * attacked.models,
        len(arms) * attacked.models - len(missing),
    )
    wanted = {name: place for name, place in places.items() if any(arm.dataset == name for arm, _ in missing)}
    data = _load(wanted, bed, owner_vote, max_length, attacked.records)
    for arm, cell in track(missing, "Attacks", is_public=True):
        stores[arm.is_control].keep(cell, answers(beds[arm.is_control], cell, data[arm.dataset]))
    found = collect(arms, lambda arm, model: stores[arm.is_control].get(arm.cell(model)), attacked)
    for text in contradictions(found):
        logger.error("Attacks: more than the ledger allows was found: %s.", text)
    return found


def _corpus(public_corpus: Any, owner_vote: Literal["weight", "count"], max_length: int) -> Corpus:
    """Public records for levers that measure on them; none where there are none."""
    from raptor.pipelines.benchmark.cells import Corpus

    return Corpus(() if public_corpus is None else public_corpus["text"][:], owner_vote, max_length)


def _open(
    base_model: Path,
    layer_plan: Mapping[str, Any],
    config: BenchmarkConfig,
    training: TrainingConfig,
    corpus: Corpus,
) -> tuple[Bed, dict[str, Path]]:
    """What all cells share, and the file of each set."""
    from raptor.errors import ParameterError
    from raptor.moe.classifier import load_encoder
    from raptor.moe.families import sparse_layers
    from raptor.pipelines.benchmark.cells import Bed
    from raptor.pipelines.benchmark.sets import locate, set_name

    if not config.sets:
        raise ParameterError(
            "benchmark.sets names no set. Run with --env glue-cpu, or give benchmark.folder and benchmark.sets."
        )
    sparse = tuple(layer.index for layer in sparse_layers(load_encoder(base_model)))
    names = [set_name(name) for name in config.sets]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ParameterError(
            f"benchmark.sets has more than one set of the name {', '.join(repeated)}, by which results are known. "
            "Rename a file, or leave one out."
        )
    places = {
        name: locate(Path(config.folder), given) for name, given in zip(names, config.sets, strict=True)
    }
    logger.warning(
        "All records of %s are taken as public: methods without privacy are trained on them, and exact figures are "
        "recorded. Do not name sets that must be protected.",
        ", ".join(places),
    )
    return Bed(base_model, layer_plan, sparse, training, config, corpus), places


def _load(
    places: Mapping[str, Path],
    bed: Bed,
    owner_vote: Literal["weight", "count"],
    max_length: int,
    most: int | None = None,
) -> dict[str, BenchmarkSet]:
    from raptor.pipelines.benchmark.grid import layers_of
    from raptor.pipelines.benchmark.recipes import RAPTOR
    from raptor.pipelines.benchmark.sets import load_set

    attacks = bed.config.attacks
    # Diagnostics are of RAPTOR, whichever methods are compared.
    methods = (RAPTOR, *bed.config.methods, *attacks.methods, *attacks.control_methods)
    layers = layers_of(methods, bed.layer_plan["layers"], bed.sparse)
    return {
        name: load_set(
            place,
            bed.base_model,
            layers,
            max_length=max_length,
            train_records=min(bed.config.train_records, most or bed.config.train_records),
            test_records=bed.config.test_records,
            vote=owner_vote,
        )
        for name, place in places.items()
    }


def summarise_benchmark(
    rows: Sequence[Mapping[str, Any]],
    diagnostics: Sequence[Mapping[str, Any]],
    attacks: Mapping[str, Sequence[Mapping[str, Any]]],
    config: BenchmarkConfig,
) -> tuple[str, Figure, Figure, Figure]:
    """Tables as Markdown, accuracy against epsilon, gains, curves of the attacks."""
    from raptor.pipelines.benchmark.attack_report import attack_curves, attack_section
    from raptor.pipelines.benchmark.diagnostics import section
    from raptor.pipelines.benchmark.figures import accuracy_by_epsilon, gains
    from raptor.pipelines.benchmark.summary import Results, page

    results = Results(rows)
    facts = [
        f"{len(rows)} runs; {sum(float(row['seconds']) for row in rows) / 60:.0f} minutes in all",
        "sets, with training and test records: "
        + ", ".join(
            f"{name} ({row['train_records']:,}, {row['test_records']:,})"
            for name in results.datasets
            for row in [next(row for row in rows if row["dataset"] == name)]
        ),
        "delta is n^-1.1; the epsilon that each run has spent was computed from its own releases",
    ]
    attacked = config.attacks
    text = "\n".join([page(results, facts), *section(diagnostics), *attack_section(attacks, attacked)])
    return text, accuracy_by_epsilon(results), gains(results), attack_curves(attacks)
