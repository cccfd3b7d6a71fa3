"""Records with images against a loop over records with ordinary autograd, the vision tower frozen and trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raptor.dp.clipping import ClippingRule
from raptor.dp.gradients.engine import GradientEngine, JointGradients, OwnerExpertGradients
from raptor.dp.gradients.losses import classification_loss
from raptor.dp.isolation import EngineSpec, check_isolation
from raptor.dp.records import Batch, EncodedImages, EncodedRecords
from raptor.errors import ModelError
from raptor.moe.classifier import MoEClassifier
from raptor.moe.images import TEXT
from raptor.moe.ownership import assign_owners
from raptor.moe.roles import shared_parameters
from raptor.moe.routing import record_votes
from raptor.moe.vl2 import Vl2Config, Vl2Encoder
from raptor.moe.vl2.tiling import ImageFormat
from tests.dp.float64 import keep_float64
from tests.moe.test_vl2 import pictures
from tests.vl2 import CONFIG

LAYER = 2
GRIDS = [(1, 1), None, (2, 1), (1, 1), (2, 2)]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_float64(monkeypatch)


def make_model(dtype: torch.dtype = torch.float64) -> MoEClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MoEClassifier(Vl2Encoder(Vl2Config(**CONFIG)), 3)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
            else:
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return model.to(dtype).eval()


def make_batch(model: MoEClassifier, grids: list[tuple[int, int] | None] = GRIDS, text: int = 3) -> Batch:
    form = ImageFormat.of(Vl2Config(**CONFIG), token=3)
    images = pictures(form, grids, text)
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 14, images.places.shape, generator=random)
    lengths = (images.places != TEXT).sum(dim=1) + 1 + text
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    labels = torch.randint(0, 3, (len(ids),), generator=random)
    owners = assign_owners(record_votes(model.encoder, ids, mask, images=images)[LAYER])
    return Batch(ids, mask, labels, owners, images=images)


def names_of(model: MoEClassifier, role: str) -> list[str]:
    out = {"frozen": "encoder.vision.", "trained": "encoder.vision.embeddings."}[role]
    return [name for name in shared_parameters(model) if not name.startswith(out)]


def engine_of(model: MoEClassifier, role: str) -> GradientEngine:
    if role == "expert":
        return OwnerExpertGradients(model, LAYER)
    return JointGradients(model, names_of(model, role))


def truth(
    model: MoEClassifier, engine: GradientEngine, batch: Batch, role: str
) -> list[dict[str, torch.Tensor]]:
    """Gradient of each record alone, without padding of tokens or tiles."""
    found = []
    for row in range(len(batch)):
        single = batch.part(row, row + 1)
        length = int(single.attention_mask.sum())
        assert single.images is not None
        single = replace(
            single,
            input_ids=single.input_ids[:, :length],
            attention_mask=single.attention_mask[:, :length],
            images=single.images.fit(length),
        )
        parameters = [model.get_parameter(name).requires_grad_(True) for name in engine.parameters]
        gradients = torch.autograd.grad(
            classification_loss(model, single).sum(), parameters, allow_unused=True
        )
        record = {}
        for name, parameter, gradient in zip(engine.parameters, parameters, gradients, strict=True):
            parameter.requires_grad_(False)
            value = torch.zeros_like(parameter) if gradient is None else gradient.clone()
            if role == "expert":
                keep = torch.zeros(len(value), dtype=torch.bool)
                keep[int(batch.owners[row])] = True
                value[~keep] = 0
            record[name] = value
        found.append(record)
    return found


@pytest.mark.parametrize("norm", [1e9, 1e-3])
@pytest.mark.parametrize("role", ["frozen", "trained", "expert"])
def test_sums_are_those_of_a_loop_over_records(role: str, norm: float) -> None:
    model = make_model()
    batch = make_batch(model)
    engine = engine_of(model, role)
    rule = ClippingRule(norm)
    records = truth(model, engine, batch, role)
    squared = torch.stack([sum(value.square().sum() for value in record.values()) for record in records])
    factors = rule.factors(squared)
    found = engine.clipped_sum(batch, rule).tensors
    scale = min(norm, float(squared.sqrt().max()))
    for name, value in found.items():
        expected = sum(factor * record[name] for factor, record in zip(factors, records, strict=True))
        torch.testing.assert_close(
            value, expected, rtol=1e-5, atol=1e-6 * scale, msg=lambda m, n=name: f"{n}: {m}"
        )
    if role == "trained":
        assert any(name.startswith("encoder.vision.encoder") and bool(found[name].any()) for name in found)
    if role != "expert":
        for name in ("encoder.image_newline", "encoder.view_seperator", "encoder.projector.layers.0.weight"):
            assert bool(found[name].any()), name


def test_as_many_tiles_as_tokens_are_not_taken_for_tokens_first() -> None:
    """Rows times tiles is the number of tokens: the one case in which the layout cannot be told from the shapes."""
    model = make_model()
    batch = make_batch(model, [(1, 1), (2, 2)], text=1)
    assert batch.images is not None
    tokens = batch.input_ids.shape[1]
    rows = torch.arange(tokens) % 2
    more = Batch(
        batch.input_ids[rows],
        batch.attention_mask[rows],
        batch.labels[rows],
        batch.owners[rows],
        images=batch.images[rows],
    )
    for role in ("trained", "expert"):
        engine = engine_of(model, role)
        whole = engine.clipped_sum(more, ClippingRule(1e9)).tensors
        one, two = (
            engine.clipped_sum(batch.part(row, row + 1), ClippingRule(1e9)).tensors for row in range(2)
        )
        for name, value in whole.items():
            expected = one[name] * int((rows == 0).sum()) + two[name] * int((rows == 1).sum())
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_of_text_alone_has_its_gradient_too() -> None:
    model = make_model()
    batch = make_batch(model, [None, None, None])
    plain = replace(batch, images=None)
    engine = engine_of(model, "frozen")
    first, second = (engine.clipped_sum(given, ClippingRule(1.0)).tensors for given in (batch, plain))
    for name, value in first.items():
        torch.testing.assert_close(value, second[name])


@pytest.mark.parametrize("role", ["frozen", "trained", "expert"])
def test_a_split_without_any_image_has_its_gradient_too(role: str) -> None:
    """Its table does not say how large a tile is, and whether there is such a split is private."""
    model = make_model()
    batch = make_batch(model, [None, None, None])
    assert batch.images is not None
    places = batch.images.places.int()
    stored = EncodedImages(
        torch.zeros(0, 3, 1, 1, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), places
    )
    images = stored.take(torch.arange(3), places.shape[1])
    engine = engine_of(model, role)
    found, expected = (
        engine.clipped_sum(given, ClippingRule(1.0)).tensors
        for given in (replace(batch, images=images), batch)
    )
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_records_keep_their_images_through_sampling() -> None:
    model = make_model()
    batch = make_batch(model)
    images = batch.images
    assert images is not None
    pixels = torch.cat([images.pixels[row, : int(number)] for row, number in enumerate(images.tiles)])
    first = torch.cat([torch.zeros(1, dtype=torch.int64), images.tiles.cumsum(0)])
    lengths = batch.attention_mask.sum(dim=1)
    records = EncodedRecords(
        batch.input_ids.int(),
        lengths,
        batch.labels,
        batch.owners,
        images=EncodedImages(pixels, first, images.places.int()),
    )
    seen: list[int] = []
    for part in records.physical_batches(torch.tensor([4, 0, 2, 1]), 2, torch.device("cpu")):
        for row in range(len(part)):
            (record,) = [
                number
                for number in range(len(batch))
                if torch.equal(
                    part.input_ids[row, : lengths[number]], batch.input_ids[number, : lengths[number]]
                )
            ]
            assert part.images is not None
            number = int(images.tiles[record])
            assert int(part.images.tiles[row]) == number
            assert torch.equal(part.images.pixels[row, :number], images.pixels[record, :number])
            assert not part.images.pixels[row, number:].any()
            length = int(lengths[record])
            assert torch.equal(part.images.places[row, :length], images.places[record, :length])
            seen.append(record)
    assert sorted(seen) == [0, 1, 2, 4]
    assert len(records.tensors()) == 7


@pytest.mark.slow
@pytest.mark.parametrize("role", ["frozen", "trained"])
def test_the_isolation_gate_passes(role: str) -> None:
    model = make_model(torch.float32)
    names = names_of(model, role)
    specs = [
        EngineSpec("shared", lambda copy: JointGradients(copy, names)),
        EngineSpec("expert", lambda copy: OwnerExpertGradients(copy, LAYER), (LAYER,)),
    ]
    assert check_isolation(model, specs, classes=3).precisions == ("float64", "float32")


def test_the_gate_finds_a_tower_that_mixes_records() -> None:
    model = make_model()
    tower = model.encoder.vision.post_layernorm
    tower.register_forward_hook(
        lambda _module, _inputs, output: output + 0.1 * output.mean(dim=0, keepdim=True)
    )
    specs = [EngineSpec("shared", lambda copy: JointGradients(copy, ["head.weight", "head.bias"]))]
    with pytest.raises(ModelError, match="records are not independent"):
        check_isolation(model, specs, classes=3)


def test_the_tower_s_embeddings_are_refused_by_name() -> None:
    model = make_model()
    with pytest.raises(ModelError, match=r"vision\.embeddings\.patch_embedding"):
        JointGradients(model, shared_parameters(model))
    engine = JointGradients(model, ["encoder.vision.embeddings.position_embedding.weight"])
    with pytest.raises(ModelError, match="position_embedding"):
        engine.clipped_sum(make_batch(model), ClippingRule(1.0))
