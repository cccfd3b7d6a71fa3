"""What no exact gradient is known for is refused by name, most of it before a record is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import AutoModelForCausalLM, GptOssConfig

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import classification_loss
from raptor.dp.records import Batch
from raptor.errors import ModelError
from raptor.moe.families import sparse_layers
from raptor.moe.roles import shared_parameters
from tests.dp.engines import assert_matches, assert_same, engine_for, make_batch
from tests.families import family_classifier
from tests.tiny import tiny_classifier

RULE = ClippingRule(0.5)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("has_bias", True, "biases"),
        ("is_transposed", True, "transposed"),
        ("is_concatenated", False, "interleaved"),
        ("has_post_expert_norm", True, "norm after each expert"),
        ("_is_expert_parallel", True, "expert parallelism"),
    ],
)
def test_layouts_of_experts(flag: str, value: bool, words: str) -> None:
    model = family_classifier("olmoe")
    layer = sparse_layers(model)[1]
    setattr(layer.experts, flag, value)
    with pytest.raises(ModelError, match=words) as refused:
        OwnerExpertGradients(model, layer.index)
    assert layer.name in str(refused.value)
    with pytest.raises(ModelError, match=words):
        engine_for(model, "monolithic")


@pytest.mark.parametrize("family", ["olmoe", "switch_transformers"])
def test_experts_with_more_than_their_two_matrices(family: str) -> None:
    model = family_classifier(family)
    sparse_layers(model)[1].experts.extra_scale = nn.Parameter(torch.ones(3))
    with pytest.raises(ModelError, match="extra_scale"):
        engine_for(model, "expert")


def test_gpt_oss_is_no_covered_family() -> None:
    config = GptOssConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match=r"GptOssForCausalLM has no sparse layer.*olmoe"):
        JointGradients(model, [name for name, _ in model.named_parameters()])


def test_layers_that_are_not_sparse_and_parameters_that_are_not_theirs() -> None:
    model = family_classifier("deepseek_v2")
    with pytest.raises(ModelError, match="Layer 0 is not sparse"):
        OwnerExpertGradients(model, 0)
    with pytest.raises(ModelError, match=r"has the parameters head\.weight"):
        OwnerExpertGradients(model, 1, parameters=["head.weight"])
    with pytest.raises(ModelError, match=r"no parameters named nowhere\.weight"):
        JointGradients(model, ["nowhere.weight"])


def test_one_expert_of_several_tensors_alone() -> None:
    model = family_classifier("switch_transformers")
    name = sparse_layers(model)[1].bank().parameters[0]
    with pytest.raises(ModelError, match=r"not claimed exactly once.*expert_0\.wi"):
        OwnerExpertGradients(model, 1, parameters=[name])


class _Scaled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class _ScaledTable(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return 2 * super().forward(ids)


class _Matrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 3))


UNCOVERED: dict[str, Callable[[], nn.Module]] = {
    "a derived linear layer": lambda: _Scaled(3, 3),
    "a derived table": lambda: _ScaledTable(3, 3),
    "a convolution": lambda: nn.Conv1d(3, 3, 1),
    "batch norm": lambda: nn.BatchNorm1d(3),
    "instance norm": lambda: nn.InstanceNorm1d(3, affine=True),
    "group norm": lambda: nn.GroupNorm(1, 3),
    "attention of torch": lambda: nn.MultiheadAttention(4, 2),
    "a recurrent layer": lambda: nn.GRU(3, 3),
    "a bilinear layer": lambda: nn.Bilinear(3, 3, 3),
    "a matrix of unknown use": _Matrix,
    "a reparametrised weight": lambda: weight_norm(nn.Linear(3, 3)),
}


@pytest.mark.parametrize("kind", UNCOVERED)
def test_parameters_of_uncovered_modules(kind: str) -> None:
    model = tiny_classifier()
    model.strange = UNCOVERED[kind]()
    with pytest.raises(ModelError, match=r"strange\."):
        JointGradients(model, shared_parameters(model))


@pytest.mark.parametrize(
    "options",
    [{"scale_grad_by_freq": True}, {"max_norm": 1.0}, {"sparse": True}],
    ids=lambda o: next(iter(o)),
)
def test_tables_that_couple_records(options: dict[str, object]) -> None:
    model = family_classifier("olmoe")
    table = nn.Embedding(50, 16, dtype=torch.float64, **options)
    model.encoder.set_input_embeddings(table)
    with pytest.raises(ModelError, match=r"embed_tokens\.weight.*not covered"):
        engine_for(model, "shared")


def test_a_norm_over_several_dimensions() -> None:
    model = tiny_classifier()
    model.strange = nn.LayerNorm((3, 3))
    with pytest.raises(ModelError, match=r"strange\.weight normalises"):
        JointGradients(model, shared_parameters(model))


def with_loss(model: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> JointGradients:
    """An engine over all shared parameters; what `forward` makes of the hidden states is added to the loss."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        hidden = model.encoder(batch.input_ids, batch.attention_mask).last_hidden_state
        return classification_loss(model, batch) + forward(model, hidden)

    return JointGradients(model, ["strange.weight"], loss=loss)


