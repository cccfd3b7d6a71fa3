"""Parameters of the audit."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AuditConfig(BaseModel):
    """How hard the audit tries. None of it changes what is guaranteed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(
        default=True, description="false makes no audit; certificate and report then say so"
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="audit the plan's schedule at the noise for this epsilon; null takes the plan's own noise",
    )
    canaries: int = Field(
        default=4_000,
        ge=200,
        description="made-up records of the one run over the schedule, half of them in",
    )
    trials: int = Field(default=1_000, ge=200, description="independent single releases of each stream")
    spare: int = Field(
        default=128, ge=8, description="coordinates of each block without a canary, where noise is seen alone"
    )
    confidence: float = Field(
        default=0.9999,
        gt=0.5,
        lt=1,
        description="of all lower bounds on epsilon together; the rest is how often a sound run fails here",
    )
    level: float = Field(
        default=1e-6,
        gt=0,
        lt=0.1,
        description="probability that a correct mechanism fails a structural check",
    )
    most_steps: int = Field(default=500, ge=1, description="steps of each stream that are audited at most")
    seed: int | None = Field(
        default=None, description="repeat an audit with these coins and this noise; null draws fresh ones"
    )
