"""The benchmark: every method on one bed, cells that are kept, and what is said about them."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raptor.dp.config import StreamConfig, TrainingConfig
from raptor.errors import DataError, ParameterError
from raptor.pipelines.benchmark import cells
from raptor.pipelines.benchmark.cells import Bed, Cell, Corpus
from raptor.pipelines.benchmark.config import BenchmarkConfig
from raptor.pipelines.benchmark.grid import CellStore, cells_of
from raptor.pipelines.benchmark.nodes import diagnose_benchmark, run_benchmark, summarise_benchmark
from raptor.pipelines.benchmark.recipes import LEVERS, RAPTOR, RECIPES, factor
from raptor.pipelines.benchmark.sets import BenchmarkSet, load_set, locate
from raptor.pipelines.benchmark.summary import Estimate, Results, page
from tests.pipelines.directories import save_base_model

LAYERS = {"layers": [0], "experts": 4}
TRAINING = TrainingConfig.model_validate(
    {
        "device": "cpu",
        "batch_size": 40,
        "cycles": 2,
        "trainable": "lora",
        "lora": {"rank": 2},
        "frozen": ["*SelfAttention*"],
    }
)


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base_model(tmp_path_factory.mktemp("base"))


def write_set(place: Path, columns: tuple[str, ...] = ("text",), records: int = 120) -> Path:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, records)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    texts = [" ".join(generator.choice(letters[13 * label :][:13], 6)) for label in labels]
    split = ["train" if row % 4 else "validation" for row in range(records)]
    table = dict.fromkeys(columns, texts) | {"label": labels.tolist(), "split": split}
    pq.write_table(pa.table(table), place)
    return place


@pytest.fixture(autouse=True)
def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second for each method, and has its own tests for all of them."""
    monkeypatch.setattr(cells, "require_isolated", lambda *_given: None)


@pytest.fixture(scope="module")
def bed(base_model: Path) -> Bed:
    return Bed(base_model, LAYERS, (0, 1), TRAINING, BenchmarkConfig())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> BenchmarkSet:
    place = write_set(tmp_path_factory.mktemp("sets") / "some.parquet")
    return load_set(
        place, base_model, [0, 1], max_length=12, train_records=80, test_records=20, vote="weight"
    )


def run(folder: Path, base_model: Path, **changed: object) -> list[dict]:
    folder.mkdir(exist_ok=True)
    given = {
        "folder": str(folder.parent),
        "seeds": {"4": 1},
        "methods": ["raptor", "scope_b", "nonprivate_b"],
    }
    config = BenchmarkConfig.model_validate({**given, "sets": ["some"], **changed})
    return run_benchmark(base_model, LAYERS, folder, config, TRAINING, "weight", 12)


@pytest.mark.parametrize("method", [name for name in RECIPES if name not in LEVERS])
def test_every_method_runs_and_keeps_to_its_budget(bed: Bed, data: BenchmarkSet, method: str) -> None:
    recipe = RECIPES[method]
    row = bed.run(Cell("some", method, 4.0 if recipe.is_private else None, 0), data)
    assert row["layer"] == (1 if recipe.layer == "last" else 0)
    assert (row["train_records"], row["test_records"]) == (80, 20)
    if recipe.is_private:
        assert 3.9 < row["epsilon_spent"] <= 4.0 or (recipe.is_split and row["epsilon_spent"] <= 4.0)
        assert row["releases"] == 4
    else:
        assert row["epsilon_spent"] == row["releases"] == 0


