"""Progress bars go to a terminal only, and change nothing of what is gone through."""

from __future__ import annotations

import io

import pytest
import rich
from rich.console import Console

from raptor.progress import on_stderr, say, track, working


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


def test_long_work_says_off_a_terminal_that_it_starts_and_ends_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    use(monkeypatch, screen, terminal=False)
    list(track(3, "Training [privately]", long=True))
    with working("Reading"):
        pass
    assert screen.getvalue() == (
        "Training [privately]: started\nTraining [privately]: done\nReading: started\nReading: done\n"
    )


def test_work_that_fails_is_not_called_done(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO) -> None:
    use(monkeypatch, screen, terminal=False)
    with pytest.raises(ValueError, match="stop"), working("Reading"):
        raise ValueError("stop")
    assert screen.getvalue() == "Reading: started\n"


def test_a_command_may_keep_its_standard_output_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rich, "_console", Console(width=100))
    with on_stderr():
        say("aside")
    say("result")
    assert capsys.readouterr() == ("result\n", "aside\n")


def test_bar_shows_what_and_how_far_and_no_speed(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    use(monkeypatch, screen, terminal=True)
    list(track(3, "train"))
    shown = screen.getvalue()
    assert "train" in shown
    assert "3/3" in shown
    assert "it/s" not in shown
    # How long private steps take depends on their samples.
    assert "0:00" not in shown


def test_public_work_says_off_a_terminal_what_is_left(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    use(monkeypatch, screen, terminal=False)
    assert list(track(20, "Benchmark", is_public=True)) == list(range(20))
    lines = screen.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "Benchmark: 2 of 20, about 0 minutes left"
    assert lines[-1].startswith("Benchmark: 20 of 20")