def per_record(value: Tensor) -> Tensor:
    return value.flatten(1).sum(dim=1)


@pytest.mark.parametrize("size", [(4, 7), (5, 5), (2, 2), (7, 4)], ids=str)
@pytest.mark.parametrize(
    "module", [nn.Linear(16, 16), nn.LayerNorm(16), nn.RMSNorm(16)], ids=lambda m: type(m).__name__
)
def test_tokens_before_records_are_refused_even_with_as_many_of_both(
    module: nn.Module, size: tuple[int, int]
) -> None:
    model = tiny_classifier()
    model.strange = module.double()
    engine = with_loss(model, lambda m, hidden: per_record(m.strange(hidden.transpose(0, 1)).transpose(0, 1)))
    batch = make_batch(model, "shared", "none", records=size[0], tokens=size[1])
    if size == (2, 2):
        # Taken in two parts of one record, this layout is exact.
        assert_matches(model, "shared", batch, engine=engine, loss=engine._loss)
        return
    with pytest.raises(ModelError, match=r"strange\.weight"):
        engine.clipped_sum(batch, RULE)


@pytest.mark.parametrize(
    "module", [nn.Linear(16, 16), nn.LayerNorm(16), nn.Embedding(50, 16)], ids=lambda m: type(m).__name__
)
def test_a_module_that_is_called_twice(module: nn.Module) -> None:
    model = tiny_classifier()
    model.strange = module.double()
    is_table = isinstance(module, nn.Embedding)

    def twice(model: nn.Module, hidden: Tensor) -> Tensor:
        given = torch.ones(hidden.shape[:2], dtype=torch.int64) if is_table else hidden
        return per_record(model.strange(given) + model.strange(given))

    engine = with_loss(model, twice)
    with pytest.raises(ModelError, match=r"strange\.weight is called more than once"):
        engine.clipped_sum(make_batch(model, "shared", records=3), RULE)


def test_a_second_call_of_an_elementwise_norm_and_of_experts() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "expert", records=3)

    def twice(model: nn.Module, batch: Batch) -> Tensor:
        return classification_loss(model, batch) + classification_loss(model, batch)

    with pytest.raises(ModelError, match=r"experts.*called more than once"):
        engine_for(model, "expert", loss=twice).clipped_sum(batch, RULE)
    names = [name for name in shared_parameters(model) if name.endswith("norm.weight")]
    with pytest.raises(ModelError, match=r"norm\.weight is called more than once"):
        JointGradients(model, names, loss=twice).clipped_sum(batch, RULE)


def test_two_tables_of_one_matrix_that_are_both_called() -> None:
    model = tiny_classifier()
    model.strange = nn.Embedding(50, 16, dtype=torch.float64)
    model.again = nn.Embedding(50, 16, dtype=torch.float64)
    model.again.weight = model.strange.weight

    def look_up(*tables: str) -> Callable[[nn.Module, Tensor], Tensor]:
        def forward(model: nn.Module, hidden: Tensor) -> Tensor:
            ids = torch.arange(hidden.shape[0] * hidden.shape[1]).reshape(hidden.shape[:2]) % 5
            return sum(per_record(getattr(model, name)(ids) * hidden) for name in tables)

        return forward

    batch = make_batch(model, "shared", records=3)
    with pytest.raises(ModelError, match="more than once"):
        with_loss(model, look_up("strange", "again")).clipped_sum(batch, RULE)
    first, second = (
        with_loss(model, look_up(name)).clipped_sum(batch, RULE) for name in ("strange", "again")
    )
    assert first.tensors["strange.weight"].any()
    assert_same(first, second)


def test_a_module_that_the_forward_pass_goes_around() -> None:
    """Its weight may be used all the same, by a function; its gradient would be missing without a word."""
    model = tiny_classifier()
    model.strange = nn.Linear(16, 16, dtype=torch.float64)
    engine = with_loss(model, lambda m, hidden: per_record(hidden @ m.strange.weight))
    with pytest.raises(ModelError, match=r"strange\.weight is not called"):
        engine.clipped_sum(make_batch(model, "shared", records=3), RULE)


def test_an_input_that_is_changed_after_its_use() -> None:
    model = tiny_classifier()
    model.strange = nn.Linear(16, 16, dtype=torch.float64)

    def change(model: nn.Module, hidden: Tensor) -> Tensor:
        given = hidden.detach().clone()
        output = model.strange(given)
        given.mul_(2)
        return per_record(output)

    engine = with_loss(model, change)
    with pytest.raises(ModelError, match=r"input of strange\.weight is changed in place"):
        engine.clipped_sum(make_batch(model, "shared", records=3), RULE)


def test_a_loss_that_is_not_one_number_a_record() -> None:
    model = tiny_classifier()
    engine = engine_for(model, "shared", loss=lambda m, b: classification_loss(m, b).mean())
    with pytest.raises(ModelError, match="one number for each record"):
        engine.clipped_sum(make_batch(model, "shared", records=3), RULE)
