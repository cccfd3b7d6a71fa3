"""Memory, communication and time of a private step on 1, 8 and 64 GPUs, on paper.

python -m benchmarks.scale                  print the tables of docs/scale.md
python -m benchmarks.scale --write          put them there

Nothing is timed here. Sizes are counted on empty copies of the models. What a step needs is taken from measured rows of
docs/performance.md: how many bytes of activations a token leaves in a layer, which part of a machine's peak a step
reaches, and what privacy adds to it. The rest is data sheets and arithmetic, which the docs explain.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn
from transformers import AutoModel, OlmoeConfig, SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
)

from benchmarks.cases import BY_NAME
from raptor.dp.config import LoRAConfig, TrainingConfig
from raptor.dp.trainable import make_trainable
from raptor.moe.classifier import MoEClassifier
from raptor.moe.families import sparse_layers

DOCS = Path(__file__).resolve().parent.parent / "docs"
NUMBER = 4  # bytes of a float32
GIB = 2.0**30
GB = 1e9
# Of docs/performance.md: operations a second of large products on the machine there, and seconds for one noise value.
CPU_PEAK = 104e9
NOISE_S = 7.5e-9
# One copy of a release between device and CPU, where noise is drawn: PCIe 5 x16, in bytes a second.
TO_CPU = 50e9
PROCESSES = (1, 8, 64)
TOKENS, BATCH = 128, 1024


@dataclass(frozen=True)
class Device:
    """A GPU by its data sheet: float32 operations a second without tensor cores (products that norms rest on stay in
    float32), bytes of memory, and bytes a second to its neighbours in one machine and to those in others."""

    name: str
    peak: float
    memory: float
    inside: float
    outside: float


H100 = Device("H100 SXM 80 GB", 67e12, 80 * GB, 450 * GB, 50 * GB)
B200 = Device("B200 180 GB", 75e12, 180 * GB, 900 * GB, 50 * GB)


@dataclass(frozen=True)
class Shape:
    """What is counted on a model.

    Attributes:
        width, layers: of the trunk.
        total: all numbers.
        active: numbers of matrices that a token is multiplied with.
        above: the part of `active` above the protected layer.
        experts: numbers in the experts of all sparse layers, and `bank` in those of one of them.
        trained: numbers that each stream trains.
    """

    width: int
    layers: int
    total: int
    active: float
    above: float
    experts: int
    bank: int
    trained: Mapping[str, int]

    @property
    def most_trained(self) -> int:
        return max(self.trained.values())


def count(encoder: nn.Module, config: TrainingConfig, layer: int | None = None) -> Shape:
    """The sizes of a model that has no values (device meta); the last sparse layer is protected by default."""
    found = sparse_layers(encoder)
    chosen = found[-1].index if layer is None else layer
    share = {one.experts_prefix: one.top_k / one.num_experts for one in found}
    settings = encoder.config
    layers = int(getattr(settings, "num_layers", None) or settings.num_hidden_layers)
    active = above = 0.0
    experts = 0
    for name, value in encoder.named_parameters():
        prefix = next((each for each in share if name.startswith(each)), None)
        experts += value.numel() if prefix else 0
        if value.ndim < 2 or re.search(r"shared\.weight|embed_tokens|relative_attention_bias", name):
            continue
        used = value.numel() * share.get(prefix or "", 1.0)
        active += used
        block = next((int(part) for part in name.split(".") if part.isdigit()), 0)
        above += used if block > chosen else 0.0
    width = int(settings.hidden_size)
    total = sum(value.numel() for value in encoder.parameters())
    trainable = make_trainable(MoEClassifier(encoder, 2), config, [chosen])
    trained = {"shared": trainable.count(trainable.shared), "expert": trainable.count(trainable.expert)}
    return Shape(width, layers, total, active, above, experts, experts // len(found), trained)


def _empty(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def switch_base() -> nn.Module:
    """The encoder of google/switch-base-8."""
    config = SwitchTransformersConfig(
        vocab_size=32128, d_model=768, d_ff=3072, d_kv=64, num_heads=12, num_layers=12, num_experts=8,
        num_sparse_encoder_layers=6, num_decoder_layers=1, num_sparse_decoder_layers=0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return SwitchTransformersEncoderModel(config)


def olmoe_1b_7b() -> nn.Module:
    """The trunk of allenai/OLMoE-1B-7B-0924, without its head."""
    config = OlmoeConfig(
        vocab_size=50304, hidden_size=2048, intermediate_size=1024, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=16, num_experts=64, num_experts_per_tok=8,
    )  # fmt: skip
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model: nn.Module = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    return model


def lora(rank: int) -> TrainingConfig:
    return TrainingConfig(trainable="lora", lora=LoRAConfig(rank=rank))


MODELS: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    # With the measured cases whose layers are like theirs: every second one sparse; four widths of active experts.
    "Switch-base-8": (switch_base, "switch2"),
    "OLMoE-1B-7B": (olmoe_1b_7b, "olmoe4"),
}
SETTINGS: Mapping[str, TrainingConfig] = {"lora, rank 8": lora(8), "full": TrainingConfig()}


@dataclass(frozen=True)
class Row:
    """One row of the table in docs/performance.md: time over the floor, and the floor."""

    case: str
    method: str
    role: str
    time: float
    memory: float
    floor_s: float
    floor_bytes: float


def measured(text: str) -> list[Row]:
    """The rows of docs/performance.md."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        floor = re.fullmatch(r"(\d+) ms, (\d+) MiB", cells[-2]) if len(cells) == 9 else None
        if floor:
            time, memory = float(cells[3].rstrip(" !")), float(cells[5].rstrip(" !"))
            found.append(
                Row(
                    cells[0], cells[1], cells[2], time, memory, float(floor[1]) / 1e3, float(floor[2]) * 2**20
                )
            )
    return found


