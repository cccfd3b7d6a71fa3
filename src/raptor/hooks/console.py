"""What `kedro run` shows: the names of nodes as they start, and where the result is. The log file has the rest."""

from __future__ import annotations

from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline

from raptor.datasets.atomic import shown
from raptor.progress import say

REPORT = "report"


class ConsoleHook:
    """One line a node; no durations and nothing of the data."""

    # Before the tracking hook, whose first record takes seconds.
    @hook_impl(tryfirst=True)
    def before_node_run(self, node: Any) -> None:
        say(f"Running node: {node.name}")

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: Any) -> None:
        made = REPORT in pipeline.all_outputs() and getattr(catalog.get(REPORT), "filepath", None)
        say(
            f"Done. The report is {shown(made)}; the log is raptor.log."
            if made
            else "Done. The log is raptor.log."
        )
