"""Parameters of the base_model stage."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

EMBEDDED = "embedded"


class BaseModelConfig(BaseModel):
    """Where the public base model comes from. Its weights must not have seen the private records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(
        default=EMBEDDED,
        min_length=1,
        description="embedded (ships with the package), a Hugging Face model directory, or a hub name",
    )
    revision: str | None = Field(
        default=None, description="commit, tag or branch of a hub name; null takes the hub's default branch"
    )
