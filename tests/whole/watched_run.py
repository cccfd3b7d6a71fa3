"""Run `kedro run` in this process while noting what is private about it, in a file outside the project.

python -m tests.whole.watched_run FACTS.json [kedro run arguments]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from raptor.dp import training
from raptor.dp.gradients import engine
from raptor.dp.sampling import PoissonSampler


def watch(facts: dict[str, list[Any]]) -> None:
    """Note realised batch sizes and mean training losses as the mechanism sees them."""
    make = engine._TappedGradients.__init__

    class NotedSampler(PoissonSampler):
        """In training alone: the audit draws from records that are made up."""

        def draw(self) -> torch.Tensor:
            sample = super().draw()
            facts["batch_sizes"].append(len(sample))
            return sample

    def noted_make(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        losses = self._loss

        def noted_losses(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            values = losses(model, batch)
            facts["losses"].append(float(values.mean()))
            return values

        self._loss = noted_losses

    training.PoissonSampler = NotedSampler  # type: ignore[misc]
    engine._TappedGradients.__init__ = noted_make  # type: ignore[method-assign]


def main() -> None:
    target = Path(sys.argv[1])
    facts: dict[str, list[Any]] = {"batch_sizes": [], "losses": []}
    watch(facts)
    from kedro.framework.cli import main as kedro

    sys.argv = ["kedro", "run", *sys.argv[2:]]
    try:
        kedro()
    finally:
        target.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
