"""What one step releases, where it is more than one Gaussian sum: shared samples, layers, experts' own noise.

Everything here comes down to `Event`, the one kind of release that the accountant composes:

* Releases on one and the same sample are one release. Each is scaled to noise of deviation 1; a record then moves
  the sums by at most 1/s1, 1/s2, ..., all together by sqrt(1/s1^2 + 1/s2^2 + ...), and it is in the sample once.
  This holds as well where a later release depends on an earlier one of the same sample: with the sample held fixed,
  Gaussian releases compose adaptively ("Gaussian Differential Privacy", arXiv 1905.02383), and the sampling acts on
  the whole.
* Several protected layers are the same thing: a record moves one block of each.
* Of the blocks (experts) of one release a record moves a single one. If nobody says which, it is the one with the
  least noise. If the owner is a fixed function of the record, every owner has a sequence of its own, and the
  guarantee is the worst of the sequences (`epsilon_of_owners`), which is at most that of the worst block per step.
* A release without a sample is an event of rate 1; one that happens once has 1 step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raptor.accounting import checks
from raptor.accounting.accountant import epsilon
from raptor.accounting.compose import merge, renyi_epsilon
from raptor.accounting.types import Adjacency, EpsilonBound, Event
from raptor.errors import ParameterError

_MOST_OWNERS = 4096


def joint_multiplier(noise_multipliers: Iterable[float]) -> float:
    """Noise multiplier of the one Gaussian release that several releases on one sample are together.

    Guarantee:
        (1/s1^2 + 1/s2^2 + ...)^(-1/2), and no release of this sample beyond those given.

    Raises:
        ParameterError: there is none, or one is not above 0.
    """
    values = [checks.positive(value, "noise_multiplier", "a shared sample") for value in noise_multipliers]
    if not values:
        raise ParameterError("a shared sample must have at least one release")
    # In units of the least one, so that no square is out of range.
    least = min(values)
    return least / math.sqrt(math.fsum((least / value) ** 2 for value in values))


@dataclass(frozen=True)
class Step:
    """One step: one Poisson sample of rate `rate`, and all that is released on it.

    Attributes:
        rate: sampling rate; 1 for a release without sampling.
        releases: for each release on the sample the noise multipliers of its blocks, of which a record moves one:
            `((1.1,), (0.9, 0.9))` is a shared sum of multiplier 1.1 and an expert sum over two experts. Two
            protected layers are two releases.
    """

    rate: float
    releases: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.rate(self.rate, "rate", "a step"))
        releases = tuple(tuple(blocks) for blocks in self.releases)
        if not releases or not all(releases):
            raise ParameterError("a step must have at least one release, and a release at least one block")
        for multiplier in itertools.chain.from_iterable(releases):
            checks.positive(multiplier, "noise_multiplier", "a step")
        object.__setattr__(self, "releases", releases)

    def event(self, steps: int) -> Event:
        """`steps` such steps, wherever a record's owners are: also where they move with released weights."""
        return Event(self.rate, joint_multiplier(min(blocks) for blocks in self.releases), steps)

    def event_of(self, owners: Sequence[int], steps: int) -> Event:
        """`steps` such steps for a record that moves block `owners[i]` of release i in all of them.

        Raises:
            ParameterError: there is not one existing block for each release.
        """
        if len(owners) != len(self.releases):
            raise ParameterError(f"a step of {len(self.releases)} releases needs as many owners: {owners}")
        for blocks, owner in zip(self.releases, owners, strict=True):
            if not 0 <= checks.count(owner, "owner", "a release") < len(blocks):
                raise ParameterError(f"a release of {len(blocks)} blocks has no block {owner}")
        mine = (blocks[owner] for blocks, owner in zip(self.releases, owners, strict=True))
        return Event(self.rate, joint_multiplier(mine), steps)


