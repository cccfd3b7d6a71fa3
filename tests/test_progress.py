"""Progress bars go to a terminal only, and change nothing of what is gone through."""

from __future__ import annotations

import io

import pytest
import rich
from rich.console import Console

from raptor.progress import track


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    return io.StringIO()


def use(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, terminal: bool) -> None:
    monkeypatch.setattr(rich, "_console", Console(file=screen, force_terminal=terminal, width=100))


@pytest.mark.parametrize("terminal", [True, False])
def test_items_come_through_in_order(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, terminal: bool
) -> None:
    use(monkeypatch, screen, terminal)
    assert list(track(4, "count")) == [0, 1, 2, 3]
    assert list(track("abc", "letters")) == ["a", "b", "c"]
    assert list(track((n for n in (1, 2)), "stream", total=2)) == [1, 2]
    assert list(track((n for n in (1, 2)), "unknown length")) == [1, 2]


def test_quiet_off_a_terminal(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO) -> None:
    use(monkeypatch, screen, terminal=False)
    list(track(3, "train"))
    assert screen.getvalue() == ""


def test_bar_shows_what_and_how_far_and_no_speed(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    use(monkeypatch, screen, terminal=True)
    list(track(3, "train"))
    shown = screen.getvalue()
    assert "train" in shown
    assert "3/3" in shown
    assert "it/s" not in shown
