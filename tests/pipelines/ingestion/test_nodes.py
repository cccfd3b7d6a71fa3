"""Records to splits, owners and public constants, on a tiny model."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raptor.errors import ModelError, ParameterError
from raptor.moe.classifier import load_encoder
from raptor.moe.ownership import assign_owners
from raptor.moe.routing import record_votes
from raptor.pipelines.ingestion import owners
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.ingestion.nodes import (
    CLASSES_ARE_PUBLIC,
    CONSTANTS_ARE_PUBLIC,
    assign_record_owners,
    declare_public_constants,
    encode_splits,
    read_records,
)
from raptor.text.problems import RecordError
from tests.checkpoints import save_checkpoint
from tests.pipelines.directories import WORDS, save_base_model
from tests.text.reading import put


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_base_model(tmp_path_factory.mktemp("base") / "model", layers=3, sparse=3, experts=4)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records of 1 to 12 letters; a fifth of them for validation, some for test without a label."""
    chance = random.Random(0)
    rows = []
    for number in range(300):
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 12)))
        split = ("validation", "train", "train", "train", "test")[number % 5]
        rows.append(f"{text},{'' if split == 'test' else 'ab'[number % 2]},{split}")
    return put(tmp_path_factory.mktemp("source"), "a.csv", "text,label,split\n" + "\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def config(source: Path) -> IngestionConfig:
    return IngestionConfig(source=str(source), split="split", max_length=8)


@pytest.fixture(scope="module")
def records(base_model: Path, config: IngestionConfig) -> datasets.Dataset:
    return datasets.Dataset(read_records(base_model, config)[0])


@pytest.fixture(scope="module")
def splits(records: datasets.Dataset, base_model: Path, config: IngestionConfig) -> tuple[pa.Table, pa.Table]:
    return encode_splits(records, base_model, config)


def ids(text: str, length: int) -> list[int]:
    """Token ids by hand: letters from 3 on, then the end mark."""
    return [*(WORDS.index(word) + 3 for word in text.split()[: length - 1]), 1]


def test_reading_gives_records_names_and_report(base_model: Path, config: IngestionConfig) -> None:
    table, names, report = read_records(base_model, config)
    assert names == ["a", "b"]
    assert report["splits"] == {"train": 180, "validation": 60, "test": 60}
    assert report["unlabelled"] == table["label"].null_count == 60
    assert any("longer than 8 tokens" in warning for warning in report["warnings"])


def test_splits_hold_their_labelled_records_in_order(
    records: datasets.Dataset, splits: tuple[pa.Table, pa.Table]
) -> None:
    for table, split in zip(splits, ("train", "validation"), strict=True):
        rows = [row for row in records if row["split"] == split]
        assert table["input_ids"].to_pylist() == [ids(row["text"], 8) for row in rows]
        assert table["label"].to_pylist() == [row["label"] for row in rows]
        assert table.schema.field("input_ids").type == pa.list_(pa.int32())
        assert table.schema.field("label").type == pa.int64()


def test_test_records_with_labels_are_held_out_where_validation_is_missing(
    base_model: Path, tmp_path: Path
) -> None:
    path = put(tmp_path, "a.csv", "text,label,s\na,x,train\nb,y,train\nc d,y,test\n")
    config = IngestionConfig(source=str(path), split="s")
    table, _, _ = read_records(base_model, config)
    train, held_out = encode_splits(datasets.Dataset(table), base_model, config)
    assert train["input_ids"].to_pylist() == [ids("a", 32), ids("b", 32)]
    assert held_out.to_pylist() == [{"input_ids": ids("c d", 32), "label": 1}]


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_second_reading_is_not_tokenised_again(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    rows = "".join(
        f"{'abcdefgh'[n % 8]} {'klm'[n % 3]},{'xy'[n % 2]},u{n % 20},{'train' if n % 5 else 'dev'}\n"
        for n in range(100)
    )
    config = IngestionConfig(
        source=str(put(tmp_path, "a.csv", "text,label,who,split\n" + rows)), user="who", split="split"
    )
    table, _, _ = read_records(base_model, config)
    (tmp_path / "cache").mkdir()
    given = (datasets.Dataset(table), base_model, config, unit, 3, b"k" * 32)
    plain = encode_splits(*given)
    first = encode_splits(*given, tmp_path / "cache")
    monkeypatch.setattr("raptor.pipelines.ingestion.encoding.encode_texts", None)
    again = encode_splits(*given, tmp_path / "cache")
    for one, two, three in zip(plain, first, again, strict=True):
        assert one.equals(two)
        assert two.equals(three)
    with pytest.raises(TypeError):
        encode_splits(*given[:2], config.model_copy(update={"max_length": 9}), *given[3:], tmp_path / "cache")


def test_pairs_are_encoded_as_pairs(base_model: Path, tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "p,q,label,s\na,b,x,train\nc,d,y,train\ne,f,y,dev\n")
    config = IngestionConfig(source=str(path), text="p+q", split="s")
    table, _, _ = read_records(base_model, config)
    train, _ = encode_splits(datasets.Dataset(table), base_model, config)
    both = {number for row in train["input_ids"].to_pylist() for number in row}
    assert {3, 4, 5, 6} <= both


def test_too_short_a_length_stops(
    records: datasets.Dataset, base_model: Path, config: IngestionConfig
) -> None:
    tight = config.model_copy(update={"max_length": 1})
    with pytest.raises(ParameterError, match="max_length is 1"):
        encode_splits(records, base_model, tight)


@pytest.mark.parametrize("vote", ["weight", "count"])
def test_an_owner_is_a_function_of_its_record_alone(
    splits: tuple[pa.Table, pa.Table], base_model: Path, config: IngestionConfig, vote: str
) -> None:
    """Each record by itself, unpadded, has the owner that it has among all the others."""
    chosen = config.model_copy(update={"owner_vote": vote})
    train = datasets.Dataset(splits[0])
    layers = {"layers": [0, 2]}
    partition = assign_record_owners(train, base_model, layers, chosen)
    assert partition.column_names == ["layer_0", "layer_2"]
    assert partition.schema.field("layer_0").type == pa.int64()
    encoder = load_encoder(base_model)
    for row, tokens in enumerate(splits[0]["input_ids"].to_pylist()[:60]):
        alone = torch.tensor([tokens])
        votes = record_votes(encoder, alone, torch.ones_like(alone), vote=vote)
        for layer in (0, 2):
            assert partition[f"layer_{layer}"][row].as_py() == int(assign_owners(votes[layer]))
    assert len(set(partition["layer_0"].to_pylist())) > 1


def test_owners_stay_when_another_record_leaves(
    splits: tuple[pa.Table, pa.Table], base_model: Path, config: IngestionConfig
) -> None:
    plan = {"layers": [1]}
    whole = assign_record_owners(datasets.Dataset(splits[0]), base_model, plan, config)["layer_1"].to_pylist()
    for gone in (0, 77, 179):
        kept = [row for row in range(180) if row != gone]
        left = assign_record_owners(datasets.Dataset(splits[0].take(kept)), base_model, plan, config)
        assert left["layer_1"].to_pylist() == [whole[row] for row in kept]


class FloatingTypes(TorchDispatchMode):
    """The types of all floating-point tensors that are made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.made.add(value.dtype)
        return found


@pytest.mark.parametrize(
    ("family", "kept"),
    [(None, 1), (None, 5), (None, 39), ("deepseek_v2", 5), ("olmoe", 5), ("mixtral", 5)],
)
def test_votes_move_with_their_company_by_float64_rounding_alone(
    base_model: Path, family: str | None, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a family's own code routes, or takes its softmax, in float32."""
    if family is not None:
        base_model = tmp_path / family
        save_checkpoint(base_model, family)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(2, 30, (40, 6), generator=generator).tolist()
    seen: list[torch.Tensor] = []
    types = FloatingTypes()

    def watched(*given: Any, **options: Any) -> dict[int, torch.Tensor]:
        with types:
            found = record_votes(*given, **options)
        seen.append(found[1])
        return found

    monkeypatch.setattr(owners, "record_votes", watched)
    for part in (rows, rows[:kept]):
        owners.record_owners(
            pa.chunked_array([pa.array(part, pa.list_(pa.int32()))]), base_model, [1], "weight"
        )
    whole, few = seen
    # On a small model float32 may round alike in any company, so that only what was computed with tells.
    assert types.made == {torch.float64}
    assert (whole[:kept] - few).abs().max() < 1e-13
    assert (whole - whole.float().double()).abs().max() > 1e-10, "these votes were made in float32"


def test_no_forward_pass_holds_padding(
    splits: tuple[pa.Table, pa.Table],
    base_model: Path,
    config: IngestionConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def votes(encoder: object, input_ids: torch.Tensor, mask: torch.Tensor, **options: object) -> dict:
        assert mask.all()
        seen.append(len(input_ids))
        return record_votes(encoder, input_ids, mask, **options)

    monkeypatch.setattr(owners, "record_votes", votes)
    monkeypatch.setattr(owners, "BATCH", 7)
    assign_record_owners(datasets.Dataset(splits[0]), base_model, {"layers": [1]}, config)
    assert sum(seen) == 180
    assert max(seen) == 7


@pytest.mark.parametrize("layers", [[], [3], [1, 9]])
def test_a_plan_for_another_model_stops(
    splits: tuple[pa.Table, pa.Table], base_model: Path, config: IngestionConfig, layers: list[int]
) -> None:
    with pytest.raises(ModelError, match=r"sparse layers are \[0, 1, 2\]"):
        assign_record_owners(datasets.Dataset(splits[0]), base_model, {"layers": layers}, config)


def test_what_is_declared_public(splits: tuple[pa.Table, pa.Table], config: IngestionConfig) -> None:
    train = datasets.Dataset(splits[0])
    assert declare_public_constants(train, ["a", "b"], "auto", config) == {
        "population": 180,
        "population_source": "declared: rows of the training split",
        "num_classes": 2,
        "source": "own",
        "taken_as_public": [CONSTANTS_ARE_PUBLIC, CLASSES_ARE_PUBLIC],
    }
    fixed = declare_public_constants(train, ["a", "b"], 150, IngestionConfig())
    assert fixed["population"] == 150
    assert fixed["population_source"] == "declared: privacy.population"
    assert fixed["source"] == "embedded"
    # Nothing but what is declared: not a path, not a count of a class.
    assert set(fixed) == {"population", "population_source", "num_classes", "source", "taken_as_public"}


def test_the_log_says_the_same_whatever_the_records_hold(
    base_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for rows in (
        "a,x,train\nb,y,train\nc,y,dev\n",
        "a,x,train\nb,y,train\nb,y,train\n,x,train\nc,x,dev\nd,y,dev\n",
    ):
        caplog.clear()
        config = IngestionConfig(source=str(put(tmp_path, "a.csv", "text,label,s\n" + rows)), split="s")
        with caplog.at_level(logging.INFO, logger="raptor"):
            table, names, _ = read_records(base_model, config)
            train, _ = encode_splits(datasets.Dataset(table), base_model, config)
            declare_public_constants(datasets.Dataset(train), names, "auto", config)
            assign_record_owners(datasets.Dataset(train), base_model, {"layers": [0]}, config)
        said.append(caplog.messages)
    assert said[0] == said[1]
    assert said[0]


def test_an_error_in_the_pipeline_holds_no_value(base_model: Path, tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "text,label,s\na,x,train\nb,y,secret words\n")
    with pytest.raises(RecordError, match="line 3, column 's': this is no split") as caught:
        read_records(base_model, IngestionConfig(source=str(path), split="s"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"held_out_fraction": 0},
        {"held_out_fraction": 1},
        {"owner_vote": "most"},
        {"max_length": 1},
        {"labels": "y"},
        {"records": 0},
        {"max_classes": 1},
        {"source": ""},
    ],
)
def test_parameters_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        IngestionConfig(**wrong)


def test_columns_may_be_called_by_numbers() -> None:
    assert IngestionConfig(label=1).label == "1"
    assert IngestionConfig(text=["q", "p"]).text == ("q", "p")


def test_wiring_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom raptor.pipelines.ingestion import create_pipeline\ncreate_pipeline()\n"
        "heavy = {'torch', 'transformers', 'datasets', 'mlflow', 'pandas', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.exhaustive
def test_many_short_texts_take_little_memory(base_model: Path, tmp_path: Path) -> None:
    """300,000 records, read and encoded in a process of their own; a million take twice as much, not more."""
    rows = "".join(f"{'abcdefgh'[n % 8]} {n} {'klm'[n % 3]} q r s,{'xy'[n % 2]}\n" for n in range(300_000))
    source = put(tmp_path, "a.csv", "text,label\n" + rows)
    script = f"""
import resource
from pathlib import Path
import datasets
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.ingestion.nodes import encode_splits, read_records
base, config = Path({str(base_model)!r}), IngestionConfig(source={str(source)!r})
table, _, _ = read_records(base, config)
train, held_out = encode_splits(datasets.Dataset(table), base, config)
assert len(train) + len(held_out) == 300_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 1_000_000
