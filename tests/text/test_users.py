"""Which of a user's records are kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.text.problems import RecordError
from raptor.text.splits import draw_users
from raptor.text.users import bound_users, user_codes

KEY = b"k" * 32


def table(users: list[str | None]) -> pa.Table:
    return pa.table({"user": pa.array(users, pa.string()), "row": range(len(users))})


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.integers(1, 5))
def test_every_user_keeps_as_many_as_there_are_up_to_the_bound(users: list[str], most: int) -> None:
    kept = bound_users(table(users), most, KEY)
    found = Counter(kept["user"].to_pylist())
    assert found == {user: min(count, most) for user, count in Counter(users).items()}
    assert kept["row"].to_pylist() == sorted(kept["row"].to_pylist())


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40), st.integers(1, 3))
def test_no_users_choice_depends_on_another_user(users: list[str], most: int) -> None:
    whole = bound_users(table(users), most, KEY)
    gone = users[0]
    rest = table(users).filter(pa.array([user != gone for user in users]))
    assert bound_users(rest, most, KEY).to_pylist() == [r for r in whole.to_pylist() if r["user"] != gone]


def test_the_choice_is_even_and_a_matter_of_the_key() -> None:
    counts = np.zeros(6)
    for number in range(600):
        counts[bound_users(table(["a"] * 6), 2, number.to_bytes(32, "big"))["row"].to_pylist()] += 1
    assert abs(counts / 600 - 1 / 3).max() < 0.08
    drawn = {tuple(bound_users(table(["a"] * 40), 2)["row"].to_pylist()) for _ in range(5)}
    assert len(drawn) > 1


def test_two_users_of_as_many_records_do_not_keep_the_same_places() -> None:
    places = {
        tuple(bound_users(table([name] * 40), 3, KEY)["row"].to_pylist()) for name in ("a", "b", "ab", "é")
    }
    assert len(places) == 4


@given(st.lists(st.text(max_size=3), min_size=1, max_size=30, unique=True), st.floats(0, 1))
def test_no_users_side_depends_on_another_user(names: list[str], fraction: float) -> None:
    drawn = draw_users(names, fraction, KEY)
    assert draw_users(names[1:], fraction, KEY).tolist() == drawn[1:].tolist()
    assert draw_users(names[::-1], fraction, KEY).tolist() == drawn[::-1].tolist()


def test_sides_are_by_fair_coins_and_a_matter_of_the_key() -> None:
    names = [str(number) for number in range(4000)]
    drawn = draw_users(names, 0.3, KEY)
    assert abs(drawn.mean() - 0.3) < 0.04
    assert (drawn != draw_users(names, 0.3, b"o" * 32)).any()
    assert (draw_users(names, 0.3) != draw_users(names, 0.3)).any()
    assert not draw_users(names, 0.0, KEY).any()
    assert draw_users(names, 1.0, KEY).all()


def test_records_without_users_are_refused() -> None:
    for users in ([None, None], ["a", None]):
        with pytest.raises(RecordError, match=r"ingestion\.user"):
            bound_users(table(users), 2, KEY)


def test_users_are_numbered_by_first_appearance() -> None:
    assert user_codes(table(["b", "a", "b", "c"])).tolist() == [0, 1, 0, 2]
