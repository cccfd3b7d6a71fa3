"""Rows of the benchmark's diagnostics: what the library finds, under the names of the tables."""

from __future__ import annotations

import json

import pytest

from raptor.dp.config import TrainingConfig
from raptor.pipelines.benchmark.diagnostics import diagnose, section
from tests.diagnostics.test_failure_modes import perturbed, plan_of, records


def test_a_row_says_what_was_found_and_goes_into_the_table() -> None:
    config = TrainingConfig(device="cpu", batch_size=40, cycles=2)
    model, trained = perturbed(config)
    found = diagnose(model, records(), trained, config, plan_of(config))
    assert 0 < found["experts"]["tenth"] <= found["experts"]["mean"] <= 1
    assert 0 < found["shared"]["retained"] <= 1
    assert found["signal_to_noise"] > 0
    assert found["entropy_share"] == pytest.approx(1.0)
    # All experts own alike here, so there is no slope to speak of.
    assert found["signal_slope"] is None
    json.dumps(found, allow_nan=False)
    assert "| a | " in "\n".join(section([{"dataset": "a", **found}]))
