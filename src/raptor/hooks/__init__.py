"""Kedro hooks: the information-flow check, MLflow tracking, and what the log may say."""

from raptor.hooks.errors import hide_error_text
from raptor.hooks.flow_hook import FlowHook
from raptor.hooks.tracking import TrackingHook

__all__ = ["FlowHook", "TrackingHook", "hide_error_text"]
