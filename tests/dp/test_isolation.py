"""The isolation gate: it passes what is covered, and refuses by name every fault planted in model, loss or engine."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import raptor
from raptor.dp import clipping
from raptor.dp.config import StreamConfig, TrainingConfig
from raptor.dp.gradients import engine as engines
from raptor.dp.gradients import kernels
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import causal_loss, classification_loss
from raptor.dp.gradients.taps import EmbeddingTap, ExpertsTap, LinearTap
from raptor.dp.gradients.taps.base import OneOutputTap
from raptor.dp.isolation import EngineSpec, check_isolation
from raptor.errors import ModelError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layers
from raptor.moe.roles import expert_parameters, shared_parameters
from raptor.pipelines.ingestion.config import IngestionConfig
from raptor.pipelines.training.nodes import train_raptor
from raptor.pipelines.training.planning import require_isolated
from tests.dp.engines import EVERY_FAMILY
from tests.dp.test_trainable import Stage
from tests.families import family_classifier, family_language_model
from tests.tiny import tiny_classifier

EMBEDDED = Path(raptor.__file__).parent / "assets/base_model"


def specs(model, loss=classification_loss, roles=("shared", "expert"), layers=None) -> list[EngineSpec]:
    chosen = [layer.index for layer in sparse_layers(model)][-1:] if layers is None else layers
    known = {
        "shared": EngineSpec("shared", lambda m: JointGradients(m, shared_parameters(m), loss=loss)),
        "expert": EngineSpec("expert", lambda m: OwnerExpertGradients(m, chosen, loss=loss), tuple(chosen)),
        "monolithic": EngineSpec(
            "monolithic", lambda m: JointGradients(m, shared_parameters(m) + expert_parameters(m), loss=loss)
        ),
    }
    return [known[role] for role in roles]


def gate(model, loss=classification_loss, classes=3, **chosen):
    return check_isolation(model, specs(model, loss, **chosen), loss, classes=classes)


def refused(model, match: str, loss=classification_loss, classes=3, **chosen) -> None:
    with pytest.raises(ModelError, match=match):
        gate(model, loss, classes, **chosen)


# What is covered passes.


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_classifier_of_every_family_passes_in_every_role(family) -> None:
    model = family_classifier(family)
    layers = [layer.index for layer in sparse_layers(model)][-2:]
    passed = gate(model, roles=("shared", "expert", "monolithic"), layers=layers)
    assert passed.groups == ("shared", "expert", "monolithic")
    assert passed.precisions == ("float64",)


@pytest.mark.parametrize("family", [name for name in EVERY_FAMILY if name != "switch_transformers"])
def test_a_language_model_of_every_family_passes_in_float32(family) -> None:
    model = family_language_model(family, torch.float32)
    assert gate(model, causal_loss, None).precisions == ("float64", "float32")


def test_a_tied_head_passes() -> None:
    gate(family_language_model("olmoe", tie_word_embeddings=True), causal_loss, None)


def test_the_embedded_model_passes_with_its_new_head_of_zeros_and_is_left_as_it_was() -> None:
    model = MoEClassifier.from_encoder(EMBEDDED, 5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    start = time.process_time()
    text = str(gate(model, classes=5))
    print(f"gate on the embedded model: {time.process_time() - start:.1f} s of CPU")
    assert text.startswith(
        "Isolation gate passed for the shared and expert parameters, in float64 and float32"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(value.grad is not None for value in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_too_large_for_copies_is_checked_in_place_and_put_back(monkeypatch) -> None:
    monkeypatch.setattr("raptor.dp.isolation.gate.COPY_LIMIT", 0)
    model = tiny_classifier(dtype=torch.float32)
    nn.init.zeros_(model.head.weight)
    passed = gate(model)
    assert passed.precisions == ("float32",)
    assert "no check in float64" in str(passed)
    assert not model.head.weight.any()


def test_a_capacity_counted_for_each_record_passes() -> None:
    gate(tiny_classifier(capacity=2))


def test_dropout_layers_pass_and_the_report_says_so() -> None:
    model = tiny_classifier()
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    model.head[0].train()
    assert "Dropout was off in the checks" in str(gate(model))
    assert model.head[0].p == 0.5


@pytest.mark.parametrize("trainable", ["full", "lora"])
@pytest.mark.parametrize(("shared", "expert"), [(1, 1), (0, 1), (1, 0)])
def test_training_checks_the_engines_that_its_schedule_uses(trainable, shared, expert) -> None:
    config = TrainingConfig(
        device="cpu",
        trainable=trainable,
        shared=StreamConfig(steps_per_cycle=shared),
        expert=StreamConfig(steps_per_cycle=expert),
    )
    passed = require_isolated(tiny_classifier(dtype=torch.float32), [1], config)
    assert passed.groups == ("shared",) * shared + ("expert",) * expert


# Models that couple records.


class Wrapped(nn.Module):
    """A module with a change of its own after it; unlike a closure it is copied with the model."""

    def __init__(self, inner: nn.Module, change) -> None:
        super().__init__()
        self.inner = inner
        self.change = change

    def forward(self, *args, **kwargs):
        return self.change(self.inner(*args, **kwargs))


def wrap(model, name: str, change) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, Wrapped(model.get_submodule(name), change))


LAST_NORM = "encoder.encoder.final_layer_norm"


def test_attention_across_records_is_refused_and_the_module_named() -> None:
    model = tiny_classifier()
    wrap(model, LAST_NORM, lambda hidden: hidden - hidden.mean(dim=0, keepdim=True))
    refused(model, rf"records are not independent.*that of the module {LAST_NORM} \(Wrapped\)")


def test_a_weak_coupling_is_found_in_float64() -> None:
    model = tiny_classifier(dtype=torch.float32)
    wrap(model, LAST_NORM, lambda hidden: hidden - 1e-4 * hidden.mean(dim=0, keepdim=True))
    refused(model, "float64.*final_layer_norm")


class BatchCapacity(nn.Module):
    """Experts take so many tokens of the whole batch, first come first served."""

    def __init__(self, router: nn.Module, capacity: int) -> None:
        super().__init__()
        self.inner = router
        self.num_experts = router.num_experts
        self.limit = capacity

    def forward(self, hidden):
        chosen, weights, logits = self.inner(hidden)
        flat = chosen.reshape(-1, self.num_experts)
        kept = flat * (flat.cumsum(dim=0) <= self.limit)
        return kept.reshape(chosen.shape), weights, logits


@pytest.mark.parametrize("capacity", [3, 60, 900])
def test_a_capacity_of_the_whole_batch_is_refused(capacity) -> None:
    model = tiny_classifier()
    block = sparse_layers(model)[0].block
    block.router = BatchCapacity(block.router, capacity)
    refused(model, r"another loss (with other records|among).*mlp\.router \(BatchCapacity\)")


class Flattened(type(sparse_layers(tiny_classifier())[0].router)):
    """Capacity counted over the flattened batch, as in other implementations of Switch."""

    def forward(self, hidden):
        records, tokens, width = hidden.shape
        result = super().forward(hidden.reshape(1, records * tokens, width))
        return tuple(value.reshape(records, tokens, -1) for value in result)


def test_a_capacity_that_the_default_hides_is_found_with_the_least_capacity() -> None:
    model = tiny_classifier(capacity=4096)
    sparse_layers(model)[0].router.__class__ = Flattened
    refused(model, r"expert_capacity 1.*mlp\.router \(Flattened\)")


def test_batch_norm_is_refused_in_any_mode() -> None:
    model = tiny_classifier()
    model.norm = nn.BatchNorm1d(4).eval()
    refused(model, r"statistics of batches: the module norm \(BatchNorm1d\)")


class Balanced(nn.Module):
    """A bias of the router that follows the load, in evaluation mode too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("e_score_correction_bias", torch.zeros(16))

    def forward(self, hidden):
        self.e_score_correction_bias += 1e-3 * hidden.detach().mean(dim=(0, 1)).sign().float()
        return self.inner(hidden)


