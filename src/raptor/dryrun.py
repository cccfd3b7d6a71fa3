"""What a run needs by its parameters and the config of its base model alone: numbers, memory, work and time.

No weight is loaded: the model is built without its numbers, so that a model of any size is described in seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

    from raptor.dp.config import TrainingConfig

FLOAT, DOUBLE = 4, 8
# For each trained number, in float32: the clipped sum, the released one, the update and Adam's two moments.
TRAINED_BYTES = 5 * FLOAT
# Values that a pass keeps at its peak, for each token and block: in widths of the model and attention probabilities,
# and for each chosen expert in inner outputs and in widths. Counted in passes with adapters; without, a fifth more.
KEPT_WIDTHS, KEPT_SCORES, KEPT_INNER, KEPT_ROUTED = 10.5, 1.1, 1.5, 2.5
SHARED, EXPERT, ROUTER, HEAD = "shared", "expert", "router", "head"


@dataclass(frozen=True)
class Pictures:
    """What an image adds to a record at most, in a model with a vision tower.

    Attributes:
        tokens: places that it takes among the tokens of the record.
        views: of it that the tower reads: the whole, and its tiles.
        patches: of a view.
        numbers: of the tower that a patch is multiplied with.
        width, blocks, heads, inner: of the tower.
        trained: those of `numbers` that are trained; without any, no way back goes through the tower.
    """

    tokens: int
    views: int
    patches: int
    numbers: float
    width: int
    blocks: int
    heads: int
    inner: int
    trained: float

    @property
    def forward_work(self) -> float:
        """Operations of the tower on all views of an image."""
        return 2.0 * self.views * self.patches * (self.numbers + 2 * self.patches * self.width * self.blocks)

    @property
    def back_work(self) -> float:
        """Operations of the way back through the tower, of norms there, and of its part of the sum."""
        if not self.trained:
            return 0.0
        attention = self.patches * self.width * self.blocks
        return self.forward_work + 4.0 * self.views * self.patches * (attention + self.trained)

    @property
    def kept(self) -> int:
        """Bytes of an image that the tower keeps for its way back, in float32."""
        if not self.trained:
            return 0
        each = KEPT_WIDTHS * self.width + KEPT_SCORES * self.heads * self.patches + KEPT_INNER * self.inner
        return int(FLOAT * self.views * self.patches * self.blocks * each)


@dataclass(frozen=True)
class Sizes:
    """The numbers of a model and of what is trained; all of them follow from public configs.

    Attributes:
        family: `model_type` of the config.
        roles: numbers in each role, the new head for itself; their sum is the whole model.
        trained: numbers that each stream trains.
        words: what is trained, in words.
        layers: indices of the sparse layers.
        experts, top_k: experts of a sparse layer, and how many of them a token is sent to.
        active: numbers that one token is multiplied with, adapters among them, and no vision tower.
        active_trained: those of `active` that are trained.
        width, blocks, heads: of the transformer.
        inner: outputs of the first linear map of a token's experts together, in a sparse layer.
        pictures: where records have images.
    """

    family: str
    roles: Mapping[str, int]
    trained: Mapping[str, int]
    words: str
    layers: tuple[int, ...]
    experts: int
    top_k: int
    active: float
    active_trained: float
    width: int
    blocks: int
    heads: int
    inner: int
    pictures: Pictures | None = None

    @property
    def total(self) -> int:
        return sum(self.roles.values())

    def places(self, tokens: int) -> int:
        """Tokens of a record whose text has so many, those of its image among them."""
        return tokens if self.pictures is None else tokens + self.pictures.tokens

    def forward_work(self, tokens: int) -> float:
        """Floating-point operations of one forward pass of a record whose text has so many tokens."""
        # Each token is compared with every other, and takes its mean over them, in every block.
        places = self.places(tokens)
        text = 2.0 * places * (self.active + 2 * places * self.width * self.blocks)
        return text if self.pictures is None else text + self.pictures.forward_work

    def step_work(self, tokens: int) -> float:
        """Operations of a record's clipped gradient: forward, back to the activations, its norm, and its part of the
        sum. The way back takes as much as the way there, and twice as much in attention."""
        places = self.places(tokens)
        text = 4.0 * places * (self.active + 3 * places * self.width * self.blocks + self.active_trained)
        return text if self.pictures is None else text + self.pictures.forward_work + self.pictures.back_work

    def kept(self, records: int, tokens: int) -> int:
        """Bytes that a pass of so many records keeps for its way back, in float32."""
        places = self.places(tokens)
        each = (
            KEPT_WIDTHS * self.width
            + KEPT_SCORES * self.heads * places
            + len(self.layers)
            / self.blocks
            * (KEPT_INNER * self.inner + KEPT_ROUTED * self.top_k * self.width)
        )
        pictured = 0 if self.pictures is None else self.pictures.kept
        return records * (int(FLOAT * places * self.blocks * each) + pictured)


def sizes(
    config: PretrainedConfig,
    where: str,
    training: TrainingConfig,
    classes: int = 2,
    images: bool = False,
    image_tiles: int | None = None,
    protected_layers: int = 1,
) -> Sizes:
    """Count a model and what the parameters train of it; the last sparse layers stand for the protected ones.

    Args:
        config: of the base model.
        where: its name, for messages.
        classes: outputs of a new head; 0 for a language model as it is. How many there will be is known when the
            records are read.
        images: whether records have one, as large as the model takes it in at most.
        image_tiles: most tiles of an image; None takes all candidates of the model.
        protected_layers: how many layers have their experts trained.

    Raises:
        ModelError: the config is of no covered model.
        ParameterError: images are asked for, and the model reads none, or none of so few tiles; a pattern of the
            parameters matches nothing; the rank is too large.
    """
    import torch
    from torch import nn

    from raptor.dp.trainable import make_trainable
    from raptor.moe.classifier import MoEClassifier, empty_encoder
    from raptor.moe.families import sparse_layers
    from raptor.moe.language import empty_language_model
    from raptor.moe.roles import Role, parameter_roles

    if classes:
        with torch.device("meta"):
            model: Any = MoEClassifier(empty_encoder(config, where), classes)
    else:
        model = empty_language_model(config, where)
    kinds = {name: entry.role for name, entry in parameter_roles(model).items()}
    roles: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        roles[HEAD if classes and name.startswith("head.") else kinds[name].value] += parameter.numel()
    layers = sparse_layers(model)
    last = layers[-1]
    trainable = make_trainable(model, training, [layer.index for layer in layers[-protected_layers:]])
    share = last.top_k / last.num_experts
    banks = [layer.bank() for layer in sparse_layers(model)]
    routed = {name for bank in banks for name in bank.parameters}
    active = {
        f"{name}.weight": float(module.weight.numel())
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and f"{name}.weight" not in routed and not in_tower(name)
    }
    active |= {name: share * model.get_parameter(name).numel() for name in routed}
    active |= {
        name: float(model.get_parameter(name).numel()) for name, role in kinds.items() if role is Role.ROUTER
    }
    described: Any = config
    return Sizes(
        family=str(config.model_type),
        roles={name: roles[name] for name in (SHARED, ROUTER, EXPERT, HEAD)},
        trained={SHARED: trainable.count(trainable.shared), EXPERT: trainable.count(trainable.expert)},
        words=trainable.words,
        layers=tuple(layer.index for layer in layers),
        experts=last.num_experts,
        top_k=last.top_k,
        active=sum(active.values()),
        active_trained=sum(active.get(name, 0.0) for name in trainable.shared + trainable.expert),
        width=int(described.hidden_size),
        blocks=int(described.num_hidden_layers),
        heads=int(described.num_attention_heads),
        inner=last.top_k * int(banks[-1].first.weight.of(0).shape[0]),
        pictures=pictures(model, config, trainable.shared, image_tiles) if images else None,
    )


def in_tower(name: str) -> bool:
    """Whether a part of a model, by its dotted name, is of a vision tower: it sees patches and no tokens."""
    return "vision" in name.split(".")


def pictures(
    model: nn.Module, config: PretrainedConfig, trained: Collection[str], image_tiles: int | None
) -> Pictures:
    """What the largest image adds; see `sizes`."""
    from torch import nn

    from raptor.moe.vl2.tiling import ImageFormat, image_config

    read = image_config(config)
    # No token is made, so its id does not matter.
    form = ImageFormat.of(read, 0, image_tiles)
    tokens, grid = max((len(form.places(*grid)), grid) for grid in form.grids)
    tower = read.vision
    numbers = {
        f"{name}.weight": float(module.weight.numel())
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and in_tower(name)
    }
    return Pictures(
        tokens=tokens,
        views=1 + grid[0] * grid[1],
        patches=(read.image_size // int(tower["patch_size"])) ** 2,
        numbers=sum(numbers.values()),
        width=int(tower["width"]),
        blocks=int(tower["layers"]),
        heads=int(tower["heads"]),
        inner=int(tower["width"] * tower["mlp_ratio"]),
        trained=sum(count for name, count in numbers.items() if name in trained),
    )


@dataclass(frozen=True)
class Memory:
    """Bytes that a run takes at its peak, but for what the libraries take themselves.

    Attributes:
        weights: of the model while it is trained, in float32.
        trained: sums, releases and the optimizer's moments of what is trained.
        kept: what one forward pass keeps for its way back.
        main: memory of the processor, where owners are decided in float64, and where the model is copied for the
            isolation gate.
        disk: base model and trained model, both in float32; a base model in half precision takes half of its part.
    """

    weights: int
    trained: int
    kept: int
    main: int
    disk: int

    @property
    def device(self) -> int:
        """Where the training is; that of the processor, if it has no accelerator."""
        return self.weights + self.trained + self.kept


def memory(found: Sizes, training: TrainingConfig, max_length: int) -> Memory:
    """By the counts of a model, and the physical batch."""
    weights = FLOAT * found.total
    return Memory(
        weights=weights,
        trained=TRAINED_BYTES * sum(found.trained.values()),
        kept=found.kept(training.physical_batch_size, max_length),
        main=DOUBLE * found.total,
        disk=2 * weights,
    )


@dataclass(frozen=True)
class Work:
    """Floating-point operations of a run on records of full length; real ones are shorter.

    Attributes:
        training: of all steps.
        routing: of the public corpus in float32, and of every training record in float64, on the processor.
    """

    training: float
    routing: float


def work(found: Sizes, record_steps: float, records: int, corpus_records: int, max_length: int) -> Work:
    """Operations by the counts of a model and the expected number of differentiated records."""
    forward = found.forward_work(max_length)
    # The corpus is routed once for each way to vote.
    return Work(record_steps * found.step_work(max_length), forward * (2 * corpus_records + 2 * records))


@dataclass(frozen=True)
class Speeds:
    """What a machine does in a second: operations in products of matrices in float32, and numbers of noise.

    Attributes:
        device: where the training is, in words.
    """

    device: str
    operations: float
    processor: float
    noise: float


def speeds(training: TrainingConfig) -> Speeds:
    """Measured in about a second, with products as wide as a model's.

    Raises:
        ParameterError: the device is not on this machine.
    """
    import torch

    from raptor.dp.streams import RandomSource
    from raptor.dp.training import resolve_device

    device = resolve_device(training.device)
    processor = _operations(torch.device("cpu"))
    noise = RandomSource.secure().stream("dry run/noise")
    numbers = 1 << 20
    return Speeds(
        f"this machine's {device.type}",
        processor if device.type == "cpu" else _operations(device),
        processor,
        numbers / _seconds(lambda: noise.normals((numbers,))),
    )


def _operations(device: Any) -> float:
    import torch

    rows, width = 2048, 1024
    left, right = torch.randn(rows, width, device=device), torch.randn(width, width, device=device)

    def product() -> None:
        # A number is read, so that an accelerator has finished.
        float((left @ right)[0, 0])

    return 2.0 * rows * width * width / _seconds(product)


def _seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few, after one that warms up."""
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return max(min(found[1:]), 1e-9)


def training_seconds(
    found: Work, trained: Mapping[str, int], steps: Mapping[str, int], measured: Speeds
) -> float:
    """Products of all steps, and the noise of all releases, if both ran as they were measured.

    A real step does more than products, in pieces of other sizes: see `docs/models.md` for how much longer it took.
    """
    noise = sum(steps.get(name, 0) * count for name, count in trained.items())
    return found.training / measured.operations + noise / measured.noise


def routing_seconds(found: Work, measured: Speeds) -> float:
    """Passes of the public corpus and of every training record, on the processor."""
    return found.routing / measured.processor