def test_finished_cells_are_not_run_again(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "some.parquet")
    rows = run(tmp_path / "cells", base_model)
    assert [row["method"] for row in rows] == ["nonprivate_b", "raptor", "scope_b"]
    ran: list[Cell] = []
    original = Bed.run
    monkeypatch.setattr(Bed, "run", lambda bed, cell, data: ran.append(cell) or original(bed, cell, data))
    assert run(tmp_path / "cells", base_model) == rows
    assert not ran
    more = run(tmp_path / "cells", base_model, seeds={"4": 2})
    assert [row for row in more if row["seed"] == 0] == rows
    assert {cell.seed for cell in ran} == {1}
    ran.clear()
    run(tmp_path / "cells", base_model, step_sizes={"scope_b": 2.0})
    assert [cell.method for cell in ran] == ["scope_b"]
    ran.clear()
    # A cell is known by what its lever is, and not by its name alone.
    run(tmp_path / "cells", base_model, methods=["raptor_together_calm"])
    monkeypatch.setitem(RECIPES, "raptor_together_calm", replace(RECIPES["raptor_together_calm"], changes={}))
    run(tmp_path / "cells", base_model, methods=["raptor_together_calm"])
    assert len(ran) == 2
    ran.clear()
    run(tmp_path / "cells", base_model, methods=["scope_b"], train_records=60)
    assert len(ran) == 1


def test_a_lever_has_the_step_sizes_of_its_recipe_and_differs_in_its_parameters() -> None:
    for name, lever in LEVERS.items():
        parent = RECIPES[lever.of]
        assert factor({lever.of: 0.5}, name) == 0.5
        assert factor({lever.of: 0.5, name: 2.0}, name) == 2.0
        assert factor({}, name) == factor({}, lever.of) == 1.0
        assert (lever.trainable, lever.layer, lever.is_split) == (
            parent.trainable,
            parent.layer,
            parent.is_split,
        )
        with_lever, without = (recipe.training(TRAINING, 1.0, 1.0, (), {}) for recipe in (lever, parent))
        changed = {
            key for key in TrainingConfig.model_fields if getattr(with_lever, key) != getattr(without, key)
        }
        assert lever.method != parent.method or (changed and changed <= set(lever.changes))


def test_a_seed_repeats_a_cell(tmp_path: Path, base_model: Path) -> None:
    write_set(tmp_path / "some.parquet")
    first, second = (run(tmp_path / name, base_model, methods=["raptor"]) for name in ("one", "two"))
    assert first[0]["accuracy"] == second[0]["accuracy"]


def test_pairs_and_files_of_ones_own(tmp_path: Path, base_model: Path) -> None:
    own = write_set(tmp_path / "own.parquet", ("sentence1", "sentence2"))
    rows = run(tmp_path / "cells", base_model, sets=[str(own)], methods=["scope_b"])
    assert rows[0]["dataset"] == "own"
    nested = tmp_path / "other"
    nested.mkdir()
    place = write_set(nested / "other.parquet")
    assert locate(tmp_path, "other") == place
    with pytest.raises(ParameterError, match=r"benchmark.sets has 'absent'"):
        locate(tmp_path, "absent")
    with pytest.raises(ParameterError, match="names no set"):
        run(tmp_path / "cells", base_model, sets=[])
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="broken"):
        run(tmp_path / "cells", base_model, sets=["broken"])


def test_cells_come_seed_by_seed_and_without_privacy_once_for_all_budgets() -> None:
    config = BenchmarkConfig(sets=("a", "b"), methods=("raptor", "nonprivate"), seeds={"1": 2, "4": 1})
    found = cells_of(config)
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)
    assert len(found) == len(set(found)) == 2 * (2 + 1 + 1)
    assert sum(cell.epsilon is None for cell in found) == 2


def test_a_method_may_be_run_on_some_sets_only() -> None:
    given = {"sets": ("folder/a.parquet", "b"), "methods": ("raptor", "scope_c"), "seeds": {"1": 1}}
    config = BenchmarkConfig.model_validate({**given, "only": {"scope_c": ["a"]}})
    assert {(cell.dataset, cell.method) for cell in cells_of(config)} == {
        ("a", "raptor"),
        ("b", "raptor"),
        ("a", "scope_c"),
    }
    with pytest.raises(ValueError, match="unknown methods scope_d"):
        BenchmarkConfig.model_validate({**given, "only": {"scope_d": ["a"]}})


