"""Where a private training stands between two steps: all that the next one depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from raptor.dp.streams import RandomSource


@dataclass(frozen=True)
class StreamState:
    """One stream of releases.

    Attributes:
        released: releases that are charged; more than `updates` where some were lost in a crash.
        updates: updates of its optimizer, and position in its schedule of step sizes.
        coins, noise: bytes that were used of its keystreams. Private: noise can be made again from them.
        last: digest of its last release.
        others: bytes that were used of the noise keystreams of the processes after the first, where several train
            together. Private like `noise`.
    """

    released: int
    updates: int
    coins: int
    noise: int
    last: str | None
    others: Sequence[int] = ()


@dataclass(frozen=True)
class TrainingState:
    """The whole training. Private: whoever has the key can take the noise off the releases.

    Attributes:
        finished: steps of the schedule that were made.
        randomness: the source of coins and noise, with its key.
        streams: states by the streams' names.
        tensors: trained parameters and their moments and step counts, as `STREAM:PARAMETER:FIELD`.
    """

    finished: int
    randomness: RandomSource
    streams: Mapping[str, StreamState]
    tensors: Mapping[str, Tensor]