def shared_sample(rate: float, noise_multipliers: Sequence[float], steps: int) -> Event:
    """`steps` steps of several releases on one sample of each step."""
    return Step(rate, tuple((value,) for value in noise_multipliers)).event(steps)


@dataclass(frozen=True)
class OwnersBound:
    """The guarantee over all owners.

    Attributes:
        bound: that of the owner who is protected least.
        owner: the index of this owner; where steps are charged at their worst owner each, of the one whose own
            sequence costs most by Renyi divergences.
    """

    bound: EpsilonBound
    owner: int

    @property
    def epsilon(self) -> float:
        return self.bound.epsilon


def epsilon_of_owners(
    sequences: Sequence[Sequence[Event]], delta: float, adjacency: Adjacency, *, confirm: bool = True
) -> OwnersBound:
    """Epsilon where each possible owner of a record has an event sequence of its own: the worst of them.

    Guarantee:
        Under add-remove, for owners that are a function of the record and of public facts alone, fixed for the whole
        run: with such a record added or removed only the owner's blocks change, so delta(epsilon) is the largest of
        the owners', each composed over all steps. Under replace-one a record of one owner may take the place of a
        record of another; the sequences must then be given event by event alike in rate and steps, and every step is
        charged at its worst owner. Owners that move need `Step.event` instead.

    Raises:
        ParameterError: there is no sequence, or those of replace-one are not alike.
        BudgetError: as `epsilon`.
    """
    if not sequences:
        raise ParameterError("there must be at least one owner")
    kind = checks.member(Adjacency, adjacency, "adjacency")
    budget = checks.budget_delta(delta)
    different = {merge(events): index for index, events in reversed(list(enumerate(sequences)))}
    renyi = {index: renyi_epsilon(events, budget, kind) for events, index in different.items()}
    first, *others = sorted(renyi, key=lambda index: (-renyi[index], index))
    if kind is Adjacency.REPLACE_ONE and len({tuple(events) for events in sequences}) > 1:
        return OwnersBound(epsilon(_worst_per_step(sequences), budget, kind, confirm=confirm), first)
    found = OwnersBound(epsilon(sequences[first], budget, kind, confirm=confirm), first)
    for index in others:
        # The Renyi bound is never below the figure, so an owner who is under by it need not be composed.
        if renyi[index] <= found.epsilon:
            break
        bound = epsilon(sequences[index], budget, kind, confirm=confirm)
        if bound.epsilon > found.epsilon:
            found = OwnersBound(bound, index)
    return found


def owner_sequences(schedule: Sequence[tuple[Step, int]]) -> tuple[tuple[Event, ...], ...]:
    """The event sequence of every possible owner, one block in each release, over a schedule of steps.

    Args:
        schedule: steps with how often each is made; where they have several releases, the same blocks in each.

    Raises:
        ParameterError: the steps differ in their blocks, or there are too many combinations of owners.
    """
    shapes = {tuple(len(blocks) for blocks in step.releases) for step, _ in schedule}
    if len(shapes) != 1:
        raise ParameterError("the steps of a schedule with owners must all have the same releases and blocks")
    (shape,) = shapes
    if math.prod(shape) > _MOST_OWNERS:
        raise ParameterError(
            f"{math.prod(shape)} combinations of owners are more than {_MOST_OWNERS}: account for the worst block of "
            "each step instead"
        )
    return tuple(
        tuple(step.event_of(owners, steps) for step, steps in schedule)
        for owners in itertools.product(*(range(blocks) for blocks in shape))
    )


def _worst_per_step(sequences: Sequence[Sequence[Event]]) -> list[Event]:
    """Event by event the least noise of all owners."""
    worst = []
    try:
        for events in zip(*sequences, strict=True):
            if len({(event.rate, event.steps) for event in events}) != 1:
                raise ValueError
            worst.append(min(events, key=lambda event: event.noise_multiplier))
    except ValueError:
        raise ParameterError(
            "under replace-one the owners' sequences must be alike in rates and steps, event by event"
        ) from None
    return worst
