"""Parameters of the selection stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from raptor.errors import ParameterError

EMBEDDED = "embedded"


class SelectionConfig(BaseModel):
    """The public corpus, and how layers are compared on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str = Field(
        default=EMBEDDED,
        min_length=1,
        description="embedded (docstrings of public packages), or a .txt, .parquet, .jsonl, .csv or .tsv file; "
        "a .txt file has one record a line, the others a column named text",
    )
    corpus_records: int = Field(
        default=4000,
        gt=0,
        description="records of the corpus that are used; entropy settles from about 1000 on",
    )
    bootstrap: int = Field(default=500, ge=2, description="resamples behind each standard error")
    layers: Literal["auto", "last"] | int | tuple[int, ...] = Field(
        default="auto",
        description="sparse layers to choose among: auto for all, last for the last one alone, or a list of layer "
        "indices; one index decides",
    )

    protected_layers: int = Field(
        default=1,
        ge=1,
        description="how many of them are protected and have their experts trained, those of the largest entropy; all "
        "their experts share the noise and the clipping norm of one stream",
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        named = None if self.layers == "auto" else self.candidates((0,))
        if named is not None and len(set(named)) < self.protected_layers:
            raise ValueError(
                f"protected_layers is {self.protected_layers}, but layers names {len(set(named))} to choose among"
            )
        return self

    def require_enough(self, candidates: Sequence[int]) -> None:
        """Refuse to protect more layers than there are.

        Raises:
            ParameterError: names both numbers.
        """
        if self.protected_layers > len(candidates):
            raise ParameterError(
                f"selection.protected_layers is {self.protected_layers}, but there are only {len(candidates)} sparse "
                f"layers to choose among: {list(candidates)}. Ask for fewer, or let selection.layers name more."
            )

    def candidates(self, sparse: Sequence[int]) -> tuple[int, ...] | None:
        """The layers to choose among, of those that are sparse; None for all."""
        if self.layers == "auto":
            return None
        if self.layers == "last":
            return (max(sparse),)
        return (self.layers,) if isinstance(self.layers, int) else self.layers
