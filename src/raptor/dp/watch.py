"""Routers and records as they are before training, to be compared with what they are after it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

import torch
from torch import Tensor, nn

from raptor.dp.records import EncodedRecords
from raptor.moe.roles import Role, parameter_roles


def _itself(value: Tensor) -> Tensor:
    return value


class Watch:
    """Remembers routers and records, and says later whether they are still the same.

    Guarantee: nothing is released but whether both are the same, and the public number of router weights. The
    fingerprint of the records is keyed with a key of its own, and both are forgotten with this object.
    """

    def __init__(
        self, model: nn.Module, records: EncodedRecords, local: Callable[[Tensor], Tensor] = _itself
    ) -> None:
        """`local` gives the part of a tensor that this process holds, where several share a model."""
        self._model = model
        self._local = local
        self._routers = {
            name: self._held(model, name)
            for name, entry in parameter_roles(model).items()
            if entry.role is Role.ROUTER
        }
        self._sizes = {name: model.get_parameter(name).numel() for name in self._routers}
        self._records = records
        self._key = secrets.token_bytes(32)
        self._before = records.fingerprint(self._key)

    def router_weights(self, model: nn.Module | None = None) -> int:
        """Numbers in all routers when all are as they were, in the model or one that took its place; 0 otherwise."""
        found = self._model if model is None else model
        present = {name for name, _ in found.named_parameters()}
        same = all(
            name in present and torch.equal(before, self._held(found, name))
            for name, before in self._routers.items()
        )
        return sum(self._sizes.values()) if same else 0

    def records_unchanged(self) -> bool:
        return hmac.compare_digest(self._before, self._records.fingerprint(self._key))

    def _held(self, model: nn.Module, name: str) -> Tensor:
        return self._local(model.get_parameter(name).detach()).cpu().clone()
