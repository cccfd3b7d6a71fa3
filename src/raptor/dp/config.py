"""Parameters of private training: the constants of the two streams and of what follows them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from raptor.errors import ParameterError


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchConfig(_Config):
    """The search over parameters that a run belongs to. It changes no noise: the certificate says what it costs."""

    runs: int = Field(
        default=1,
        ge=1,
        le=100_000,
        strict=True,
        description="runs on the same records, this one among them; with a random selection their mean",
    )
    selection: Literal["none", "naive", "geometric", "logarithmic", "poisson"] = Field(
        default="none",
        description="none: no search; naive: all runs in one ledger; otherwise the distribution from which the "
        "number of runs was drawn in secret, and only the best run is let out",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SearchConfig:
        if (self.selection == "none") != (self.runs == 1):
            raise ValueError(
                "privacy.search: runs above 1 and a selection other than none go together. One run without a search "
                "is runs=1, selection=none; a search has 2 runs or more and says how they are counted"
            )
        return self


class PrivacyConfig(_Config):
    """The budget and whom it protects."""

    epsilon: float = Field(
        gt=0, strict=True, allow_inf_nan=False, description="privacy budget for everything released"
    )
    delta: float = Field(
        gt=0,
        lt=1,
        strict=True,
        allow_inf_nan=False,
        description="probability that the budget does not cover; below 1/n",
    )
    adjacency: Literal["add-remove", "replace-one"] = Field(
        default="add-remove", description="neighbouring data sets: one record more or less, or one exchanged"
    )
    unit: Literal["record", "user"] = Field(
        default="record",
        description="who is protected: one record, or one user with all of the user's records (ingestion.user)",
    )
    records_per_user: int = Field(
        default=8,
        gt=0,
        le=1024,
        strict=True,
        description="k, training records of one user that are used, where users are the unit; others are drawn away",
    )
    population: Literal["auto"] | Annotated[int, Field(gt=0, strict=True)] = Field(
        default="auto",
        description="public number n of training records, or of users where they are the unit; auto counts those of "
        "the training split and declares that number public",
    )
    allow_large_delta: bool = Field(
        default=False,
        description="accept delta >= 1/n, at which publishing one whole record would satisfy the guarantee",
    )
    accounting: Literal["joint", "split"] = Field(
        default="joint",
        description="joint: all streams in one ledger; split: the paper's, each stream alone at its share",
    )
    rho: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="share of epsilon for the shared stream; with accounting split, and null otherwise",
    )
    search: SearchConfig = Field(default=SearchConfig())

    @model_validator(mode="after")
    def _split_has_rho(self) -> PrivacyConfig:
        if self.accounting == "split" and self.rho is None:
            raise ValueError(
                "privacy.accounting is split, so privacy.rho must say which share of epsilon the shared stream gets, "
                "such as 0.8"
            )
        if self.accounting == "joint" and self.rho is not None:
            raise ValueError(
                "privacy.rho is set, but privacy.accounting is joint, where no stream has a share, so it would change "
                "nothing: set privacy.accounting=split, or leave privacy.rho out"
            )
        return self


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ADAM_BC_FLOOR = 0.25
Diagnostic = Literal["loss", "clipped_fraction", "expert_load"]


class StreamConfig(_Config):
    """One stream of releases and its optimizer."""

    steps_per_cycle: int = Field(default=1, ge=0, description="steps of this stream in one cycle")
    clipping_norm: Positive | Literal["auto"] = Field(
        default=1.0,
        description="C, norm of one record; auto takes training.clipping_quantile of the norms of public records, in "
        "the corpus of the selection stage",
    )
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False, description="peak step size")
    batch_size: int | None = Field(
        default=None,
        gt=0,
        description="expected batch size of this stream, which sets its sampling rate; null takes training.batch_size",
    )
    noise_weight: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="noise multiplier relative to the other streams; a larger one saves budget for them",
    )

    @property
    def norm(self) -> float:
        """C as a number.

        Raises:
            ParameterError: it is auto, and was not measured yet.
        """
        if self.clipping_norm == "auto":
            raise ParameterError(
                "clipping_norm is auto here, where no public records are at hand to measure it on. Give it as a "
                "number, such as the one in the privacy plan of an earlier run."
            )
        return self.clipping_norm


class LoRAConfig(_Config):
    """Low-rank adapters: what is trained when training.trainable is lora."""

    rank: int = Field(default=8, gt=0, strict=True, description="r, columns of an update's first factor")
    alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False, description="updates are scaled by alpha/r")
    targets: Literal["attention"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default="attention",
        description="linear layers in the shared role: attention, or name patterns such as *.SelfAttention.q; "
        "the protected layer's experts get adapters in any case",
    )


class TrainingConfig(_Config):
    """Schedule, streams and place of the private training."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="auto takes the best")
    threads: int | None = Field(default=None, gt=0, description="CPU threads; null leaves the default")
    batch_size: int = Field(default=512, gt=0, description="B, expected batch size of a step")
    physical_batch_size: int = Field(
        default=256, gt=0, description="records of one forward pass; changes memory and nothing else"
    )
    cycles: int = Field(default=40, gt=0, description="T, repetitions of the shared and the expert steps")
    head_learning_rate: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="peak step size of the new classification head, in every method; null takes that of the stream",
    )
    trainable: Literal["full", "lora"] = Field(
        default="full", description="full: the weights themselves; lora: low-rank adapters and the head"
    )
    lora: LoRAConfig = Field(default=LoRAConfig())
    shared: StreamConfig = Field(default=StreamConfig())
    expert: StreamConfig = Field(default=StreamConfig())
    frozen: tuple[str, ...] = Field(
        default=(),
        description="name patterns of shared parameters that stay as they are, such as lm_head.weight; embeddings for "
        "the table of token embeddings, whatever it is called",
    )
    owners: Literal["one", "active"] = Field(
        default="one",
        description="one: a record's expert gradient is that of its owner; active: that of all its active experts, "
        "clipped as one vector, which costs the same privacy",
    )
    clipping_quantile: float = Field(
        default=0.5, gt=0, lt=1, description="of the norms of public records, where a clipping norm is auto"
    )
    expert_norms: Literal["common", "auto"] | Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(
        default="common",
        description="clipping norm of each expert: common, training.expert.clipping_norm for all; a list of norms, one "
        "for each; auto, each by the public records that it owns. The noise on an expert goes by its norm",
    )
    expert_steps: Literal["same", "public"] = Field(
        default="same",
        description="step size of each expert: the same for all, or by the public records that it owns "
        "(raptor.dp.public_measures.load_steps)",
    )
    load_signal: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="with expert_steps=public: the squared signal-to-noise ratio that a step of an expert is thought "
        "to have at an even load; a large one leaves step sizes alike",
    )
    residual_weights: bool = Field(
        default=False,
        description="weight a record's expert gradient, before it is clipped, by 1 - p, where p is the probability of "
        "its label by the model without the experts' updates; with training.trainable=lora",
    )
    role_noise: Literal["common", "weighted"] = Field(
        default="common",
        description="where both roles are released at once: common, one noise deviation for all of their "
        "coordinates; weighted, each role's noise goes by its clipping_norm and its noise_weight",
    )
    schedule: Literal["constant", "linear"] = Field(
        default="linear", description="step size over the run: constant, or falling to a tenth"
    )
    diagnostics: tuple[Diagnostic, ...] = Field(
        default=(),
        description="figures of the training records at the end, each one noisy release that is paid from the budget: "
        "loss, clipped_fraction, expert_load",
    )
    optimizer: Literal["adam", "adam_bc", "sgd"] = Field(
        default="adam",
        description="of private streams: adam; adam_bc, Adam with the known variance of the noise taken off its second "
        "moment; sgd, SGD with momentum whose step sizes are in units of the noise. No choice costs privacy",
    )
    adam_bc_floor: float = Field(
        default=ADAM_BC_FLOOR,
        gt=0,
        allow_inf_nan=False,
        description="with adam_bc: the second moment counts for no less than so many times the noise's variance",
    )
    adam_betas: tuple[float, float] = Field(default=(0.9, 0.999), description="decay of Adam's two moments")
    adam_epsilon: float = Field(default=1e-8, gt=0, allow_inf_nan=False, description="Adam's epsilon")
    checkpoint_every: int = Field(
        default=4,
        ge=0,
        description="steps between private checkpoints, from which a killed run goes on; 0 writes none, and what a "
        "killed run has spent is then lost",
    )
    resume: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: go on with a training that was killed; never: give it up and begin a new one, which pays "
        "a new budget on top",
    )
    randomness: Literal["secure", "seeded"] = Field(
        default="secure",
        description="secure: keyed from the operating system; seeded: for tests, the certificate says not private",
    )
    seed: int | None = Field(default=None, description="seed of the seeded mode; must be null otherwise")

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        if (self.randomness == "seeded") != (self.seed is not None):
            raise ValueError(
                "training.seed goes with training.randomness=seeded and with nothing else: "
                "privacy never rests on a seed"
            )
        if self.shared.steps_per_cycle + self.expert.steps_per_cycle == 0:
            raise ValueError("both streams have 0 steps per cycle, so nothing would be trained")
        if self.trainable == "full" and self.lora != LoRAConfig():
            raise ValueError(
                "training.lora is set, but training.trainable is full, so it would change nothing: set "
                "training.trainable=lora, or leave training.lora out"
            )
        if self.trainable == "full" and self.residual_weights:
            raise ValueError(
                "training.residual_weights asks for the model without the experts' updates, which can be switched off "
                "where they are adapters only: set training.trainable=lora, or training.residual_weights=false"
            )
        if len(set(self.diagnostics)) < len(self.diagnostics):
            raise ValueError("training.diagnostics names one of them twice; each is one release")
        if "expert_load" in self.diagnostics and not self.expert.steps_per_cycle:
            raise ValueError(
                "training.diagnostics has expert_load, but no expert is trained (training.expert.steps_per_cycle "
                "is 0). Leave it out"
            )
        if self.trainable == "lora" and "clipped_fraction" in self.diagnostics:
            raise ValueError(
                "training.diagnostics has clipped_fraction, which cannot be told with training.trainable=lora: the "
                "adapters are folded into the model when it is trained. Leave it out"
            )
        if self.optimizer != "adam_bc" and self.adam_bc_floor != ADAM_BC_FLOOR:
            raise ValueError(
                f"training.adam_bc_floor is set, but training.optimizer is {self.optimizer}, so it would change "
                "nothing: set training.optimizer=adam_bc, or leave training.adam_bc_floor out"
            )
        if not all(0.0 <= beta < 1.0 for beta in self.adam_betas):
            raise ValueError("training.adam_betas must both lie in [0, 1)")
        return self

    def require_layers(self, number: int) -> None:
        """Refuse to tell the experts of several protected layers apart.

        Raises:
            ParameterError: names the parameters.
        """
        if number > 1 and self.tells_experts_apart:
            raise ParameterError(
                f"training.expert_norms and training.expert_steps say what each expert of one layer gets, but {number} "
                "layers are protected (selection.protected_layers). Leave them as they are, or protect one layer."
            )

    @property
    def tells_experts_apart(self) -> bool:
        """Whether experts of the protected layer have clipping norms or step sizes of their own."""
        return self.expert_norms != "common" or self.expert_steps != "same"

    @property
    def trainable_set(self) -> str:
        """What is trained, in words for the privacy plan."""
        experts = "" if self.owners == "one" else "; a record feeds all its active experts"
        experts += "; expert gradients have residual weights" if self.residual_weights else ""
        if self.trainable == "full":
            return f"full{experts}"
        where = self.lora.targets if isinstance(self.lora.targets, str) else ", ".join(self.lora.targets)
        return f"lora of rank {self.lora.rank} and alpha {self.lora.alpha:g} on {where} and experts{experts}"

    @property
    def is_measured(self) -> bool:
        """Whether some constant of the mechanism is measured on public records."""
        return self.is_clipped_by_public or self.expert_steps == "public"

    @property
    def is_clipped_by_public(self) -> bool:
        """Whether some clipping norm is measured on public records."""
        return "auto" in [self.shared.clipping_norm, self.expert.clipping_norm, self.expert_norms]

    def settled(self, shared: float | None, expert: float | None) -> TrainingConfig:
        """With these clipping norms where they are auto, and known."""
        found = {
            name: stream.model_copy(update={"clipping_norm": norm})
            for name, stream, norm in (("shared", self.shared, shared), ("expert", self.expert, expert))
            if stream.clipping_norm == "auto" and norm is not None
        }
        return self.model_copy(update=found)

    @property
    def streams(self) -> tuple[StreamConfig, StreamConfig]:
        """The shared and the expert stream."""
        return self.shared, self.expert

    def steps(self, stream: StreamConfig) -> int:
        """Releases of a stream over the whole run."""
        return self.cycles * stream.steps_per_cycle

    def batch(self, stream: StreamConfig) -> int:
        """Expected batch size of a stream."""
        return stream.batch_size or self.batch_size