@dataclass(frozen=True)
class Measured:
    """What the rows say.

    Attributes:
        reached: part of the CPU's peak that a non-private shared step reaches, by the operations counted here.
        ratios: time of a private step over the non-private one, by role.
        activations: family -> bytes that a token leaves in one layer of width one.
    """

    reached: float
    ratios: Mapping[str, float]
    activations: Mapping[str, float]


def learn(rows: Sequence[Row]) -> Measured:
    """Medians over the private rows of cases that measure roles."""
    ours = [row for row in rows if row.method == "raptor" and row.role in ("shared", "expert")]
    reached = []
    activations: dict[str, list[float]] = {}
    for row in ours:
        case = BY_NAME[row.case]
        if row.role != "shared":
            continue
        shape = count(_empty(next(iter(case.builds.values()))), TrainingConfig(), case.layer)
        tokens = case.records * case.tokens
        reached.append(
            tokens * operations(shape, "shared", case.tokens, shape.active) / row.floor_s / CPU_PEAK
        )
        family = row.case.partition(" ")[0]
        activations.setdefault(family, []).append(
            row.floor_bytes * max(row.memory, 1.0) / (tokens * shape.layers * shape.width)
        )
    ratios = {role: median(row.time for row in ours if row.role == role) for role in ("shared", "expert")}
    return Measured(median(reached), ratios, {name: median(found) for name, found in activations.items()})


def operations(shape: Shape, role: str, tokens: int, trained: float) -> float:
    """Additions and multiplications of one token in a step.

    Args:
        tokens: of a record.
        trained: numbers of matrices for which a token's part of the sum is made.

    Forward: two for each active number, and 4 T d in each layer's attention. Backward: as many for the gradients of
    activations, in an expert step only above the protected layer. Sums: two for each trained number.
    """
    attention = 4.0 * tokens * shape.width * shape.layers
    forward = 2 * shape.active + attention
    reach = 1.0 if role == "shared" else shape.above / shape.active
    return forward + forward * reach + 2 * trained


@dataclass(frozen=True)
class Cost:
    """One row of the tables: bytes of memory in one process, and seconds of a step."""

    memory: float
    compute_s: float
    network_s: float
    noise_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.network_s + self.noise_s


def cost(
    shape: Shape, known: Measured, family: str, device: Device, size: int, layout: str, *,
    reached: float | None = None, physical: int = 64,
) -> Cost:  # fmt: skip
    """One step, the mean of a shared and an expert step, of `BATCH` records of `TOKENS` tokens.

    Args:
        family: of the measured case whose layers are like the model's.
        size: processes, one a GPU, eight in a machine.
        reached: part of the peak; that of the CPU by default.
        physical: records of one forward pass.
    """
    own = BATCH / size
    passes = math.ceil(own / physical)
    used = known.reached if reached is None else reached
    seconds = 0.0
    for role, ratio in known.ratios.items():
        trained = min(float(shape.trained[role]), shape.active)
        seconds += ratio * own * TOKENS * operations(shape, role, TOKENS, trained) / (device.peak * used) / 2
    link = device.inside if size <= 8 else device.outside
    mean_trained = sum(shape.trained.values()) / 2
    rest = shape.total - shape.experts
    moments, sums = 2 * NUMBER * sum(shape.trained.values()), 3 * NUMBER * shape.most_trained
    kept = known.activations[family] * min(physical, own) * TOKENS * shape.layers * shape.width
    if size == 1 or layout == "replicated":
        memory = NUMBER * shape.total + moments + sums
        moved = 0.0 if size == 1 else 2 * NUMBER * mean_trained
        noise = mean_trained
    else:
        # One bank of experts is there, and the next is on its way.
        memory = NUMBER * (shape.total / size + rest + 2 * shape.bank) + moments / size + sums
        moved = passes * 2 * NUMBER * shape.total + NUMBER * mean_trained
        noise = mean_trained / size
    drawn = noise * (NOISE_S + 2 * NUMBER / TO_CPU)
    return Cost(memory + kept, seconds, moved / link, drawn)


