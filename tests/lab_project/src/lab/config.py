from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Stream(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sigma: float = Field(gt=0, allow_inf_nan=False)


class TrainingConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(gt=0)
    population: int | Literal["auto"] = "auto"
    layers: list[int] | Literal["auto"] = "auto"
    expert: Stream


class SelectionConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    words: int = 3
