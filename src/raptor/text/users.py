"""Users as the unit of privacy: how many records of each are used, and which."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raptor.text.problems import RecordError

WORD = 8


def bound_users(records: pa.Table, most: int, key: bytes | None = None) -> pa.Table:
    """The records of which every user has at most so many left, in their order.

    Guarantee: nothing is released. Which of a user's records are kept depends on the private key and on how many
    records that user has, and on nothing of any other user; so adding or removing a user moves no other user's choice.

    Args:
        records: with the column `user`.
        most: public bound of the number of records of one user.
        key: from the system's randomness, as private as the records, so that the same records are kept whenever they
            are read; None draws anew.

    Raises:
        RecordError: the records have no users.
    """
    if records["user"].null_count:
        raise RecordError(
            "users are the unit of privacy (privacy.unit), but the records say of none whose they are.",
            advice="Name the column with the users: ingestion.user.",
        )
    users = records["user"].combine_chunks().dictionary_encode()
    kept = _kept(
        users.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        users.dictionary.to_pylist(),
        most,
        secrets.token_bytes(32) if key is None else key,
    )
    return records.filter(pa.array(kept))


def _kept(codes: NDArray[np.int64], names: list[str], most: int, key: bytes) -> NDArray[np.bool_]:
    """(records,) bool: of each user the `most` records with the smallest of that user's random words."""
    kept = np.ones(len(codes), dtype=bool)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(names))
    ends = np.cumsum(counts)
    for user in np.flatnonzero(counts > most):
        rows = order[ends[user] - counts[user] : ends[user]]
        # The key comes first and has one length, so no name can pass for another one's input.
        stream = hashlib.shake_256(key + names[user].encode()).digest(WORD * len(rows))
        words = np.frombuffer(stream, dtype=np.uint64)
        kept[rows[np.argsort(words, kind="stable")[most:]]] = False
    return kept


def user_codes(records: pa.Table) -> NDArray[np.int64]:
    """(records,) number of each record's user, counted from 0 by first appearance."""
    users = records["user"].combine_chunks().dictionary_encode()
    codes: NDArray[np.int64] = users.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
