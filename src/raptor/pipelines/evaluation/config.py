"""Parameters of the evaluation stage, and what follows from them before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from raptor.errors import ParameterError
from raptor.reporting.methods import LARGEST, RAPTOR

EMBEDDED = "embedded"
Baseline = Literal["largest_class", "base_model", "nonprivate", "monolithic"]
TRAINED: tuple[Baseline, ...] = ("nonprivate", "monolithic")
ALL_BASELINES: tuple[Baseline, ...] = ("largest_class", "base_model", *TRAINED)

# A confusion matrix and a reliability table; of completions one table.
TABLES_PER_MODEL = 2
TABLES_OF_COMPLETIONS = 1
# Noise multiplier of a table times epsilon, where `noise_multiplier` is auto.
AUTO_NOISE = 30.0


class StepSizes(BaseModel):
    """Step sizes of the trained baselines as factors on those of the private training.

    Without noise smaller steps are better, and a baseline with a step size that is not its own would be a straw man.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    nonprivate: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="factor for non-private training"
    )
    monolithic: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="factor for monolithic DP training"
    )


class FailureModesConfig(BaseModel):
    """Diagnostics of the three failure modes, at the trained model on public text; they cost no budget."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=True, description="false leaves them out of the run and of the report")
    records: int = Field(
        default=1024,
        ge=16,
        description="texts of selection.corpus whose gradients are measured; a second each 300",
    )


class EvaluationConfig(BaseModel):
    """What the private model is compared with, and whether its held-out records need protection."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    records_are_public: Literal["auto"] | bool = Field(
        default="auto",
        description="true: the records are public text, evaluation is exact and free; false: evaluation gets noise "
        "and is charged to the budget; auto: true for the embedded records alone",
    )
    baselines: Literal["auto"] | tuple[Baseline, ...] = Field(
        default="auto",
        description="auto for all that the records allow, or a list of largest_class, base_model, nonprivate and "
        "monolithic; the last two need public records",
    )
    step_sizes: StepSizes = Field(default=StepSizes(), description="step sizes of the trained baselines")
    noise_multiplier: Literal["auto"] | Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = (
        Field(
            default="auto",
            description="noise deviation over sensitivity of each evaluation table, used for private records alone; "
            "auto for 30 / privacy.epsilon",
        )
    )
    calibration_bins: int = Field(default=10, ge=2, le=100, description="bins of the reliability table")
    loss_bound: Literal["auto"] | Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = Field(
        default="auto",
        description="where texts are continued, the loss of a held-out record counts up to so many nats a token; auto "
        "for that of a model that gives all tokens the same chance, ln(vocabulary)",
    )
    batch_size: int = Field(default=256, gt=0, description="records of one forward pass; changes no result")
    failure_modes: FailureModesConfig = Field(default=FailureModesConfig())

    def noise_for(self, epsilon: float) -> float:
        """The noise multiplier of each table under a budget; the privacy plan keeps it."""
        return evaluation_noise(epsilon) if self.noise_multiplier == "auto" else self.noise_multiplier


def evaluation_noise(epsilon: float) -> float:
    """Noise multiplier of each table where none is given: a function of the public budget alone.

    The share of the budget that a table takes goes with its noise times epsilon, so a fixed multiplier would be
    cheap at a large epsilon and take most of a small one. At 30 the training gets 2 to 5 % more noise.
    """
    return AUTO_NOISE / epsilon


@dataclass(frozen=True)
class EvaluationScope:
    """What will be evaluated, and how many noisy tables that needs.

    models: methods that are models and get their own tables, the private model first.
    tables_per_model: tables that one model's answers take.
    """

    records_are_public: bool
    baselines: tuple[Baseline, ...]
    tables_per_model: int = TABLES_PER_MODEL

    @property
    def models(self) -> tuple[str, ...]:
        return (RAPTOR, *(name for name in self.baselines if name != LARGEST))

    @property
    def releases(self) -> int:
        """Noisy tables to reserve in the privacy plan: none for public records."""
        return 0 if self.records_are_public else self.tables_per_model * len(self.models)


def evaluation_scope(config: EvaluationConfig, source: str, continues: bool = False) -> EvaluationScope:
    """Settle `auto` for a source of records; pure, so that the privacy plan can reserve its releases first.

    Args:
        continues: whether texts are continued, and not told apart by classes.

    Raises:
        ParameterError: a baseline is asked for that private records, or completions, do not allow.
    """
    possible = tuple(name for name in ALL_BASELINES if not (continues and name == LARGEST))
    tables = TABLES_OF_COMPLETIONS if continues else TABLES_PER_MODEL
    public = source == EMBEDDED if config.records_are_public == "auto" else config.records_are_public
    if config.baselines == "auto":
        return EvaluationScope(
            public, tuple(name for name in possible if public or name not in TRAINED), tables
        )
    if absent := set(config.baselines) - set(possible):
        raise ParameterError(
            f"evaluation.baselines asks for {', '.join(absent)}, but texts are continued (ingestion.completion), and "
            "there are no classes. Leave it out."
        )
    asked = tuple(name for name in possible if name in config.baselines)
    refused = [name for name in asked if name in TRAINED]
    if refused and not public:
        raise ParameterError(
            f"evaluation.baselines asks for {' and '.join(refused)}, but the records of ingestion.source are "
            "private: training them again needs the records without protection, or a second budget. Leave them "
            "out, or, if the records are public text, set evaluation.records_are_public=true."
        )
    return EvaluationScope(public, asked, tables)
