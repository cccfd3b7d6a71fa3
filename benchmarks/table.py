"""The rows as a table, with the targets beside them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cases import BY_NAME
from benchmarks.measure import CYCLE, RAPTOR, WITH_NOISE, Row
from benchmarks.methods import EXPERT, MONOLITHIC, SHARED

MEMORY_TARGET = 1.03
NOISE_TARGET = 1.08
GROWTH_TARGET = 1.10
SHARED_TARGET, WIDE_TARGET = 1.05, 1.03
TARGETS = {EXPERT: 0.92, CYCLE: 1.00, MONOLITHIC: 1.15}
HEADER = ("case", "method", "role", "time", "target", "memory", "target", "floor", "rounds")


def time_target(row: Row) -> float | None:
    """The largest time ratio that is good enough, or None where none was set (peers, a floor's growth)."""
    if row["method"] == WITH_NOISE:
        return NOISE_TARGET
    if row["method"].startswith(f"{RAPTOR}, E="):
        return GROWTH_TARGET
    if row["method"] != RAPTOR:
        return None
    if row["role"] == SHARED:
        case = BY_NAME.get(row["case"])
        return WIDE_TARGET if case is not None and case.width >= 512 else SHARED_TARGET
    return TARGETS[row["role"]]


def memory_target(row: Row) -> float | None:
    """The same for peak memory; noise and growth have none."""
    return MEMORY_TARGET if row["method"] == RAPTOR else None


def _limit(value: float, target: float | None) -> str:
    if target is None:
        return ""
    # Compared as printed, so that the mark never contradicts the number before it.
    return f"{target:.2f}" + ("" if round(value, 2) <= target else " !")


def _cells(row: Row) -> tuple[str, ...]:
    names = (row["case"], row["method"], row["role"])
    if "missing" in row:
        return (*names, "missing: " + row["missing"], "", "", "", "", "")
    return (
        *names,
        f"{row['time_ratio']:.2f}",
        _limit(row["time_ratio"], time_target(row)),
        f"{row['memory_ratio']:.2f}",
        _limit(row["memory_ratio"], memory_target(row)),
        f"{1000 * row['floor_seconds']:.0f} ms, {row['floor_bytes'] / 2**20:.0f} MiB",
        str(row["rounds"]),
    )


def plain(rows: Sequence[Row]) -> str:
    """For a terminal; `!` marks a missed target."""
    cells = [HEADER, *map(_cells, rows)]
    # The reason of a missing peer is long and last in its line, so it widens no column.
    widths = [
        max(len(line[i]) for line in cells if not line[i].startswith("missing")) for i in range(len(HEADER))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def markdown(rows: Sequence[Row]) -> str:
    """For a document; `!` marks a missed target."""
    lines = [HEADER, ("---",) * len(HEADER), *map(_cells, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