def sizes_table() -> str:
    lines = [
        "| model | what is trained | shared stream | expert stream | all numbers |",
        "|---|---|---|---|---|",
    ]
    for name, (build, _) in MODELS.items():
        for words, config in SETTINGS.items():
            shape = count(_empty(build), config)
            lines.append(
                f"| {name} | {words} | {shape.trained['shared']:,} | {shape.trained['expert']:,} | {shape.total:,} |"
            )
    return "\n".join(lines)


def measured_table(known: Measured) -> str:
    lines = ["| from the measured rows | value |", "|---|---|"]
    lines.append(f"| part of the peak that a non-private step reaches | {known.reached:.2f} |")
    lines += [
        f"| time of a private {role} step over it | {ratio:.2f} |" for role, ratio in known.ratios.items()
    ]
    lines += [
        f"| bytes that a token leaves in a layer of `{family}`, for each number of its width | {size:.0f} |"
        for family, size in known.activations.items()
        if family in {like for _, like in MODELS.values()}
    ]
    return "\n".join(lines)


def scale_table(known: Measured, device: Device = H100) -> str:
    lines = [
        "| model | trained | GPUs | layout | memory of one, GB | compute, s | network, s | noise, s | step, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (build, family) in MODELS.items():
        for words, config in SETTINGS.items():
            shape = count(_empty(build), config)
            for size in PROCESSES:
                for layout in ("replicated",) if size == 1 else ("replicated", "sharded"):
                    one = cost(shape, known, family, device, size, layout)
                    fits = "" if one.memory <= device.memory else " (too much)"
                    lines.append(
                        f"| {name} | {words} | {size} | {layout} | {one.memory / GB:.1f}{fits} | {one.compute_s:.3f} | "
                        f"{one.network_s:.4f} | {one.noise_s:.4f} | {one.step_s:.3f} |"
                    )
    return "\n".join(lines)


# The published run: RAPTOR on SST-2 with Switch-base-8, adapters of rank 128, on one B200.
PUBLISHED_S, PUBLISHED_BYTES, PUBLISHED_RANK = 4.51, 112.2 * GB, 128


def published_table(known: Measured) -> str:
    build, family = MODELS["Switch-base-8"]
    shape = count(_empty(build), lora(PUBLISHED_RANK))
    one = cost(shape, known, family, B200, 1, "replicated", physical=BATCH)
    reached = known.reached * one.compute_s / (PUBLISHED_S - one.noise_s)
    lines = ["| one B200, 1,024 records of 128 tokens at once | here | published |", "|---|---|---|"]
    lines.append(f"| numbers trained | {sum(shape.trained.values()):,} | 17.30 million |")
    lines.append(f"| memory, GB | {one.memory / GB:.0f} | {PUBLISHED_BYTES / GB:.1f} |")
    lines.append(
        f"| step, s, at the part of the peak that the CPU reaches | {one.step_s:.2f} | {PUBLISHED_S} |"
    )
    lines.append(f"| part of the float32 peak that explains the published time | {reached:.2f} | |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    known = learn(measured((DOCS / "performance.md").read_text(encoding="utf-8")))
    return {
        "measured": measured_table(known),
        "published": published_table(known),
        "sizes": sizes_table(),
        "scale": scale_table(known),
    }


def with_tables(text: str, found: Mapping[str, str]) -> str:
    """The page with each table between its marks.

    Raises:
        ValueError: a mark is missing.
    """
    for name, table in found.items():
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, start, rest = text.partition(marks[0])
        _, end, after = rest.partition(marks[1])
        if not start or not end:
            raise ValueError(f"the page has no marks of the table {name!r}")
        text = f"{before}{marks[0]}\n{table}\n{marks[1]}{after}"
    return text


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    found = tables()
    if parser.parse_args(given).write:
        page = DOCS / "scale.md"
        page.write_text(with_tables(page.read_text(encoding="utf-8"), found), encoding="utf-8")
        return
    for name, table in found.items():
        print(f"{name}\n\n{table}\n")


if __name__ == "__main__":
    main()
