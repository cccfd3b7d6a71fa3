"""What a training has checked, for the ledger: before its first release, and after its last one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

import torch
from torch import nn

from raptor.accounting.facts import Gate, Records, RunEnd, RunStart
from raptor.code_version import running_code
from raptor.dp.isolation import Isolation
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import TrainableSet
from raptor.moe.roles import Role, parameter_roles


def run_start(isolation: Isolation, trainable: TrainableSet, records: Records) -> RunStart:
    """What is known before the first release, once `require_planned` has compared parameters and plan."""
    streams = {SHARED: trainable.shared, EXPERT: trainable.expert}
    return RunStart(
        code=running_code(),
        isolation=Gate(isolation.groups, isolation.precisions, isolation.notes),
        constants=True,
        coordinates={name: trainable.count(names) for name, names in streams.items() if names},
        records=records,
    )


class RunWatch:
    """Remembers routers and records as they are before training, and says afterwards whether they still are.

    Guarantee: nothing is released but whether both are the same, and the public number of router weights. The
    fingerprint of the records is keyed with a key of its own, and both are forgotten with this object.
    """

    def __init__(self, model: nn.Module, records: EncodedRecords) -> None:
        """Before the model gets adapters or is moved: with the base model's routers."""
        self._routers = {
            name: model.get_parameter(name).detach().cpu().clone()
            for name, entry in parameter_roles(model).items()
            if entry.role is Role.ROUTER
        }
        self._records = records
        self._key = secrets.token_bytes(32)
        self._before = _fingerprint(records, self._key)

    def end(self, model: nn.Module, keystreams: Sequence[str], left_out: int) -> RunEnd:
        """After adapters were folded in; the number of router weights is 0 when one of them has changed.

        Args:
            left_out: steps of the schedule that were not made.
        """
        after = dict(model.named_parameters())
        same = all(
            name in after and torch.equal(before, after[name].detach().cpu())
            for name, before in self._routers.items()
        )
        return RunEnd(
            router_weights=sum(weight.numel() for weight in self._routers.values()) if same else 0,
            records_unchanged=hmac.compare_digest(self._before, _fingerprint(self._records, self._key)),
            keystreams=tuple(keystreams),
            left_out=left_out,
        )


def _fingerprint(records: EncodedRecords, key: bytes) -> bytes:
    total = hmac.new(key, digestmod=hashlib.sha256)
    for value in records.tensors():
        total.update(str(tuple(value.shape)).encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.digest()
