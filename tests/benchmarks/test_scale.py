"""The tables of docs/scale.md are what the models, the measured rows and the data sheets give."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.scale import (
    H100,
    MODELS,
    Measured,
    Shape,
    _empty,
    cost,
    count,
    lora,
    operations,
    switch_base,
    tables,
    with_tables,
)

from raptor.dp.config import TrainingConfig

KNOWN = Measured(0.5, {"shared": 1.0, "expert": 1.0}, {"switch2": 60.0})


def test_the_page_has_the_tables_of_the_present_code_and_rows(repository: Path) -> None:
    page = (repository / "docs" / "scale.md").read_text()
    assert with_tables(page, tables()) == page, "python -m benchmarks.scale --write makes them"


def test_the_published_model_is_counted_as_published() -> None:
    """307.85 million numbers in the encoder, of which 17.30 million in adapters of rank 128 (arXiv 2609.05770)."""
    shape = count(_empty(switch_base), lora(128))
    assert shape.total == 307_846_272
    assert sum(shape.trained.values()) == 17_301_504 + 2 * 768 + 2


def test_operations_of_a_layer_are_those_of_its_matrices() -> None:
    shape = Shape(8, 1, 1000, 100.0, 0.0, 600, 600, {"shared": 40, "expert": 60})
    forward = 2 * 100 + 4 * 16 * 8
    assert operations(shape, "shared", 16, 40) == 2 * forward + 2 * 40
    # Nothing lies above the last layer, so an expert step goes back no further.
    assert operations(shape, "expert", 16, 60) == forward + 2 * 60


def test_more_processes_take_less_time_and_shards_less_memory() -> None:
    shape = count(_empty(MODELS["Switch-base-8"][0]), TrainingConfig())
    one, eight = (cost(shape, KNOWN, "switch2", H100, size, "replicated") for size in (1, 8))
    sharded = cost(shape, KNOWN, "switch2", H100, 8, "sharded")
    assert eight.compute_s == pytest.approx(one.compute_s / 8)
    assert eight.noise_s == one.noise_s == pytest.approx(8 * sharded.noise_s)
    assert sharded.memory < eight.memory <= one.memory
    assert one.network_s == 0 < eight.network_s < sharded.network_s


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks of the table 'scale'"):
        with_tables("nothing", {"scale": "|"})
