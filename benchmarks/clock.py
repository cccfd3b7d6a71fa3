"""Clock and memory: steps take turns in one process, so that a slow minute of the machine slows them all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

Clock = Callable[[], float]


class Step(Protocol):
    """Something to time."""

    def prepare(self) -> None:
        """Bring the model to its state before a step; not timed."""
        ...

    def run(self) -> None:
        """One step; timed."""
        ...


def clock_of(threads: int) -> Clock:
    """CPU time for one thread, which a busy machine does not disturb; wall time for several."""
    return time.process_time if threads == 1 else time.perf_counter


def interleaved(
    steps: Mapping[str, Step], rounds: int, clock: Clock, limits: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Seconds of each step in each round.

    Args:
        steps: by name; already run once each.
        rounds: how many times each is run.
        clock: gives seconds.
        limits: fewer rounds for some.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for number in range(rounds):
        for name in order:
            if number >= (limits or {}).get(name, rounds):
                continue
            steps[name].prepare()
            gc.collect()
            gc.disable()
            try:
                start = clock()
                steps[name].run()
                taken[name].append(clock() - start)
            finally:
                gc.enable()
        # What ran just before leaves its traces in caches and allocator, so it is not always the same.
        order = order[1:] + order[:1]
    return taken


def peak_bytes(step: Step) -> int:
    """Most bytes allocated at one time during a step, on top of what is there before it.

    Gradients of parameters are dropped before, so those that a step leaves behind count.
    """
    step.prepare()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step.run()
    results = profiler.profiler.kineto_results
    changes = [
        (event.start_ns(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]" and event.device_type() == torch.profiler.DeviceType.CPU
    ]
    held = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        peak = max(peak, held)
    return peak
