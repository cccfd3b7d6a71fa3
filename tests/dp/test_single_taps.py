"""Kinds of modules that the covered families lack, and modules of which only a part is trained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raptor.dp.gradients.engine import JointGradients
from raptor.dp.gradients.losses import RecordLoss
from raptor.dp.records import Batch
from tests.dp.engines import assert_matches, make_batch
from tests.families import family_classifier

WIDTH = 16


def loss_with(module: str, keyword: str | None = None, flat: bool = False) -> RecordLoss:
    """The usual loss, and a penalty on what a module of the model makes of its hidden states."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        hidden = model.encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        values = hidden.last_hidden_state
        given = values.flatten(0, 1) if flat else values
        part = model.get_submodule(module)
        output = part(**{keyword: given}) if keyword else part(given)
        squares = output.square().reshape(len(batch), -1, output.shape[-1]).sum(dim=2)
        mask = batch.attention_mask
        pooled = (values * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        losses = functional.cross_entropy(model.head(pooled), batch.labels, reduction="none")
        return losses + (squares * mask).sum(dim=1)

    return loss


def randomise(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, mean=0.5, std=0.5, generator=generator)
    return module.double()


NORMS = {
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "layer norm without bias": lambda: nn.LayerNorm(WIDTH, bias=False),
    "RMS norm": lambda: nn.RMSNorm(WIDTH),
    "RMS norm with eps": lambda: nn.RMSNorm(WIDTH, eps=0.1),
    "linear": lambda: nn.Linear(WIDTH, 5),
    "linear without bias": lambda: nn.Linear(WIDTH, 5, bias=False),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_modules_of_torch(kind: str, flat: bool) -> None:
    model = family_classifier("olmoe")
    model.extra = randomise(NORMS[kind]())
    names = [
        name for name, _ in model.named_parameters() if name.startswith(("extra.", "encoder.embed", "head"))
    ]
    loss = loss_with("extra", flat=flat)
    batch = make_batch(model, "shared", records=5, tokens=6)
    engine = JointGradients(model, names, loss=loss)
    assert_matches(model, "shared", batch, loss=loss, engine=engine, norms=(None, 1e-3), singles=True)


@pytest.mark.parametrize("kind", ["layer norm", "linear"])
@pytest.mark.parametrize("attribute", ["weight", "bias"])
def test_weight_or_bias_alone(kind: str, attribute: str) -> None:
    model = family_classifier("olmoe")
    model.extra = randomise(NORMS[kind]())
    loss = loss_with("extra")
    batch = make_batch(model, "shared", records=5, tokens=6)
    engine = JointGradients(model, [f"extra.{attribute}"], loss=loss)
    assert_matches(model, "shared", batch, loss=loss, engine=engine, norms=(None, 1e-3), singles=True)


def test_a_norm_without_parameters_needs_no_tap() -> None:
    model = family_classifier("olmoe")
    model.extra = nn.LayerNorm(WIDTH, elementwise_affine=False)
    loss = loss_with("extra")
    batch = make_batch(model, "shared", records=5, tokens=6)
    assert_matches(model, "shared", batch, loss=loss)


@pytest.mark.parametrize(
    ("kind", "keyword"), [("linear", "input"), ("RMS norm", "x"), ("layer norm", "input")]
)
def test_inputs_given_by_keyword(kind: str, keyword: str) -> None:
    model = family_classifier("olmoe")
    model.extra = randomise(NORMS[kind]())
    loss = loss_with("extra", keyword)
    batch = make_batch(model, "shared", records=5, tokens=6)
    assert_matches(model, "shared", batch, loss=loss)


@pytest.mark.parametrize("names", [("head.bias",), ("head.weight",), ("encoder.embed_tokens.weight",)])
def test_a_single_parameter(names: tuple[str, ...]) -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", records=5, tokens=6)
    engine = JointGradients(model, names)
    assert_matches(model, "shared", batch, engine=engine, norms=(None, 1e-3), singles=True)


def test_padding_that_is_a_real_token_gets_no_gradient_as_in_autograd() -> None:
    model = family_classifier("olmoe")
    batch = make_batch(model, "shared", "none", records=5, tokens=6)
    batch.input_ids[:, 2] = model.encoder.get_input_embeddings().padding_idx
    assert_matches(model, "shared", batch, norms=(None, 1e-3), singles=True)
