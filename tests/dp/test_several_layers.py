"""Experts of several layers in one stream: a record moves its owners in all of them, together by one clipping norm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from raptor.cli import cli
from raptor.dp.clipping import ClippingRule
from raptor.dp.config import TrainingConfig
from raptor.dp.engines import engine_specs
from raptor.dp.plan import EXPERT
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import make_trainable
from raptor.dp.training import Trainer, random_source
from raptor.errors import LedgerError, ParameterError
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import expert_parameters
from raptor.moe.routing import record_votes
from raptor.pipelines.evaluation.config import EvaluationConfig, EvaluationScope
from raptor.pipelines.selection.config import SelectionConfig
from raptor.pipelines.training.config import PrivacyConfig
from raptor.pipelines.training.planning import protected_layers, raptor_plan, require_isolated
from raptor.pipelines.training.records import encoded_records
from tests.tiny import tiny_batch, tiny_classifier

LAYERS, EXPERTS, RECORDS, NORM = (3, 1), 4, 12, 0.05
SHAPE = {"layers": 4}
CONFIG = TrainingConfig(
    device="cpu", batch_size=6, cycles=2, randomness="seeded", seed=3, expert={"learning_rate": 1e-2}
)


def model_and_records(dtype: torch.dtype = torch.float64) -> tuple:
    model = tiny_classifier(dtype=dtype, **SHAPE)
    ids, mask, labels = tiny_batch(RECORDS)
    votes = record_votes(model.encoder, ids, mask)
    owners = torch.stack([assign_owners(votes[layer]) for layer in LAYERS], dim=1)
    return model, EncodedRecords(ids.int(), mask.sum(dim=1), labels, owners)


@pytest.mark.parametrize("trainable", ["full", "lora"])
@pytest.mark.parametrize("owners", ["one", "active"])
def test_the_gate_passes_and_all_layers_count(trainable: str, owners: str) -> None:
    config = CONFIG.model_copy(update={"trainable": trainable, "owners": owners})
    model, _ = model_and_records(torch.float32)
    assert require_isolated(model, LAYERS, config).groups == ("shared", "expert")
    found = make_trainable(model, config, LAYERS).expert
    for layer in LAYERS:
        assert set(found) & set(expert_parameters(model, [layer]))
    assert set(found) <= set(expert_parameters(model, LAYERS))


@pytest.mark.parametrize("gone", range(4))
def test_a_record_moves_its_owners_of_all_layers_by_one_norm(gone: int) -> None:
    model, records = model_and_records()
    trainable = make_trainable(model, CONFIG, LAYERS)
    engine = next(s for s in engine_specs(trainable, LAYERS, CONFIG) if s.name == EXPERT).build(model)
    device = torch.device("cpu")
    rows = torch.arange(RECORDS)
    with_it = engine.clipped_sum(records.take(rows, device), ClippingRule(NORM)).tensors
    without = engine.clipped_sum(records.take(rows[rows != gone], device), ClippingRule(NORM)).tensors
    moved = {name: with_it[name] - without[name] for name in with_it}
    length = float(sum(value.square().sum() for value in moved.values())) ** 0.5
    # Its gradient is longer than the norm, so that it moves the sums by nearly all of it and by no more.
    assert 0.999 * NORM < length <= NORM
    for place, layer in enumerate(LAYERS):
        names = set(expert_parameters(model, [layer])) & set(moved)
        changed = {
            name.split("expert_")[1].split(".")[0]
            for name in names
            if bool((moved[name].abs() > 1e-12).any())
        }
        assert changed == {str(int(records.owners[gone, place]))}


def plan_of(config: TrainingConfig):
    layers = {"layers": list(LAYERS), "experts": EXPERTS}
    constants = {"population": RECORDS, "population_source": "declared", "taken_as_public": []}
    scope = EvaluationScope(records_are_public=True, baselines=())
    privacy = PrivacyConfig(epsilon=4.0, delta=1e-2)
    return raptor_plan(layers, constants, privacy, config, EvaluationConfig(), scope)


@pytest.mark.parametrize("owners", ["one", "active"])
def test_training_moves_the_experts_of_these_layers_by_no_more_releases(owners: str) -> None:
    config = CONFIG.model_copy(update={"owners": owners})
    model, records = model_and_records(torch.float32)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    plan = plan_of(config)
    assert plan.layers == LAYERS
    sink: list = []
    Trainer(model, records, plan, config, random_source(config), sink).train()
    moved = {n for n, value in model.named_parameters() if not torch.equal(value, before[n])}
    assert set(expert_parameters(model)) & moved == set(expert_parameters(model, LAYERS))
    assert [release.stream for release in sink].count(EXPERT) == config.cycles


def test_owners_come_in_the_order_of_the_layers() -> None:
    from datasets import Dataset

    split = Dataset.from_dict({"input_ids": [[1, 2], [3]], "label": [0, 1]})
    owners = Dataset.from_dict({"layer_1": [0, 1], "layer_3": [2, 3]})
    assert encoded_records(split, owners, LAYERS).owners.tolist() == [[2, 0], [3, 1]]
    assert encoded_records(split, owners, [3]).owners.tolist() == [2, 3]


@pytest.mark.parametrize(
    "change", [{"expert_steps": "public"}, {"expert_norms": "auto"}, {"expert_norms": (1.0, 1.0, 1.0, 2.0)}]
)
def test_experts_of_several_layers_are_not_told_apart(change: dict) -> None:
    with pytest.raises(ParameterError, match="2 layers are protected"):
        protected_layers({"layers": list(LAYERS)}, CONFIG.model_copy(update=change))
    assert protected_layers({"layers": [1]}, CONFIG.model_copy(update=change)) == (1,)


def test_a_plan_of_an_earlier_version_is_said_to_be_one() -> None:
    from raptor.accounting.plan import read_plan

    older = {**plan_of(CONFIG).to_json(), "layer": 1}
    with pytest.raises(LedgerError, match="earlier version of raptor"):
        read_plan({name: value for name, value in older.items() if name != "layers"})


def test_a_plan_names_each_layer_once() -> None:
    from raptor.accounting.plan import read_plan

    plan = plan_of(CONFIG)
    assert read_plan(plan.to_json()) == plan
    for wrong in ([], [1, 1], [-1], 3, ["x"]):
        with pytest.raises(LedgerError, match="layers"):
            read_plan({**plan.to_json(), "layers": wrong})


@pytest.mark.parametrize("given", [{"layers": "last"}, {"layers": 3}, {"layers": [1, 1]}])
def test_no_more_layers_than_are_named(given: dict) -> None:
    with pytest.raises(ValueError, match="protected_layers is 2, but layers names 1"):
        SelectionConfig(**given, protected_layers=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("selection.protected_layers=7", "only 6 sparse layers"),
        ("selection.protected_layers=2,training.expert_steps=public", "but 2 layers are protected"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_forecast_refuses_what_a_run_would(
    repository: Path, monkeypatch: pytest.MonkeyPatch, command: str, given: str, message: str
) -> None:
    monkeypatch.chdir(repository)
    done = CliRunner().invoke(cli, [command, "--env", "glue-switch", "--dry-run", "--params", given])
    assert done.exit_code == 1
    assert message in done.output
