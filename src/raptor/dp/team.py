"""The processes that train one model together, as one step of one of them sees them.

A training in one process is a team of one (`Alone`). Teams of several are in `raptor.launch`: what they do to a
release is said here, since its guarantee rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor, nn

from raptor.dp.clipping import ClippedSum


class Team(Protocol):
    """What a step leaves to the team; all processes call the same methods in the same order.

    Guarantee:
        Released is nothing. `part` hands out one global Poisson sample, so that every record of it is in the part of
        exactly one process. `collect` adds up the clipped sums of all processes, in their own type, which is float32
        at least, and gives every coordinate of the total to exactly one process: so each gets its noise once, from the
        keystream of that process, and the concatenation over processes is the sum that one process would have made,
        up to rounding. Sensitivity, rate and denominator are those of the global sample. Assumes that the
        connections between the processes are as private as the records.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes, a public constant.
        is_in_step: whether a pass needs all processes, so that all have to make as many.
    """

    rank: int
    size: int
    is_in_step: bool

    def place(self, model: nn.Module) -> None:
        """Lay the parameters out over the processes, in place, before engines and optimizers see them."""

    def whole(self, names: Sequence[str] | None = None) -> AbstractContextManager[None]:
        """Within it these parameters (by default all) are whole tensors in the model of every process."""

    def part(self, draw: Callable[[], Tensor]) -> Tensor:
        """This process's part of the next global sample; `draw` is called by one process, which has the coins."""

    def goes_on(self, has_batch: bool) -> bool:
        """Whether there is another pass: while this process has a batch, or, in step, while any of them has."""

    def collect(self, total: ClippedSum) -> ClippedSum:
        """The part of the global sum that this process adds noise to."""

    def seal(self, digest: str) -> str:
        """One digest of all parts of a release, by the digest of this process's part."""

    def spread(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the optimizer of this process takes, from the parts of all."""


class Alone:
    """A team of one process."""

    rank = 0
    size = 1
    is_in_step = False

    def place(self, model: nn.Module) -> None:
        pass

    def whole(self, names: Sequence[str] | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def part(self, draw: Callable[[], Tensor]) -> Tensor:
        return draw()

    def goes_on(self, has_batch: bool) -> bool:
        return has_batch

    def collect(self, total: ClippedSum) -> ClippedSum:
        return total

    def seal(self, digest: str) -> str:
        return digest

    def spread(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        return released
