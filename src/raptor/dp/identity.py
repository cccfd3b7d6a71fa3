"""What a private training is bound to: with anything else, the same noise would meet other gradients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import raptor
from raptor.accounting.certificate import model_digest
from raptor.accounting.plan import PrivacyPlan
from raptor.code_version import source_digest
from raptor.dp.config import TrainingConfig
from raptor.dp.records import EncodedRecords

RECORDS = "the private records or their owners"
PLAN = "privacy plan: "
SHOWN = 6
# These change neither gradients nor noise.
_FREE = frozenset({"resume", "checkpoint_every"})
_CODE = ("accounting", "dp", "moe")


def run_identity(
    plan: PrivacyPlan,
    config: TrainingConfig,
    base_model: Path,
    records: EncodedRecords,
    device: torch.device,
    salt: bytes,
) -> dict[str, Any]:
    """Name -> value of all that decides the bits of a training, as JSON.

    Which parameters are trained follows from it, and is compared by name and shape with what a checkpoint holds.

    Guarantee: nothing is released. The fingerprint of the records is keyed with `salt`, which stays in the
    private checkpoint; it is in no message.
    """
    package = Path(raptor.__file__).parent
    code = "".join(source_digest(package / part) for part in _CODE)
    return {
        **dict(_flat(plan.to_json(), PLAN)),
        **dict(_flat(config.model_dump(mode="json", exclude=set(_FREE)), "training.")),
        "the base model": model_digest(base_model),
        RECORDS: records.fingerprint(salt),
        "raptor": raptor.__version__,
        "raptor's code": hashlib.sha256(code.encode()).hexdigest(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "the device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "CPU threads (training.threads, OMP_NUM_THREADS)": config.threads or torch.get_num_threads(),
    }


def differences(kept: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """What is not the same, in words, at most `SHOWN` of it; values are shown where they are short and public."""
    found = []
    # What is in the plan follows from parameters and records, so it comes last.
    for name in sorted({*kept, *present}, key=lambda name: (name.startswith(PLAN), name)):
        before, now = kept.get(name), present.get(name)
        if before == now:
            continue
        digest = name == RECORDS or any(
            isinstance(value, str) and len(value) == 64 for value in (before, now)
        )
        found.append(f"{name} changed" if digest else f"{name} was {before}, is {now}")
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more"]


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and lists by their dotted names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}{key}" if name.endswith((".", " ")) else f"{name}.{key}")
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    else:
        yield name, value
