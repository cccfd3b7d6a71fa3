"""Parameters of the selection stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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

    def candidates(self, sparse: Sequence[int]) -> tuple[int, ...] | None:
        """The layers to choose among, of those that are sparse; None for all."""
        if self.layers == "auto":
            return None
        if self.layers == "last":
            return (max(sparse),)
        return (self.layers,) if isinstance(self.layers, int) else self.layers
