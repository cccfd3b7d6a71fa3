"""The journal: durable before use, never overwritten, and broken nowhere without notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raptor.accounting import journal as journal_module
from raptor.accounting.chain import seal
from raptor.accounting.journal import ReleaseJournal, read_journal
from raptor.errors import LedgerError, ParameterError

from .samples import make_plan, make_releases


@pytest.fixture(name="written")
def _written(tmp_path: Path) -> Path:
    plan = make_plan(evaluation=0)
    with ReleaseJournal.create(tmp_path / "journal.jsonl", plan) as journal:
        for release in make_releases(plan):
            journal.append(release)
    return tmp_path / "journal.jsonl"


def test_a_journal_gives_back_what_was_written(written: Path) -> None:
    plan = make_plan(evaluation=0)
    header, releases = read_journal(written)
    assert header == plan
    assert releases == make_releases(plan)


def test_lines_in_memory_are_the_lines_on_disk(tmp_path: Path) -> None:
    plan = make_plan(evaluation=0)
    with ReleaseJournal.create(tmp_path / "j.jsonl", plan) as journal:
        journal.append(make_releases(plan)[0])
        on_disk = [json.loads(line) for line in (tmp_path / "j.jsonl").read_text().splitlines()]
        assert journal.lines() == on_disk


def test_an_existing_file_is_never_overwritten(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(LedgerError, match="never overwritten"):
        ReleaseJournal.create(written, {})
    assert written.read_bytes() == before


def test_every_line_is_synced_before_append_returns(tmp_path: Path, monkeypatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append((tmp_path / "j.jsonl").stat().st_size)

    monkeypatch.setattr(journal_module.os, "fsync", fsync)
    plan = make_plan(evaluation=0)
    journal = ReleaseJournal.create(tmp_path / "j.jsonl", plan)
    for release in make_releases(plan)[:2]:
        journal.append(release)
        assert synced[-1] == (tmp_path / "j.jsonl").stat().st_size
    # Header, folder, and one for each of the two releases.
    assert len(synced) == 4


def test_a_killed_process_leaves_every_appended_release(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from raptor.accounting.journal import ReleaseJournal
        from tests.accounting.samples import make_plan, make_releases
        plan = make_plan(evaluation=0)
        journal = ReleaseJournal.create(Path(sys.argv[1]), plan)
        for release in make_releases(plan)[:4]:
            journal.append(release)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(root / "src")])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "j.jsonl")],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == -9
    _, releases = read_journal(tmp_path / "j.jsonl")
    assert releases == make_releases(make_plan(evaluation=0))[:4]


def test_a_full_disk_stops_the_journal(tmp_path: Path, monkeypatch) -> None:
    plan = make_plan(evaluation=0)
    journal = ReleaseJournal.create(tmp_path / "j.jsonl", plan)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module.os, "write", refuse)
    with pytest.raises(LedgerError, match="No space left"):
        journal.append(make_releases(plan)[0])
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="closed"):
        journal.append(make_releases(plan)[0])


def test_a_closed_journal_takes_nothing(written: Path, tmp_path: Path) -> None:
    journal = ReleaseJournal.create(tmp_path / "other.jsonl", {})
    journal.close()
    with pytest.raises(LedgerError, match="closed"):
        journal.append(make_releases(make_plan())[0])


def test_only_releases_are_taken(tmp_path: Path) -> None:
    with ReleaseJournal.create(tmp_path / "j.jsonl", {}) as journal, pytest.raises(ParameterError):
        journal.append({"stream": "shared"})


def test_a_header_that_is_not_json_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be recorded"):
        ReleaseJournal.create(tmp_path / "j.jsonl", {"epsilon": float("nan")})
    assert not (tmp_path / "j.jsonl").exists()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be made"):
        ReleaseJournal.create(tmp_path / "absent" / "j.jsonl", {})


@pytest.mark.parametrize("cut", [1, 5, 200])
def test_a_torn_last_line_is_reported_as_such(written: Path, cut: int) -> None:
    written.write_bytes(written.read_bytes()[:-cut])
    with pytest.raises(LedgerError, match=r"line 7 of .* is torn.*must be charged"):
        read_journal(written)


def change(written: Path, number: int, edit) -> None:
    lines = written.read_text().splitlines()
    lines[number - 1 : number] = edit(lines[number - 1])
    written.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda line: [line.replace('"rate":0.02', '"rate":0.01')], "line 4 of .* was changed"),
        (lambda line: [], "line 4 of .* says that it is line 5"),
        (lambda line: [line, line], "line 5 of .* says that it is line 4"),
        (lambda line: ["{"], "line 4 of .* is not valid JSON"),
        (lambda line: [line.replace('"rate":0.02', '"rate":NaN')], "NaN is no number"),
        (lambda line: [line.replace('{"data"', '{"kind":"x","data"')], "a key stands twice"),
        (lambda line: ['"text"'], "line 4 of .* does not have the fields"),
        (lambda line: [""], "line 4 of .* is not valid JSON"),
    ],
)
def test_the_first_broken_line_is_named(written: Path, edit, message: str) -> None:
    change(written, 4, edit)
    with pytest.raises(LedgerError, match=message):
        read_journal(written)


def test_swapped_lines_are_noticed(written: Path) -> None:
    lines = written.read_text().splitlines()
    lines[2], lines[3] = lines[3], lines[2]
    written.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=r"line 3 of .* says that it is line 4"):
        read_journal(written)


def test_a_line_sealed_on_another_predecessor_is_noticed(written: Path) -> None:
    def resealed(line: str) -> list[str]:
        data = json.loads(line)["data"]
        return [json.dumps(seal(3, "release", data, "1" * 64))]

    change(written, 4, resealed)
    with pytest.raises(LedgerError, match=r"line 4 of .* does not follow the line before it"):
        read_journal(written)


@pytest.mark.parametrize(
    ("number", "message"), [(1, "line 1 of .* is no header"), (4, "line 4 of .* is no release")]
)
def test_kinds_have_their_places(written: Path, number: int, message: str) -> None:
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    sealed: list[dict] = []
    for index, line in enumerate(lines):
        kind = "note" if index == number - 1 else line["kind"]
        sealed.append(seal(index, kind, line["data"], sealed[-1]["hash"] if sealed else "0" * 64))
    written.write_text("".join(json.dumps(line) + "\n" for line in sealed))
    with pytest.raises(LedgerError, match=message):
        read_journal(written)


def test_an_empty_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(LedgerError, match=r"empty.jsonl is empty"):
        read_journal(tmp_path / "empty.jsonl")
    with pytest.raises(LedgerError, match=r"absent.jsonl cannot be read"):
        read_journal(tmp_path / "absent.jsonl")


def test_hashes_do_not_depend_on_spelling(written: Path) -> None:
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    written.write_text(
        "".join(json.dumps(line, indent=None, separators=(", ", ": ")) + "\n" for line in lines)
    )
    assert len(read_journal(written)[1]) == 6
