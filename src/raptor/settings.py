"""Kedro's settings for this project."""

from __future__ import annotations

import os
import warnings

# Nothing that runs here may call home, not Kedro, MLflow, the model hub's client or their plugins.
os.environ.update(
    DO_NOT_TRACK="1",
    KEDRO_DISABLE_TELEMETRY="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    HF_HUB_DISABLE_TELEMETRY="1",
    DISABLE_TELEMETRY="1",
    # Bars of the model library would tear those of the project, and litter a log.
    HF_HUB_DISABLE_PROGRESS_BARS="1",
)
# Threads that wait for one another give their core away soon: where another process wants it, too, a training step
# took seven times as long while they spun. On a free machine the difference is a few per cent.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
warnings.filterwarnings("ignore", message=r"(?s).*register_new_resolver.*")
# The cards on mechanism nodes use Kedro's node previews, which it calls experimental.
warnings.filterwarnings("ignore", message=r"(?s).*preview_fn.*experimental.*")

from raptor.hooks import (  # noqa: E402
    ConsoleHook,
    FlowHook,
    PreflightHook,
    TrackingHook,
    hide_error_text,
)
from raptor.parameters import RaptorContext  # noqa: E402

hide_error_text()

CONTEXT_CLASS = RaptorContext

HOOKS = (FlowHook(), PreflightHook(), TrackingHook(), ConsoleHook())

# kedro-viz would write row counts of private tables to .viz on each run; `kedro viz` works without its hook.
DISABLE_HOOKS_FOR_PLUGINS = ("kedro-viz", "kedro-telemetry")

CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # An environment changes single parameters; by default it would replace a whole top-level key.
    "merge_strategy": {"parameters": "soft"},
    "config_patterns": {
        "parameters": ["parameters*", "parameters*/**", "**/parameters*", "tracking*"],
    },
}
