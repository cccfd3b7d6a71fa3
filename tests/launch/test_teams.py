"""Several processes make the update that one makes, with each noise value once, by whoever draws what."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from raptor.dp.mechanism import LATTICE
from tests.dp.crashes import BATCH, EXPERTS
from tests.launch.ranks import (
    SIZE,
    Crew,
    Updates,
    blocks_of_noise,
    keystreams,
    parts,
    resumed,
    updates,
)

SILENT = 1e-9
SIGMA, NORM = 0.9, 0.5
LAYOUTS = ("replicated", "sharded")


@pytest.fixture(scope="module", name="crew")
def _crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    crew = Crew(tmp_path_factory.mktemp("crew"))
    yield crew
    crew.close()


def furthest(found: Updates, expected: Updates) -> float:
    assert [sorted(update) for update in found] == [sorted(update) for update in expected]
    return max(
        float(np.abs(update[name] - wanted[name]).max())
        for update, wanted in zip(found, expected, strict=True)
        for name in wanted
    )


@pytest.mark.parametrize("size", [2, SIZE])
@pytest.mark.parametrize(
    ("layout", "family", "lora"),
    [
        ("replicated", "switch", False),
        ("sharded", "olmoe", False),
        pytest.param("sharded", "switch", False, marks=pytest.mark.exhaustive),
        pytest.param("sharded", "olmoe", True, marks=pytest.mark.exhaustive),
    ],
)
def test_several_processes_make_the_update_of_one(
    crew: Crew, size: int, layout: str, family: str, lora: bool
) -> None:
    (alone,) = crew.run(1, updates, "alone", family, SILENT, None, lora)
    assert max(float(np.abs(value).max()) for value in alone[0].values()) > 1e-3
    for found in crew.run(size, updates, layout, family, SILENT, None, lora):
        assert furthest(found, alone) <= 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("samples", [([], [], []), ([7], [0, 1], [3])])
def test_who_has_drawn_nothing_takes_part(crew: Crew, layout: str, samples: list[list[int]]) -> None:
    """Nobody has drawn anything, or the last processes have not."""
    (alone,) = crew.run(1, updates, "alone", "olmoe", SILENT, samples)
    for found in crew.run(SIZE, updates, layout, "olmoe", SILENT, samples):
        assert furthest(found, alone) <= 1e-6


@pytest.mark.parametrize("drawn", [[], [5], [0, 1, 2, 5, 8, 13, 21]])
def test_every_record_of_the_sample_is_in_one_part(crew: Crew, drawn: list[int]) -> None:
    found = crew.run(SIZE, parts, "replicated", drawn)
    assert sorted(record for part in found for record in part) == drawn
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_processes_share_a_generator(crew: Crew, layout: str) -> None:
    found = crew.run(SIZE, keystreams, layout)
    keys = [key for process in found for key, _ in process.values()]
    assert len(set(keys)) == len(keys)
    for rank, process in enumerate(found):
        for name, (_, position) in process.items():
            draws = rank == 0 or (layout == "sharded" and name.endswith("noise"))
            assert (position > 0) == draws, (rank, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_noise_of_all_processes_has_the_variance_of_one_release(crew: Crew, layout: str) -> None:
    found = crew.run(SIZE, blocks_of_noise, layout, SIGMA)
    for step, denominator in enumerate([BATCH, BATCH, BATCH / EXPERTS]):
        deviation = SIGMA * NORM * (1 + LATTICE) / denominator
        own = [np.concatenate([value.ravel() for value in process[step].values()]) for process in found]
        values = np.concatenate(own) / deviation
        (whole,) = crew.run(1, blocks_of_noise, "alone", SIGMA) if step == 0 else (None,)
        if whole is not None:
            # As many numbers as one process draws: none is without noise, and none has it twice.
            assert len(values) == sum(value.size for value in whole[0].values())
        assert abs(values.var() - 1) < 5 * math.sqrt(2 / len(values))
        assert abs(values.mean()) < 5 / math.sqrt(len(values))
        assert np.count_nonzero(values == 0) <= 1
        # The same keystream in two processes would show as the same values in another place.
        shortest = min((len(part) for part in own if len(part)), default=0)
        drawn = [part[:shortest] for part in own if len(part)]
        for first in range(len(drawn)):
            for second in range(first):
                related = float(np.corrcoef(drawn[first], drawn[second])[0, 1])
                assert abs(related) < 5 / math.sqrt(shortest)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.exhaustive), 5])
def test_a_kept_state_goes_on_with_the_same_bits(crew: Crew, layout: str, stop: int) -> None:
    for names, same in crew.run(2, resumed, layout, stop):
        assert all(names)
        assert same
