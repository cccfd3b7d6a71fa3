"""What the C library does with memory that a step has freed."""

from __future__ import annotations

import ctypes
import sys

# Of mallopt in glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# The largest block that glibc takes from its heap instead of the system, and the step in which the heap grows.
_LARGEST, _STEP = 1 << 25, 1 << 26


def keep_freed_memory() -> bool:
    """Keep freed memory for the next step; by default every step hands it back and has its pages zeroed again.

    That costs some per cent of a step. The process does not grow beyond its peak.

    Returns:
        Whether the C library takes such advice (glibc does).
    """
    if not sys.platform.startswith("linux"):
        return False
    advise = getattr(ctypes.CDLL(None), "mallopt", None)
    if advise is None:
        return False
    wanted = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, _STEP))
    # Each of them is given, whatever becomes of the one before.
    taken = [advise(which, value) for which, value in wanted]
    return all(taken)
