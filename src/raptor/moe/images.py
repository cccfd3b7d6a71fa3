"""Pictures beside the tokens of records: the optional second input of a sparse model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# What stands in a token's place where it is no patch feature, whose number is 0 or more.
TEXT = -1
NEWLINE = -2
SEPARATOR = -3
CHANNELS = 3


class ImageReader:
    """A model that takes an `ImageInput` as `images`.

    Attributes:
        image_size: width and height of a tile, in pixels.
        features_per_tile: features that the model makes of one tile.
    """

    @property
    def image_size(self) -> int:
        raise NotImplementedError

    @property
    def features_per_tile(self) -> int:
        raise NotImplementedError


def image_reader(model: nn.Module) -> ImageReader | None:
    """The part of a model that takes images; None in a model of text alone."""
    return next((module for module in model.modules() if isinstance(module, ImageReader)), None)


@dataclass(frozen=True)
class ImageInput:
    """Pictures of some rows. A row without one has no tile, and `TEXT` in all its places.

    Attributes:
        pixels: (rows, tiles, channels, size, size) uint8, zeros behind a row's last tile.
        tiles: (rows,) int64, tiles of each row.
        places: (rows, tokens) int64. What stands for each token: the number of a feature among those of the row's
            tiles, one tile behind the other; `NEWLINE` or `SEPARATOR`; or `TEXT`, the token's own embedding.
    """

    pixels: Tensor
    tiles: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, rows: slice | Tensor) -> ImageInput:
        """The pictures of some rows, with as many tiles as the most that one of them has, and at least one."""
        tiles = self.tiles[rows]
        most = max(int(tiles.max()), 1) if len(tiles) else 1
        return ImageInput(self.pixels[rows, :most], tiles, self.places[rows])

    def fit(self, width: int) -> ImageInput:
        """Places cut or filled up to `width` tokens."""
        more = width - self.places.shape[1]
        places = (
            self.places[:, :width] if more <= 0 else nn.functional.pad(self.places, (0, more), value=TEXT)
        )
        return ImageInput(self.pixels, self.tiles, places)

    def to(self, device: torch.device) -> ImageInput:
        """The same on a device."""
        return ImageInput(self.pixels.to(device), self.tiles.to(device), self.places.to(device))
