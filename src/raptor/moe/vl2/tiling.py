"""How DeepSeek-VL2 divides an image into tiles, and where their features stand among the tokens.

An image is seen as a whole and, again, in tiles: it is fitted into a grid of tiles whose shape is the candidate that
loses least of it (arXiv 2412.10302, section on dynamic tiling).
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from raptor.errors import ParameterError
from raptor.moe.images import NEWLINE, SEPARATOR
from raptor.moe.vl2.config import Vl2Config


def image_config(config: PretrainedConfig) -> Vl2Config:
    """The config of a model that reads images.

    Raises:
        ParameterError: the model reads text alone.
    """
    if not isinstance(config, Vl2Config):
        raise ParameterError(
            f"ingestion.image names a column of images, but the base model is a {config.model_type!r} model, which "
            "reads text alone. Leave it out, or set base_model.source to a DeepSeek-VL2 model."
        )
    return config


@dataclass(frozen=True)
class ImageFormat:
    """What a model makes of an image.

    Attributes:
        size: width and height of a tile, in pixels.
        side: features in a row of a tile.
        grids: candidates, as (columns, rows) of tiles.
        whole_first: whether the view of the whole image comes before its tiles.
        token: token id that is written where a feature stands; the model does not look at it.
    """

    size: int
    side: int
    grids: tuple[tuple[int, int], ...]
    whole_first: bool
    token: int

    @classmethod
    def of(cls, config: Vl2Config, token: int, most: int | None = None) -> ImageFormat:
        """The format of a model; `most` leaves out candidates of more tiles.

        Raises:
            ParameterError: no candidate is left.
        """
        grids = tuple(grid for grid in config.grids if most is None or grid[0] * grid[1] <= most)
        if not grids:
            raise ParameterError(
                f"ingestion.image_tiles is {most}, but the base model divides an image into "
                f"{min(columns * rows for columns, rows in config.grids)} tiles at least."
            )
        return cls(config.image_size, config.side, grids, config.global_view_pos == "head", token)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """The candidate for an image of so many pixels: most of the image kept, then least left empty."""

        def merit(grid: tuple[int, int]) -> tuple[int, int]:
            wide, high = grid[0] * self.size, grid[1] * self.size
            scale = min(wide / width, high / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            return kept, kept - wide * high

        return max(self.grids, key=merit)

    def places(self, columns: int, rows: int) -> list[int]:
        """What stands for each token of an image, as in `raptor.moe.images.ImageInput`; tile 0 is the whole image."""
        side = self.side
        whole = [place for line in range(side) for place in (*range(line * side, (line + 1) * side), NEWLINE)]
        parts: list[int] = []
        for line in range(rows * side):
            row, inner = divmod(line, side)
            for column in range(columns):
                start = (1 + row * columns + column) * side**2 + inner * side
                parts += range(start, start + side)
            parts.append(NEWLINE)
        return [*whole, SEPARATOR, *parts] if self.whole_first else [*parts, SEPARATOR, *whole]
