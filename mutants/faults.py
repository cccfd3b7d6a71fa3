"""All planted faults."""

from __future__ import annotations

from mutants import (
    in_accounting,
    in_completions,
    in_gradients,
    in_ledger,
    in_levers,
    in_mechanism,
    in_randomness,
    in_resume,
    in_users,
)

FAULTS = (
    in_mechanism.FAULTS
    + in_randomness.FAULTS
    + in_gradients.FAULTS
    + in_accounting.FAULTS
    + in_ledger.FAULTS
    + in_resume.FAULTS
    + in_users.FAULTS
    + in_levers.FAULTS
    + in_completions.FAULTS
)