def test_a_part_of_the_grid_is_picked() -> None:
    given = {"sets": ("a",), "methods": ("raptor", "nonprivate"), "seeds": {"1": 5, "4": 3, "8": 3}}
    picked = BenchmarkConfig.model_validate({**given, "epsilons": [1, 8], "most_seeds": 2})
    assert {(cell.epsilon, cell.seed) for cell in cells_of(picked)} == {
        (epsilon, seed) for epsilon in (1.0, 8.0, None) for seed in (0, 1)
    }
    with pytest.raises(ValueError, match="gives no number of seeds"):
        BenchmarkConfig.model_validate({**given, "epsilons": [2]})
    for wrong in (
        {"methods": ["raptr"]},
        {"step_sizes": {"raptr": 1.0}},
        {"expert_step_sizes": {"raptr": 1.0}},
    ):
        with pytest.raises(ValueError, match="unknown methods raptr"):
            BenchmarkConfig.model_validate({**given, **wrong})


def rows_of(values: dict[tuple[str, float], list[float]], dataset: str = "a") -> list[dict]:
    return [
        {"dataset": dataset, "method": method, "epsilon": epsilon, "seed": seed, "accuracy": value,
         "seconds": 1.0, "train_records": 10, "test_records": 5}
        for (method, epsilon), found in values.items()
        for seed, value in enumerate(found)
    ]  # fmt: skip


def test_intervals_are_students_and_gains_are_paired() -> None:
    value = Estimate.of([1.0, 2.0, 3.0])
    # Quantile 4.3027 of two degrees of freedom, standard error 1/sqrt(3).
    assert value.mean == pytest.approx(2.0)
    assert value.half_width == pytest.approx(4.30265 / math.sqrt(3), rel=1e-4)
    assert Estimate.of([1.0]).half_width == math.inf
    results = Results(
        rows_of(
            {
                ("raptor", 1.0): [0.60, 0.70, 0.80],
                ("scope_a", 1.0): [0.58, 0.68, 0.78],
                ("scope_b", 1.0): [0.5] * 3,
            }
        )
    )
    assert results.best_baseline("a", 1.0) == "scope_a"
    gain = results.gain_over_best("a", 1.0)
    assert gain is not None
    assert gain.mean == pytest.approx(2.0)
    # The seeds differ by twenty points, the pairs do not at all.
    assert gain.half_width == pytest.approx(0.0, abs=1e-9)
    assert gain.is_above_zero
    assert results.headroom("a") is None


def test_mean_gain_takes_the_best_baseline_of_each_set() -> None:
    rows = rows_of({("raptor", 1.0): [0.6, 0.6], ("scope_a", 1.0): [0.5, 0.6], ("scope_b", 1.0): [0.4, 0.4]})
    rows += rows_of(
        {("raptor", 1.0): [0.7, 0.7], ("scope_a", 1.0): [0.1, 0.1], ("scope_b", 1.0): [0.8, 0.8]}, "b"
    )
    gain = Results(rows).mean_gain(1.0)
    assert gain is not None
    assert gain.mean == pytest.approx((5.0 - 10.0) / 2)
    assert gain.number == 2


def test_page_and_figures_show_every_method(tmp_path: Path) -> None:
    rows = rows_of({(name, 1.0 if RECIPES[name].is_private else 0.0): [0.5, 0.6] for name in RECIPES})
    nothing = {"attacks": [], "points": []}
    text, accuracy, gains, _ = summarise_benchmark(rows, [], nothing, BenchmarkConfig())
    for recipe in RECIPES.values():
        assert recipe.title in text
    assert "Headroom" in text
    assert len(accuracy.axes) == 1
    drawn = [line.get_label() for line in accuracy.axes[0].containers]
    assert RECIPES[RAPTOR].title in drawn
    assert gains.axes[0].get_yticklabels()[0].get_text() == "a, epsilon 1"
    assert "-" in page(Results(rows[:1]), [])


