from typing import ClassVar

from raptor.parameters import RaptorContext
from raptor.settings import CONFIG_LOADER_ARGS, DISABLE_HOOKS_FOR_PLUGINS, HOOKS

__all__ = ["CONFIG_LOADER_ARGS", "CONTEXT_CLASS", "DISABLE_HOOKS_FOR_PLUGINS", "HOOKS"]


class LabContext(RaptorContext):
    parameter_models: ClassVar = {
        "selection": "lab.config:SelectionConfig",
        "training": "lab.config:TrainingConfig",
        "tracking": "raptor.hooks.config:TrackingConfig",
    }


CONTEXT_CLASS = LabContext
