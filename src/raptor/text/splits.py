"""Which records are learnt from, and which are held out."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TRAIN, VALIDATION, TEST, UNLABELLED = "train", "validation", "test", "unlabelled"
SPLITS = (TRAIN, VALIDATION, TEST, UNLABELLED)
NAMES = {
    TRAIN: ("train", "training", "trn"),
    VALIDATION: (
        "validation",
        "validate",
        "valid",
        "val",
        "dev",
        "development",
        "eval",
        "evaluation",
        "heldout",
    ),
    TEST: ("test", "testing", "tst"),
    UNLABELLED: ("unlabelled", "unlabeled", "unsupervised", "predict", "prediction"),
}
_BY_NAME = {name: split for split, names in NAMES.items() for name in names}


def normal_split(value: str) -> str | None:
    """The split that a value of a split column means; None when it means none."""
    return _BY_NAME.get(re.sub(r"[\s_-]+", "", value.casefold()))


def split_of_name(name: str) -> str | None:
    """The split that a file or a hub split is named after, as in `mnli_validation_matched` or `train-00001`.

    None when the name holds no word for a split, or words for two.
    """
    words = re.split(r"[^a-z]+", name.casefold())
    found = {_BY_NAME[word] for word in words if word in _BY_NAME}
    return found.pop() if len(found) == 1 else None


def draw_held_out(records: int, fraction: float, key: bytes | None = None) -> NDArray[np.bool_]:
    """Which of `records` are held out: an independent coin each, from the system's randomness.

    Not a seeded permutation: there, one record more would move others from one side to the other, and a
    seed in a committed file would tell which records a model has seen. With a private key that is kept with
    the records the draw is the same whenever they are read. It goes by place: coins are independent in each
    reading, but readings of different files under one key share coins that then belong to other records.

    Args:
        records: number of records.
        fraction: probability of being held out, in [0, 1].
        key: from the system's randomness, as private as the records; None draws anew.

    Returns:
        (records,) bool.
    """
    # An extendable digest of a secret key is a keystream: more records lengthen it and change nothing before.
    drawn_bytes = (
        secrets.token_bytes(8 * records) if key is None else hashlib.shake_256(key).digest(8 * records)
    )
    return _below(drawn_bytes, fraction)


def draw_users(names: Sequence[str], fraction: float, key: bytes | None = None) -> NDArray[np.bool_]:
    """Which users are held out: a coin each, by a private key and the user's own name.

    Guarantee: nothing is released. A user who comes or goes moves no other one's side, also between runs that share a
    key, where coins by place would be dealt out anew.

    Args:
        names: of the users, each once.
        fraction: probability of being held out, in [0, 1].
        key: from the system's randomness, as private as the records; None draws anew.

    Returns:
        (users,) bool.
    """
    key = secrets.token_bytes(32) if key is None else key
    own = [
        hashlib.blake2b(name.encode(), key=key, person=b"raptor-held-out", digest_size=8).digest()
        for name in names
    ]
    return _below(b"".join(own), fraction)


def _below(random: bytes, fraction: float) -> NDArray[np.bool_]:
    """Whether each word of eight bytes, as a number from 0 to 1, is below the fraction."""
    words = np.frombuffer(random, dtype=np.uint64)
    # 53 bits, so that the comparison is exact in float64.
    drawn: NDArray[np.bool_] = (words >> np.uint64(11)).astype(np.float64) / 2.0**53 < fraction
    return drawn
