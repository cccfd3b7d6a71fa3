"""Parameters of the tracking hook."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TrackingConfig(BaseModel):
    """Where runs are recorded (``conf/base/tracking.yml``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="Record an MLflow run for each `kedro run`.")
    experiment: str = Field(default="raptor", min_length=1, description="Name of the MLflow experiment.")
    database: str = Field(
        default="mlflow.db", min_length=1, description="SQLite file of the runs, relative to the project."
    )
    artifacts: str = Field(
        default="mlruns", min_length=1, description="Folder of the artifacts, relative to the project."
    )
    uri: str | None = Field(
        default=None,
        description="Address of an MLflow tracking server, which then keeps runs and artifacts itself.",
    )
