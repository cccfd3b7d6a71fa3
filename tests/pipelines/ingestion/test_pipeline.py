"""The wiring: what goes in, what comes out, what is declared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from raptor.datasets import ArrowDataset, JSONDataset
from raptor.pipelines.ingestion import create_pipeline
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.mechanism import declarations
from tests.pipelines.directories import save_base_model
from tests.text.reading import put

PRIVATE = ("private_records", "private_train", "private_heldout", "owner_partition")


def test_inputs_and_outputs_are_those_of_the_catalog() -> None:
    pipeline = create_pipeline()
    assert pipeline.inputs() == {
        "base_model",
        "encoding_cache",
        "layer_plan",
        "params:ingestion",
        "params:privacy.population",
        "params:privacy.records_per_user",
        "params:privacy.unit",
        "split_key",
    }
    assert pipeline.all_outputs() == {*PRIVATE, "label_names", "data_report", "public_constants"}


def test_names_and_constants_are_declared_and_nothing_else() -> None:
    assert {item.dataset for item in declarations(create_pipeline())} == {"label_names", "public_constants"}


def test_the_stage_runs_on_files(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    base_model = save_base_model(tmp_path / "model", layers=2, sparse=2, experts=4)
    rows = "".join(
        f"{'abcdefgh'[n % 8]} {'klmnop'[n % 6]} {'stuv'[n % 4]},{'xy'[n % 2]}\n" for n in range(200)
    )
    source = put(tmp_path, "a.csv", "text,label\n" + rows)
    tables = {name: ArrowDataset(filepath=str(tmp_path / name)) for name in PRIVATE}
    files = {
        name: JSONDataset(filepath=str(tmp_path / f"{name}.json"))
        for name in ("label_names", "data_report", "public_constants")
    }
    cache = tmp_path / "encodings"
    cache.mkdir()
    given = {
        "base_model": base_model,
        "layer_plan": {"layers": [1]},
        "params:ingestion": IngestionConfig(source=str(source), held_out_fraction=0.3),
        "params:privacy.population": "auto",
        "params:privacy.unit": "record",
        "params:privacy.records_per_user": 8,
        "split_key": bytes(32),
        "encoding_cache": cache,
    }
    catalog = DataCatalog(
        {**tables, **files, **{name: MemoryDataset(value) for name, value in given.items()}}
    )
    SequentialRunner().run(create_pipeline(), catalog)
    train, held_out = tables["private_train"].load(), tables["private_heldout"].load()
    assert train.num_rows + held_out.num_rows == 200
    assert tables["owner_partition"].load().num_rows == train.num_rows
    assert files["label_names"].load() == ["x", "y"]
    assert files["public_constants"].load()["population"] == train.num_rows
    report = files["data_report"].load()
    assert report["splits"] == {"train": train.num_rows, "validation": held_out.num_rows}


@pytest.mark.parametrize("content", ["text,label\na,x\nb\n", "text,label\n"])
def test_a_source_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, content: str) -> None:
    base_model = save_base_model(tmp_path / "model", layers=2, sparse=2, experts=4)
    config = IngestionConfig(source=str(put(tmp_path, "a.csv", content)))
    tables = {name: ArrowDataset(filepath=str(tmp_path / "data" / name)) for name in PRIVATE}
    cache = tmp_path / "encodings"
    cache.mkdir()
    given = {
        "base_model": base_model,
        "params:ingestion": config,
        "params:privacy.population": "auto",
        "params:privacy.unit": "record",
        "params:privacy.records_per_user": 8,
        "layer_plan": {},
        "split_key": bytes(32),
        "encoding_cache": cache,
    }
    catalog = DataCatalog({**tables, **{name: MemoryDataset(value) for name, value in given.items()}})
    with pytest.raises(Exception, match=r"a\.csv"):
        SequentialRunner().run(create_pipeline(), catalog)
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())