def test_the_benchmark_protects_all_layers_of_the_plan_and_says_what_is_odd_about_a_set(
    tmp_path: Path, base_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = write_set(tmp_path / "some.parquet")
    one = run(tmp_path / "cells", base_model, methods=["raptor"])
    config = BenchmarkConfig(folder=str(tmp_path), sets=("some",), methods=("raptor",), seeds={"4": 1})
    both = {**LAYERS, "layers": [0, 1]}
    two = run_benchmark(base_model, both, tmp_path / "cells", config, TRAINING, "weight", 12)
    assert two[0]["trained"] > one[0]["trained"]
    (found,) = diagnose_benchmark(base_model, both, config, TRAINING, "weight", 12)
    assert found["layer"] == 0
    rows = pq.read_table(place).to_pylist()
    again = [{**row, "split": "test"} for row in rows if row["split"] == "train"][:5]
    pq.write_table(pa.Table.from_pylist(rows + again), tmp_path / "twice.parquet")
    load_set(
        tmp_path / "twice.parquet",
        base_model,
        [0],
        max_length=12,
        train_records=80,
        test_records=20,
        vote="weight",
    )
    assert "Set twice: " in caplog.text


@pytest.mark.parametrize("given", [{"seeds": {}}, {"seeds": {"inf": 1}}, {"seeds": {"1e400": 1}}])
def test_budgets_that_are_none_are_refused(given: dict) -> None:
    with pytest.raises(ValueError, match=r"at least 1 item|an epsilon above 0"):
        BenchmarkConfig(**given)


def test_two_sets_of_one_name_are_refused(tmp_path: Path, base_model: Path) -> None:
    (tmp_path / "other").mkdir()
    for place in ("some.parquet", "other/some.parquet", "some.more.parquet"):
        write_set(tmp_path / place)
    two = [str(tmp_path / "some.parquet"), str(tmp_path / "other/some.parquet")]
    with pytest.raises(ParameterError, match="more than one set of the name some,"):
        run(tmp_path / "cells", base_model, sets=two)
    rows = run(tmp_path / "cells", base_model, sets=["some", "some.more"], methods=["scope_b"])
    assert sorted(row["dataset"] for row in rows) == ["some", "some.more"]
    with pytest.raises(ValueError, match="at least 1 item"):
        BenchmarkConfig(methods=())
    with pytest.raises(ParameterError, match="No cell is left"):
        run(tmp_path / "cells", base_model, methods=["scope_b"], only={"scope_b": ["trec"]})


def test_a_cell_is_found_under_all_that_it_depends_on(tmp_path: Path, base_model: Path) -> None:
    place = write_set(tmp_path / "some.parquet")
    cell, corpus = Cell("some", "raptor", 4.0, 0), Corpus(("a", "b"), "weight", 12)
    folder = tmp_path / "cells"
    folder.mkdir()

    def has_it(base: Path = base_model, training: TrainingConfig = TRAINING, **changed: object) -> bool:
        given = replace(corpus, **changed)
        store = CellStore(folder, base, LAYERS, training, BenchmarkConfig(), given)
        store.add_set("some", place)
        return store.find(cell) is not None

    auto = TRAINING.model_copy(update={"expert": StreamConfig(clipping_norm="auto")})
    for training in (TRAINING, auto):
        store = CellStore(folder, base_model, LAYERS, training, BenchmarkConfig(), corpus)
        store.add_set("some", place)
        store.keep(cell, {"accuracy": 0.5})
    assert has_it()
    assert not has_it(vote="count")
    assert not has_it(max_length=13)
    # Where nothing is measured on public texts, other ones change nothing.
    assert has_it(texts=("c",))
    assert has_it(training=auto)
    assert not has_it(training=auto, texts=("c",))
    for name in ("tokenizer.json", "config.json"):
        other = tmp_path / name.split(".")[0]
        shutil.copytree(base_model, other)
        (other / name).write_text((other / name).read_text() + " ")
        assert not has_it(base=other)


def test_diagnostics_need_no_raptor_among_the_methods(tmp_path: Path, base_model: Path) -> None:
    write_set(tmp_path / "some.parquet")
    config = BenchmarkConfig(folder=str(tmp_path), sets=("some",), methods=("raptor_last",), seeds={"4": 1})
    found = diagnose_benchmark(base_model, LAYERS, config, TRAINING, "weight", 12)
    assert [row["dataset"] for row in found] == ["some"]
    with pytest.raises(ValueError, match="at least 1 item"):
        BenchmarkConfig(epsilons=())
