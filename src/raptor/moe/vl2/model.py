"""The model: SigLIP, a projector, and the DeepSeek-MoE language model, whose last hidden states it gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, SiglipVisionModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

from raptor.moe.images import NEWLINE, SEPARATOR, TEXT, ImageInput, ImageReader
from raptor.moe.vl2.config import MODEL_TYPE, Vl2Config
from raptor.moe.vl2.keys import UNUSED, register


class Vl2Tower(SiglipVisionModel):  # type: ignore[no-untyped-call]
    """SigLIP as it is; a class of its own, since the original's checkpoint has other keys."""


class Vl2Projector(nn.Module):
    """Patch features to embeddings of the language model: 2x2 of them become one, then a small network."""

    def __init__(self, config: Vl2Config) -> None:
        super().__init__()
        shape = config.projector
        self.ratio = int(shape["downsample_ratio"])
        inner = int(shape["n_embed"] * shape["mlp_ratio"])
        layers: list[nn.Module] = [nn.Linear(int(shape["input_dim"]) * self.ratio**2, inner)]
        for _ in range(1, int(shape["depth"]) - 1):
            layers += [nn.GELU(), nn.Linear(inner, inner)]
        self.layers = nn.Sequential(*layers, nn.GELU(), nn.Linear(inner, int(shape["n_embed"])))

    def join(self, features: Tensor) -> Tensor:
        """(tiles, patches, width) -> (tiles, features, width * ratio^2); odd sides are filled up with zeros."""
        tiles, patches, width = features.shape
        side, ratio = round(patches**0.5), self.ratio
        missing = -side % ratio
        square = nn.functional.pad(features.view(tiles, side, side, width), (0, 0, 0, missing, 0, missing))
        blocks = (side + missing) // ratio
        parts = square.view(tiles, blocks, ratio, blocks, ratio, width)
        # The original's order: a channel's four values stand together.
        return parts.permute(0, 1, 3, 5, 2, 4).reshape(tiles, blocks * blocks, width * ratio**2)

    def forward(self, joined: Tensor) -> Tensor:
        """(rows, features, width * ratio^2) -> (rows, features, embedding)."""
        result: Tensor = self.layers(joined)
        return result


class Vl2Encoder(PreTrainedModel, ImageReader):  # type: ignore[no-untyped-call]
    """Token ids and pictures to the last hidden states of the language model.

    A row's states depend on that row alone. Its pixels are in [0, 255] and become [-1, 1], as the original's.
    """

    config_class = Vl2Config
    base_model_prefix = ""
    main_input_name = "input_ids"
    _no_split_modules = ["DeepseekOcr2TextDecoderLayer", "SiglipEncoderLayer"]  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = list(UNUSED)  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True
    config: Vl2Config

    def __init__(self, config: Vl2Config) -> None:
        """Raises ModelError when the config is not that of a covered member of the family."""
        config.require_covered()
        super().__init__(config)
        # Code that comes with the original is never run, and does not come with what is saved.
        vars(config).pop("auto_map", None)
        self.vision = Vl2Tower(config.vision_part())
        self.projector = Vl2Projector(config)
        self.image_newline = nn.Parameter(torch.zeros(config.hidden_size))
        # As the original spells it.
        self.view_seperator = nn.Parameter(torch.zeros(config.hidden_size))
        self.language = DeepseekOcr2TextModel(config.language_part())
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def image_size(self) -> int:
        return self.config.image_size

    @property
    def features_per_tile(self) -> int:
        return self.config.side**2

    def get_input_embeddings(self) -> nn.Module:
        """The table of token embeddings."""
        return self.language.embed_tokens

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, images: ImageInput | None = None
    ) -> BaseModelOutput:
        """Hidden states (rows, tokens, width) of token ids (rows, tokens), mask 1 for real tokens."""
        embedded = self.language.embed_tokens(input_ids)
        pictured = self._pictured(len(input_ids), images)
        if images is not None:
            number = pictured.shape[1] - 2
            places = images.places
            index = torch.where(places == NEWLINE, number, places)
            index = torch.where(places == SEPARATOR, number + 1, index).clamp_min(0)
            chosen = torch.take_along_dim(pictured, index[..., None], dim=1)
            embedded = torch.where((places == TEXT)[..., None], embedded, chosen.to(embedded.dtype))
        output: Any = self.language(inputs_embeds=embedded, attention_mask=attention_mask, use_cache=False)
        return BaseModelOutput(last_hidden_state=output.last_hidden_state)

    def _pictured(self, rows: int, images: ImageInput | None) -> Tensor:
        """(rows, features + 2, width): of all tiles of a row, then what ends a line, and what parts two views."""
        weight = self.projector.get_parameter("layers.0.weight")
        if images is None:
            # The projector is called all the same: what goes around a module gives no gradient that is known.
            joined = weight.new_zeros(rows, 1, weight.shape[1])
        else:
            pixels = images.pixels.flatten(0, 1)
            size = self.image_size
            if pixels.shape[-1] != size and not bool(images.tiles.any()):
                # In a split without any image nothing says how large one would be.
                pixels = pixels.new_zeros(*pixels.shape[:2], size, size)
            pixels = pixels.to(weight.dtype) / 127.5 - 1.0
            features = self.vision(pixel_values=pixels).last_hidden_state
            # Rows first again, so that every linear layer sees one row a record.
            joined = self.projector.join(features).reshape(rows, -1, weight.shape[1])
        projected = self.projector(joined)
        ends = [
            part.expand(rows, part.shape[-1])[:, None] for part in (self.image_newline, self.view_seperator)
        ]
        return torch.cat([projected, *(end.to(projected.dtype) for end in ends)], dim=1)


AutoConfig.register(MODEL_TYPE, Vl2Config, exist_ok=True)
AutoModel.register(Vl2Config, Vl2Encoder, exist_ok=True)
register(Vl2Encoder.__name__, Vl2Tower.__name__)
