"""Randomness that privacy rests on: keyed streams of coins and Gaussian noise.

Every private random number of the project comes from here. A `RandomSource` holds one key and hands out one
stream per purpose, so that sampling coins and noise never share bits. Keys come from the operating system
and live in memory, and in the private checkpoint of a training that has not ended. A seeded source exists
for tests; its name says so, and the certificate repeats it.

Normals are drawn by Box-Muller in float64 from 53-bit words. The radius uses two words, so the tail reaches
12 standard deviations instead of stopping where one word does. `raptor.dp.mechanism` rounds them to its lattice.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from raptor.errors import ParameterError

KEY_BYTES = 32
_WORD_BITS = 53
_COIN_SCALE = 2**64
_AES_BLOCK = 16
# Normals of one pass; a constant of the stream, since it decides which bits make which number.
BLOCK = 2**15


class RandomStream:
    """One keystream (AES-256 in counter mode). Bytes are used once, in order.

    Only a run that resumes after a crash goes back, to make the same releases of the same sums again.
    """

    def __init__(self, key: bytes) -> None:
        # The key is used for this stream alone, so a fixed starting counter repeats nothing.
        self._key = key
        self._zeros = b""
        self._bytes = bytearray()
        self._floats = torch.empty(0, dtype=torch.float64)
        self.seek(0)

    @property
    def position(self) -> int:
        """Bytes that were used so far."""
        return self._position

    def seek(self, position: int) -> None:
        """Go on after the first `position` bytes.

        Raises:
            ParameterError: the position is below 0.
        """
        if position < 0:
            raise ParameterError(f"A stream has no position {position}.")
        block, used = divmod(position, _AES_BLOCK)
        counter = block.to_bytes(_AES_BLOCK, "big")
        self._encryptor = Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()
        self._encryptor.update(bytes(used))
        self._position = position

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        """The next words of the keystream, in memory that the next call overwrites: fresh memory is dearer than AES."""
        size = 8 * count
        if size > len(self._zeros):
            self._zeros, self._bytes = bytes(size), bytearray(size + _AES_BLOCK)
        self._position += 8 * count
        self._encryptor.update_into(memoryview(self._zeros)[:size], self._bytes)
        return np.frombuffer(self._bytes, dtype=np.uint64, count=count)

    def coins(self, count: int, rate: float) -> Tensor:
        """`count` independent coins that are true with probability `rate`, as a (count,) bool tensor.

        Integer thresholds keep small rates exact to 2^-64; a float32 uniform would be off by up to 2^-24.
        """
        if not 0.0 < rate <= 1.0:
            raise ParameterError(f"A sampling rate must be in (0, 1]; got {rate}.")
        if rate == 1.0:
            return torch.ones(count, dtype=torch.bool)
        threshold = np.uint64(math.floor(rate * _COIN_SCALE))
        return torch.from_numpy(self._words(count) < threshold)

    def normals(self, shape: Sequence[int]) -> Tensor:
        """Independent standard normals, float64, on the CPU."""
        count = math.prod(shape)
        drawn = torch.empty(count, dtype=torch.float64)
        # In blocks that stay in the cache, which is several times faster than one pass after another.
        for start in range(0, count, BLOCK):
            self._fill(drawn[start : start + BLOCK])
        return drawn.reshape(tuple(shape))

    def _fill(self, target: Tensor) -> None:
        """Overwrite a (count,) float64 tensor with standard normals."""
        pairs = (len(target) + 1) // 2
        words = self._words(3 * pairs)
        words >>= np.uint64(64 - _WORD_BITS)
        if len(self._floats) < len(words):
            self._floats = torch.empty(len(words), dtype=torch.float64)
        # The top bit is gone, so they may be read as signed, which is several times faster to convert.
        floats = self._floats[: len(words)].copy_(torch.from_numpy(words.view(np.int64)))
        high, low, turn = floats.view(3, pairs).unbind()
        unit = 2.0**-_WORD_BITS
        uniform = low.add_(0.5).mul_(unit).add_(high).mul_(unit)
        radius = uniform.log_().mul_(-2.0).sqrt_()
        angle = turn.mul_(2.0 * math.pi * unit)
        torch.cos(angle, out=target[:pairs]).mul_(radius)
        second = len(target) - pairs
        torch.mul(radius[:second], angle.sin_()[:second], out=target[pairs:])


class RandomSource:
    """One key, many streams.

    Attributes:
        name: what the ledger and the certificate call the generator.
        is_secure: whether outputs may be called private.
        given: purposes of the streams that were handed out, in order.
    """

    def __init__(self, key: bytes, name: str, is_secure: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ParameterError(f"A key must have {KEY_BYTES} bytes; got {len(key)}.")
        self._key = key
        self.name = name
        self.is_secure = is_secure
        self.given: list[str] = []

    @classmethod
    def secure(cls) -> RandomSource:
        """A fresh key from the operating system's entropy."""
        return cls(secrets.token_bytes(KEY_BYTES), "secure:aes-256-ctr/os-entropy", True)

    @classmethod
    def seeded(cls, seed: int) -> RandomSource:
        """A key derived from a seed: for tests only, whoever knows the seed can remove the noise."""
        return cls(hashlib.sha256(f"raptor-test-{seed}".encode()).digest(), "seeded:aes-256-ctr", False)

    @property
    def key(self) -> bytes:
        """The key itself: for private checkpoints, and for nothing that is shown, logged or released."""
        return self._key

    def fresh(self) -> RandomSource:
        """Another source of the same kind, none of whose streams was ever used."""
        key = secrets.token_bytes(KEY_BYTES) if self.is_secure else hashlib.sha256(self._key).digest()
        return RandomSource(key, self.name, self.is_secure)

    def member(self, rank: int) -> RandomSource:
        """The source of one of several processes that train together: this one for the first, a key of its own else."""
        if rank == 0:
            return self
        return RandomSource(
            hmac.digest(self._key, f"rank/{rank}".encode(), "sha256"), self.name, self.is_secure
        )

    def stream(self, purpose: str) -> RandomStream:
        """The stream of one purpose. Asking again for the same purpose would repeat it, so ask once."""
        self.given.append(purpose)
        return RandomStream(hmac.digest(self._key, purpose.encode(), "sha256"))

    def __repr__(self) -> str:
        return f"RandomSource({self.name})"
