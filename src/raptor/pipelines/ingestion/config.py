"""Parameters of the ingestion stage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from raptor.text.columns import Columns
from raptor.text.completions import Lengths

EMBEDDED = "embedded"


class IngestionConfig(BaseModel):
    """Where the private records are, which columns they use, and how they are split and encoded."""

    # A column may be called 1, and the command line makes a number of it.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    source: str = Field(
        default=EMBEDDED,
        min_length=1,
        description="embedded (docstrings of installed packages), a CSV, TSV, JSON, Parquet or Arrow file, a "
        "folder of such files of one kind, a folder of datasets.save_to_disk, or a hub data set, owner/name or "
        "owner/name:configuration",
    )
    text: str | tuple[str, ...] = Field(
        default="text", description="text column; for pairs a list of two, or both joined by +"
    )
    label: str = Field(
        default="label",
        description="column of class names or whole numbers; -1 is no label. Plays no part where texts are continued",
    )
    completion: str | None = Field(
        default=None,
        min_length=1,
        description="column of the texts that are to follow `text`, the prompt: the model then learns to continue "
        "texts, not to tell classes, and base_model.source must be a decoder",
    )
    completion_length: int | None = Field(
        default=None,
        gt=0,
        description="tokens of max_length that are kept for the completion and its end mark; a longer prompt loses its "
        "beginning, a longer completion its end; null for half of max_length",
    )
    split: str | None = Field(
        default=None,
        description="column that says train, validation, test or unlabelled; without it held-out records are drawn",
    )
    user: str | None = Field(default=None, description="column that says whose record it is")
    image: str | None = Field(
        default=None,
        description="column of images, for a base model that reads them: bytes, or names of files relative to that "
        "of the records",
    )
    image_tiles: int | None = Field(
        default=None,
        ge=1,
        description="most tiles that an image is divided into, beside the view of the whole; null takes all "
        "candidates of the model. The tokens of an image come on top of max_length",
    )
    encoding: str = Field(
        default="utf-8", description="of text files; a byte order mark in the file goes before it"
    )
    held_out_fraction: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="probability that a record is held out, where the source has no labelled validation or test split",
    )
    max_length: int = Field(default=32, gt=1, description="tokens of a record that are read; the rest is cut")
    owner_vote: Literal["weight", "count"] = Field(
        default="weight",
        description="how tokens vote for a record's owner expert: by router weight, or one vote each",
    )
    records: int | None = Field(
        default=None, gt=0, description="records taken of the embedded source; null takes all"
    )
    max_classes: int = Field(
        default=1000, ge=2, description="more classes are taken for a wrong label column"
    )

    @model_validator(mode="after")
    def _consistent(self) -> IngestionConfig:
        if self.image is not None and self.completion is not None:
            raise ValueError(
                "ingestion.image and ingestion.completion are both given, but texts are continued from text alone: "
                "leave one of them out"
            )
        if self.image is None and self.image_tiles is not None:
            raise ValueError(
                "ingestion.image_tiles is set, but ingestion.image is not, so it would change nothing: name the column "
                "of images, or leave it out"
            )
        if self.completion_length is not None and self.completion is None:
            raise ValueError(
                "ingestion.completion_length is set, but ingestion.completion is not, so it would change nothing: name "
                "the column of completions, or leave it out"
            )
        if self.completion_length is not None and self.completion_length >= self.max_length:
            raise ValueError(
                f"ingestion.completion_length is {self.completion_length} of ingestion.max_length {self.max_length}, "
                "which leaves no token for the prompt: raise max_length, or lower completion_length"
            )
        return self

    @property
    def columns(self) -> Columns:
        """The columns of the source by their roles."""
        label = self.label if self.completion is None else None
        return Columns(self.text, label, self.split, self.user, self.completion, self.image)

    @property
    def lengths(self) -> Lengths | None:
        """Tokens that are read of prompts and of completions; None where records have classes."""
        if self.completion is None:
            return None
        completion = self.completion_length or self.max_length // 2
        return Lengths(self.max_length - completion, completion)
