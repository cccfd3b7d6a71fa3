"""Files between the processes of a training: facts and tensors, whole or not there, closed to everybody else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_FACTS = "facts"


def write_bytes(place: Path, content: bytes) -> None:
    """Write a file that its owner alone can read; it has its name when it is whole."""
    partial = place.with_name(f"{place.name}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    partial.replace(place)


def write_facts(place: Path, facts: Mapping[str, Any]) -> None:
    """Write JSON as `write_bytes` does."""
    write_bytes(place, json.dumps(facts).encode())


def read_facts(place: Path) -> dict[str, Any]:
    """What `write_facts` wrote."""
    found: dict[str, Any] = json.loads(place.read_bytes())
    return found


def write_parcel(place: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with facts beside them: a safetensors file, which holds no code."""
    partial = place.with_name(f"{place.name}.partial")
    # Closed to others before anything is in it; safetensors writes into the file that is there.
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(held, partial, {_FACTS: json.dumps(facts)})
    partial.chmod(0o600)
    partial.replace(place)


def read_parcel(place: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_parcel` wrote, on the CPU."""
    with safe_open(place, framework="pt") as file:
        facts: dict[str, Any] = json.loads((file.metadata() or {})[_FACTS])
        return facts, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