def test_a_buffer_that_follows_the_load_is_refused_by_name() -> None:
    model = tiny_classifier()
    model.encoder.encoder.final_layer_norm = Balanced(model.encoder.encoder.final_layer_norm)
    refused(model, "state: a pass.*changes.*e_score_correction_bias")


class Turned(nn.Module):
    """A head that is computed as (tokens, records, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, hidden):
        return self.linear(hidden.transpose(0, 1)).transpose(0, 1)


class TurnedFlat(Turned):
    def forward(self, hidden):
        records, tokens, width = hidden.shape
        flat = hidden.transpose(0, 1).reshape(-1, width)
        return self.linear(flat).reshape(tokens, records, width).transpose(0, 1)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (Turned, r"final_layer_norm\.1\.linear\.weight has neither records"),
        (TurnedFlat, "shared parameters, sum over records"),
    ],
)
def test_tokens_before_records_are_refused(kind, match) -> None:
    model = tiny_classifier()
    encoder = model.encoder.encoder
    encoder.final_layer_norm = nn.Sequential(encoder.final_layer_norm, kind(16).double())
    refused(model, match)


def test_an_auxiliary_loss_of_the_config_is_refused() -> None:
    model = family_classifier("olmoe")
    model.encoder.config.output_router_logits = True
    refused(model, "auxiliary losses: .*router_aux_loss_coef")


def test_a_loss_with_an_auxiliary_part_is_refused() -> None:
    def loss(model, batch):
        own = classification_loss(model, batch)
        load = model(batch.input_ids, batch.attention_mask).mean(dim=0)
        return own + 0.1 * load.square().sum()

    refused(tiny_classifier(), "records are not independent.*it is the loss function", loss)


def test_a_mean_over_the_batch_is_refused_in_either_shape() -> None:
    refused(
        tiny_classifier(),
        r"losses: the loss has the shape \(\)",
        lambda m, b: classification_loss(m, b).mean(),
    )
    refused(
        tiny_classifier(),
        "it is the loss function",
        lambda m, b: classification_loss(m, b).mean().expand(len(b)),
    )


def test_a_loss_that_counts_padding_is_refused() -> None:
    def loss(model, batch):
        return classification_loss(model, batch) / batch.input_ids.shape[1]

    refused(tiny_classifier(), "records are not independent", loss)


# Parts that are refused by name.


def test_a_capacity_below_one_is_refused() -> None:
    refused(tiny_classifier(capacity=0), "capacity: the router .*expert_capacity of 0")


def test_too_few_position_buckets_are_refused() -> None:
    model = tiny_classifier()
    for module in model.modules():
        if hasattr(module, "relative_attention_num_buckets"):
            module.relative_attention_num_buckets = 2
    refused(model, "relative_attention_num_buckets 2")


def test_jitter_is_refused_in_training_mode_only() -> None:
    model = tiny_classifier()
    sparse_layers(model)[1].router.jitter_noise = 0.1
    gate(model)
    refused(model.train(), r"jitter: the router .*mlp\.router")


def test_randomness_that_is_no_dropout_layer_is_refused() -> None:
    model = tiny_classifier()
    wrap(model, LAST_NORM, lambda hidden: nn.functional.dropout(hidden, 0.5, training=True))
    refused(model, "repetition")


def test_a_trained_router_is_refused() -> None:
    model = tiny_classifier()
    spec = EngineSpec(
        "shared", lambda m: JointGradients(m, [f"{sparse_layers(m)[0].name}.router.classifier.weight"])
    )
    with pytest.raises(ModelError, match=r"routers: the shared parameters .*router\.classifier\.weight"):
        check_isolation(model, [spec], classes=3)


def test_a_badly_scaled_model_is_refused() -> None:
    model = tiny_classifier(dtype=torch.float32, layers=3, sparse=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".q." in name or ".k." in name:
                parameter.mul_(3e3)
    refused(model, "rounding|records are not independent|float32")


# Faults of an engine, planted in our own code.


class Faulty:
    """An engine with a fault around a right one."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.parameters = engine.parameters
        self.scales = engine.scales

    def clipped_sum(self, batch, rule):
        return self._engine.clipped_sum(batch, rule)


