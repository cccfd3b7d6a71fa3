"""What a training has checked, for the ledger: before its first release, and after its last one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from raptor.accounting.facts import Gate, Records, RunEnd, RunStart
from raptor.code_version import running_code
from raptor.dp.isolation import Isolation
from raptor.dp.plan import EXPERT, SHARED
from raptor.dp.records import EncodedRecords
from raptor.dp.trainable import TrainableSet
from raptor.dp.watch import Watch


def run_start(
    isolation: Isolation, trainable: TrainableSet, records: Records, processes: int = 1
) -> RunStart:
    """What is known before the first release, once `require_planned` has compared parameters and plan.

    Args:
        processes: how many train together.
    """
    streams = {SHARED: trainable.shared, EXPERT: trainable.expert}
    return RunStart(
        code=running_code(),
        isolation=Gate(isolation.groups, isolation.precisions, isolation.notes),
        constants=True,
        coordinates={name: trainable.count(names) for name, names in streams.items() if names},
        records=records,
        processes=processes,
    )


class RunWatch:
    """Says after a training whether routers and records are still what they were before it.

    Guarantee: see `raptor.dp.watch.Watch`; nothing else is released.
    """

    def __init__(self, model: nn.Module, records: EncodedRecords) -> None:
        """Before the model gets adapters or is moved: with the base model's routers."""
        self._watch = Watch(model, records)

    def end(self, model: nn.Module, keystreams: Sequence[str], left_out: int) -> RunEnd:
        """After adapters were folded in; the number of router weights is 0 when one of them has changed.

        Args:
            left_out: steps of the schedule that were not made.
        """
        return RunEnd(
            router_weights=self._watch.router_weights(model),
            records_unchanged=self._watch.records_unchanged(),
            keystreams=tuple(keystreams),
            left_out=left_out,
        )
