"""Parameters of where the training runs. All of them are public."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

INLINE: Final = "inline"


class LaunchConfig(BaseModel):
    """In how many processes the private training runs, and who starts them.

    The plan, the noise and the ledger are the same whatever is chosen; see docs/scale.md.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["inline", "elastic", "external"] = Field(
        default=INLINE,
        description="inline: in the process of the run; elastic: in processes on this machine that torch elastic "
        "watches; external: the run prints a command for other machines, and waits for what they train",
    )
    processes: int = Field(default=1, ge=1, le=4096, strict=True, description="processes on each machine")
    machines: int = Field(default=1, ge=1, le=4096, strict=True, description="machines; with external only")
    layout: Literal["replicated", "sharded"] = Field(
        default="replicated",
        description="replicated: every process holds the model (data parallel); sharded: each holds a part of every "
        "parameter and of the optimizer (FSDP2), for models that are too large for one device",
    )
    restarts: int = Field(
        default=1,
        ge=0,
        strict=True,
        description="how often all processes are started again from the last private checkpoint when one was lost",
    )
    scheduler: Literal["torchrun", "slurm", "kubeflow"] = Field(
        default="torchrun",
        description="external: what is printed, a torchrun line, an srun line or a TrainJob",
    )
    endpoint: str | None = Field(
        default=None, description="external with torchrun on several machines: host:port of the first of them"
    )
    python: str | None = Field(
        default=None, description="external: Python of the other machines; null is that of this one"
    )
    image: str | None = Field(default=None, description="external with kubeflow: the container image")
    claim: str | None = Field(
        default=None,
        description="external with kubeflow: volume claim that holds this project at the same place as here",
    )
    patience_minutes: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="external: give up when the processes were not heard of for so long; null waits for ever",
    )

    @model_validator(mode="after")
    def _consistent(self) -> LaunchConfig:
        if self.backend == INLINE and (self.size > 1 or self.layout != "replicated"):
            raise ValueError(
                "launch.backend is inline, which is one process with the whole model: set launch.backend=elastic or "
                "external for launch.processes, launch.machines or launch.layout to count"
            )
        if self.backend == "elastic" and self.machines > 1:
            raise ValueError(
                "launch.backend is elastic, which starts processes on this machine alone: set launch.backend=external "
                "for several machines"
            )
        if self.backend != "external":
            given = [
                name for name in ("endpoint", "python", "image", "claim") if getattr(self, name) is not None
            ]
            if given or self.scheduler != "torchrun" or self.patience_minutes is not None:
                raise ValueError(
                    "launch.scheduler, endpoint, python, image, claim and patience_minutes go with "
                    "launch.backend=external and change nothing without it"
                )
        elif self.scheduler == "kubeflow" and (self.image is None or self.claim is None):
            raise ValueError("launch.scheduler is kubeflow, which needs launch.image and launch.claim")
        elif self.scheduler == "torchrun" and self.machines > 1 and self.endpoint is None:
            raise ValueError(
                "launch.machines is above 1: name the first of them in launch.endpoint, as host:port"
            )
        return self

    @property
    def size(self) -> int:
        """Number of processes in all."""
        return self.processes * self.machines

    def identity(self) -> dict[str, str]:
        """What a resumed training must have in common, as another number of processes adds up in another order."""
        words = f"{self.size}, {self.layout}" if self.backend != INLINE else "1, replicated"
        return {"processes (launch.processes, launch.machines, launch.layout)": words}


HERE = LaunchConfig()
"""In the process of the run."""