def faulty(kind) -> list[EngineSpec]:
    return [EngineSpec("shared", lambda m: kind(JointGradients(m, shared_parameters(m))))]


def refused_engine(kind, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        check_isolation(tiny_classifier(), faulty(kind), classes=3)


def test_a_token_clipped_as_a_record_is_refused(monkeypatch) -> None:
    def of_tokens(activations, gradients, *_rest):
        return (activations.square().sum(dim=2) * gradients.square().sum(dim=2)).sum(dim=1)

    monkeypatch.setattr(kernels, "linear_squared_norms", of_tokens)
    refused(tiny_classifier(), "shared parameters, per-record norm")


@pytest.mark.parametrize(("tap", "role"), [(LinearTap, "shared"), (ExpertsTap, "expert")])
def test_a_stale_norm_is_refused(monkeypatch, tap, role) -> None:
    original, last = tap.squared_norms, {}

    def stale(self):
        norms = original(self)
        old = last.get(self.parameters)
        last[self.parameters] = norms
        return norms if old is None or old.shape != norms.shape else old

    monkeypatch.setattr(tap, "squared_norms", stale)
    refused(tiny_classifier(), f"{role} parameters, per-record norm", roles=(role,))


def test_a_norm_that_counts_too_little_is_refused(monkeypatch) -> None:
    original = LinearTap.squared_norms
    monkeypatch.setattr(LinearTap, "squared_norms", lambda self: 0.999 * original(self))
    refused(tiny_classifier(), "shared parameters, per-record norm")


def test_a_mean_instead_of_a_sum_is_refused(monkeypatch) -> None:
    def mean(taps, finite, rule):
        total = clipping.clip_and_sum(taps, finite, rule)
        return replace(total, tensors={name: value / len(finite) for name, value in total.tensors.items()})

    monkeypatch.setattr(engines, "clip_and_sum", mean)
    refused(tiny_classifier(), "shared parameters, accumulation|sum over records")


def test_a_tied_head_without_its_cross_term_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "tied_inner_products", lambda ids, *_rest: torch.zeros(len(ids)).double())
    model = family_language_model("olmoe", tie_word_embeddings=True)
    refused(model, "shared parameters, per-record norm", causal_loss, None)


