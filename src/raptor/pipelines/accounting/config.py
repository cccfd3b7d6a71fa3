"""Parameters of the accounting stage."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class AccountingConfig(BaseModel):
    """The stage has no parameter of its own: budget, adjacency and noise are fixed by the privacy plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")
