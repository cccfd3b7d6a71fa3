"""The isolation gate: before the first private step, on synthetic records, what the guarantee takes as given."""

from raptor.dp.isolation.gate import Isolation, check_isolation
from raptor.dp.isolation.specs import EngineSpec

__all__ = ["EngineSpec", "Isolation", "check_isolation"]