def test_padding_that_counts_in_an_embedding_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(EmbeddingTap, "_keep", OneOutputTap._keep)
    refused(family_classifier("olmoe"), "per-record gradient: .*embed_tokens")


def test_sums_that_share_memory_are_refused() -> None:
    class Aliased(Faulty):
        buffer = None

        def clipped_sum(self, batch, rule):
            total = super().clipped_sum(batch, rule)
            if self.buffer is None:
                self.buffer = total.tensors
            for name, value in total.tensors.items():
                self.buffer[name].copy_(value)
            return replace(total, tensors=self.buffer)

    refused_engine(Aliased, "accumulation")


def test_an_accumulation_that_replaces_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(clipping.ClippedSum, "add", lambda self, other: self.tensors.update(other.tensors))
    refused(tiny_classifier(), "accumulation")


def test_a_gradient_lost_at_experts_is_refused(monkeypatch) -> None:
    original = ExpertsTap._run_in_graph
    monkeypatch.setattr(
        ExpertsTap, "_run_in_graph", lambda self, hidden, a: original(self, hidden.detach(), a)
    )
    refused(tiny_classifier(), "monolithic parameters, per-record gradient", roles=("monolithic",))


def test_a_gradient_lost_at_experts_that_do_not_own_is_refused(monkeypatch) -> None:
    """Two protected layers: what reaches the lower one through the upper one's other experts is part of it."""
    original = ExpertsTap._run_in_graph

    def cut(self, hidden, assignment):
        if self._pass.owners is None:
            return original(self, hidden, assignment)
        rows, output = original(self, hidden, assignment)
        owner = self._pass.owners[:, self._position][self._records_of(assignment)]
        other = torch.zeros(len(hidden), dtype=torch.bool)
        other[assignment.token[assignment.expert != owner]] = True
        return rows, torch.where(other[:, None], output.detach(), output)

    monkeypatch.setattr(ExpertsTap, "_run_in_graph", cut)
    model = tiny_classifier(layers=3, sparse=3)
    refused(model, "expert parameters, per-record gradient", roles=("expert",), layers=[1, 2])


def test_a_gradient_of_other_experts_than_the_owner_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(ExpertsTap, "_owned", lambda self, assignment: torch.arange(len(assignment.expert)))
    refused(tiny_classifier(), "expert parameters, per-record gradient", roles=("expert",))


def test_an_engine_that_leaves_gradients_is_refused() -> None:
    class Leaving(Faulty):
        def clipped_sum(self, batch, rule):
            total = super().clipped_sum(batch, rule)
            if len(batch):
                self._engine._model.head.bias.grad = torch.ones_like(self._engine._model.head.bias)
            return total

    refused_engine(Leaving, r"gradients left behind: .*head\.bias")


def test_an_engine_that_remembers_is_refused() -> None:
    class Remembering(Faulty):
        passes = 0

        def clipped_sum(self, batch, rule):
            self.passes += 1
            total = super().clipped_sum(batch, rule)
            if self.passes > 25:
                for value in total.tensors.values():
                    value.mul_(2)
            return total

    refused_engine(Remembering, "shared parameters, (memory|sensitivity|sum over records)")


def test_an_engine_that_ignores_the_clipping_norm_is_refused() -> None:
    class Unclipped(Faulty):
        def clipped_sum(self, batch, rule):
            return super().clipped_sum(batch, replace(rule, norm=1e12))

    refused_engine(Unclipped, "per-record norm")


def test_a_model_that_fails_is_refused_with_its_reason() -> None:
    class Failing(Faulty):
        def clipped_sum(self, batch, rule):
            raise RuntimeError("no kernel for this shape")

    refused_engine(Failing, "running the model: it fails .*no kernel for this shape")


# Where the gate stands.


def test_nothing_is_opened_when_the_gate_refuses(tmp_path, monkeypatch) -> None:
    stage = Stage(tmp_path)
    monkeypatch.setattr(
        LinearTap, "squared_norms", lambda self: self._linear.weight.new_ones(self._pass.records)
    )
    names = [f"class {label}" for label in range(stage.classes)]
    with pytest.raises(ModelError, match=r"Isolation gate, shared parameters.*Nothing was spent"):
        train_raptor(
            stage.base,
            names,
            stage.train,
            stage.owners,
            stage.plan,
            stage.journals,
            stage.checkpoints,
            stage.training,
            IngestionConfig(),
        )
    assert not any(stage.journals.iterdir())
