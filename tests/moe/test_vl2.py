"""DeepSeek-VL2 from a checkpoint in the original's layout: keys, tower, image tokens, language model, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from raptor.errors import ModelError, ParameterError
from raptor.moe.classifier import MoEClassifier, load_encoder
from raptor.moe.families import sparse_layers
from raptor.moe.images import NEWLINE, SEPARATOR, TEXT, ImageInput
from raptor.moe.roles import Role, parameter_roles
from raptor.moe.routing import record_votes
from raptor.moe.vl2 import Vl2Config, Vl2Encoder
from raptor.moe.vl2.tiling import ImageFormat
from tests.vl2 import (
    CONFIG,
    SIZE,
    original_weights,
    plain_image,
    plain_language,
    plain_tower,
    save_checkpoint,
)

UNUSED = {"vision.attn_pool.latent", "vision.attn_pool.q.weight", "language.lm_head.weight"}


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return original_weights()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("vl2") / "model", weights)


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> Vl2Encoder:
    found = load_encoder(checkpoint)
    assert isinstance(found, Vl2Encoder)
    return found.double().eval()


def pictures(form: ImageFormat, grids: list[tuple[int, int] | None], text: int, seed: int = 0) -> ImageInput:
    """Random pixels: a token of text, the image, `text` tokens of text, for each row; no image where a grid is None."""
    random = torch.Generator().manual_seed(seed)
    tiles = torch.tensor([0 if grid is None else 1 + grid[0] * grid[1] for grid in grids])
    shape = (len(grids), max(int(tiles.max()), 1), 3, form.size, form.size)
    pixels = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    pixels[torch.arange(shape[1])[None] >= tiles[:, None]] = 0
    rows = [[TEXT, *([] if grid is None else form.places(*grid)), *[TEXT] * text] for grid in grids]
    places = torch.full((len(rows), max(map(len, rows))), TEXT)
    for row, found in enumerate(rows):
        places[row, : len(found)] = torch.tensor(found)
    return ImageInput(pixels, tiles, places)


@pytest.fixture(scope="module")
def form() -> ImageFormat:
    return ImageFormat.of(Vl2Config(**CONFIG), token=3)


def test_the_tower_computes_what_its_original_keys_say(encoder, weights) -> None:
    pixels = torch.randn(3, 3, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = encoder.vision(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(found, plain_tower(weights, pixels), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_record_has_the_states_of_the_plain_model(encoder, weights, form, grid) -> None:
    images = pictures(form, [grid], text=4)
    ids = torch.randint(4, 14, images.places.shape, generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        found = encoder(input_ids=ids, attention_mask=mask, images=images).last_hidden_state[0]
    views = images.pixels[0].double() / 255.0 * 2.0 - 1.0
    table = weights["language.model.embed_tokens.weight"].double()
    image = plain_image(weights, views, *grid)
    assert len(image) == ids.shape[1] - 5
    embedded = torch.stack([table[ids[0, 0]], *image, *table[ids[0, -4:]]])
    # The library turns queries and takes softmax in float32.
    torch.testing.assert_close(found, plain_language(weights, embedded), rtol=1e-4, atol=1e-4)


def test_a_model_that_is_saved_has_the_original_keys_and_values(checkpoint, weights, tmp_path) -> None:
    encoder = load_encoder(checkpoint)
    encoder.save_pretrained(tmp_path)
    saved = {
        name: value for file in tmp_path.glob("*.safetensors") for name, value in load_file(file).items()
    }
    assert saved.keys() == weights.keys() - UNUSED
    for name, value in saved.items():
        assert torch.equal(value, weights[name].float()), name
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("vision_config", "projector_config", "language_config", "tile_tag", "candidate_resolutions"):
        assert config[key] == CONFIG[key]
    again = load_encoder(tmp_path)
    for (name, first), (_, second) in zip(encoder.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(first, second), name


def test_a_tuned_classifier_comes_back(checkpoint, form, tmp_path) -> None:
    model = MoEClassifier.from_encoder(checkpoint, 3).eval()
    assert model.pooling == "last"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path, ["a", "b", "c"])
    again = MoEClassifier.from_pretrained(tmp_path).eval()
    images = pictures(form, [(1, 1), None], text=3)
    ids = torch.full(images.places.shape, 5)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    with torch.no_grad():
        assert torch.equal(model(ids, mask, images), again(ids, mask, images))
        # A record without an image, alone and as text.
        torch.testing.assert_close(model(ids, mask, images)[1:], model(ids[1:, :4], mask[1:, :4]))


def test_roles_are_the_paper_s(encoder) -> None:
    roles = parameter_roles(encoder)
    for name, entry in roles.items():
        expected = Role.SHARED
        if ".mlp.experts." in name:
            expected = Role.EXPERT
        elif ".mlp.gate." in name:
            expected = Role.ROUTER
        assert entry.role is expected, name
    assert roles["language.layers.1.mlp.shared_experts.up_proj.weight"].role is Role.SHARED
    assert [layer.index for layer in sparse_layers(encoder)] == [1, 2]
    assert all(layer.num_experts == 4 and layer.top_k == 2 for layer in sparse_layers(encoder))


def test_the_tokens_of_an_image_vote_for_the_owner(encoder, form) -> None:
    images = pictures(form, [(1, 1), (1, 1)], text=3)
    ids = torch.full(images.places.shape, 5)
    votes = record_votes(encoder, ids, torch.ones_like(ids), vote="count", images=images)
    for layer in votes.values():
        # Two experts for each token, of image and text alike.
        assert layer.sum(dim=1).tolist() == [2.0 * ids.shape[1]] * 2
        assert not torch.equal(layer[0], layer[1])
    single = record_votes(encoder, ids[:1], torch.ones_like(ids[:1]), images=images[:1])
    both = record_votes(encoder, ids, torch.ones_like(ids), images=images)
    for layer, value in single.items():
        torch.testing.assert_close(value[0], both[layer][0])


def test_a_record_is_the_same_among_records_with_more_tiles(encoder, form) -> None:
    images = pictures(form, [(1, 1), (2, 2), None, (1, 2)], text=3)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 14, images.places.shape, generator=generator)
    lengths = (images.places != TEXT).sum(dim=1) + 4
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    with torch.no_grad():
        together = encoder(input_ids=ids, attention_mask=mask, images=images).last_hidden_state
        for row, length in enumerate(lengths.tolist()):
            rows = slice(row, row + 1)
            alone = encoder(
                input_ids=ids[rows, :length],
                attention_mask=mask[rows, :length],
                images=images[rows].fit(length),
            ).last_hidden_state
            torch.testing.assert_close(together[rows, :length], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("part", "entry"),
    [
        ("language_config", {"use_mla": True}),
        ("language_config", {"topk_method": "noaux_tc"}),
        ("language_config", {"norm_topk_prob": True}),
        ("projector_config", {"projector_type": "linear"}),
    ],
)
def test_a_model_that_computes_something_else_is_refused(weights, tmp_path, part, entry) -> None:
    place = save_checkpoint(tmp_path, weights, **{part: {**CONFIG[part], **entry}})
    with pytest.raises(ModelError, match=next(iter(entry))):
        load_encoder(place)


def test_a_checkpoint_without_some_weights_is_refused(weights, tmp_path) -> None:
    left = {name: value for name, value in weights.items() if name != "vision.blocks.1.attn.qkv.weight"}
    with pytest.raises(ModelError, match=r"lacks weights: .*self_attn"):
        load_encoder(save_checkpoint(tmp_path, left))


def test_what_the_original_leaves_out_of_its_config_is_filled_in() -> None:
    config = Vl2Config(
        vision_config={"layers": 27, "mlp_ratio": 3.7362, "patch_size": 14, "width": 1152},
        projector_config={"n_embed": 1280},
        language_config={
            "hidden_size": 1280,
            "num_attention_heads": 10,
            "num_key_value_heads": 10,
            "num_hidden_layers": 12,
            "use_mla": False,
            "vocab_size": 129280,
        },
    )
    config.require_covered()
    vision = config.vision_part()
    assert (vision.intermediate_size, vision.num_attention_heads, vision.image_size) == (4304, 16, 384)
    assert config.language_part().mlp_layer_types == ["dense"] + ["sparse"] * 11
    form = ImageFormat.of(config, token=0)
    # 14 x 14 features and the ends of lines, twice, and what parts the views.
    assert len(form.places(1, 1)) == 14 * 15 + 1 + 14 * 15


def test_an_image_goes_into_the_grid_that_keeps_most_of_it() -> None:
    grids = tuple((width, height) for width in range(1, 4) for height in range(1, 4))
    form = ImageFormat(384, 14, grids, True, 0)
    assert form.grid(300, 200) == (1, 1)
    assert form.grid(768, 384) == (2, 1)
    assert form.grid(400, 1100) == (2, 3)
    assert form.grid(5000, 5000) == (3, 3)
    config = Vl2Config(**CONFIG)
    assert ImageFormat.of(config, 0, most=1).grids == ((1, 1),)
    only = Vl2Config(**{**CONFIG, "candidate_resolutions": [[2 * SIZE, SIZE]]})
    with pytest.raises(ParameterError, match="image_tiles"):
        ImageFormat.of(only, 0, most=1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_feature_stands_once_and_every_line_ends(side, columns, rows, whole_first) -> None:
    form = ImageFormat(side * 8, side, ((columns, rows),), whole_first, 0)
    places = form.places(columns, rows)
    assert sorted(place for place in places if place >= 0) == list(range((1 + columns * rows) * side**2))
    assert places.count(NEWLINE) == side + rows * side
    assert places.count(SEPARATOR) == 1
    whole = places[: side * (side + 1)] if whole_first else places[-side * (side + 1) :]
    assert [place for place in whole if place >= 0] == list(range(side**2))
