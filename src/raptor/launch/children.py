"""The processes that torch elastic starts and watches on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PATIENCE_S = 15.0


class Children:
    """One torchrun with its processes, in a session of their own, so that all of them end together."""

    def __init__(self, command: Sequence[str], threads: int, output: Path) -> None:
        """`output` gets what they write: private, as torch may tell of values in its messages."""
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        # On one machine nothing private goes over a network.
        places = {
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
            "TP_SOCKET_IFNAME": loopback,
        }
        with os.fdopen(descriptor, "wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **places, "OMP_NUM_THREADS": str(threads)},
            )

    @property
    def has_ended(self) -> bool:
        """Whether torchrun has; its number stays taken until `end`, so that no other process can be meant by it."""
        if self._process.returncode is not None:
            return True
        if sys.platform == "linux":
            found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return found is not None
        return self._process.poll() is not None

    def wait(self) -> None:
        """Give them some time to end by themselves."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self) -> None:
        """Let them end; what has not after a while is killed."""
        if self._process.returncode is not None:
            return
        if not self.has_ended:
            os.kill(self._process.pid, signal.SIGTERM)
            self.wait()
        # Also after a torchrun that was killed itself: its processes are of the same session.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
