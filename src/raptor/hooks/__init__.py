"""Kedro hooks: the information-flow check, early refusals, MLflow tracking, and what console and log may say."""

from raptor.hooks.console import ConsoleHook
from raptor.hooks.errors import hide_error_text
from raptor.hooks.flow_hook import FlowHook
from raptor.hooks.preflight import PreflightHook
from raptor.hooks.tracking import TrackingHook

__all__ = ["ConsoleHook", "FlowHook", "PreflightHook", "TrackingHook", "hide_error_text"]
