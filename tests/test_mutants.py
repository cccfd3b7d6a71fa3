"""The planted faults fit the code, stand in the docs, and one that nothing notices makes the runner fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mutants.children import BASE_S, MULTIPLE, Outcome
from mutants.fault import Fault, FaultError
from mutants.faults import FAULTS


def rows(repository: Path) -> dict[str, str]:
    """The table of docs/privacy.md: fault -> test."""
    section = (repository / "docs" / "privacy.md").read_text().partition("Planted faults\n")[2]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1].strip("`") for cells in lines if len(cells) == 2 and "::" in cells[1]}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code_and_its_tests_are_there(fault: Fault, repository: Path) -> None:
    compile(fault.planted(repository), fault.file, "exec")
    assert fault.tests
    for test in fault.tests:
        place, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (repository / place).read_text()


def test_every_fault_stands_in_the_docs_with_a_test_that_is_its_own(repository: Path) -> None:
    documented = rows(repository)
    assert len(FAULTS) >= 40
    assert list(documented) == [fault.name for fault in FAULTS], "python -m mutants --table makes the table"
    for fault in FAULTS:
        assert f"tests/{documented[fault.name]}" in {test.partition("[")[0] for test in fault.tests}


def test_a_fault_that_no_longer_fits_is_an_error(repository: Path) -> None:
    for before in ("this text is not there", "import"):
        with pytest.raises(FaultError, match="times, not once"):
            Fault("none", "accounting/chain.py", before, "", ()).planted(repository)


def test_the_limit_follows_what_the_tests_take_without_a_fault() -> None:
    whole = Outcome(0, took={"a.py::test_x[1]": 2.0, "a.py::test_x[2]": 3.0, "a.py::test_xy": 100.0})
    assert whole.limit_s(["a.py::test_x"]) == BASE_S + 5 * MULTIPLE
    assert whole.limit_s(["a.py::test_x[2]", "a.py::test_none"]) == BASE_S + 3 * MULTIPLE


@pytest.mark.exhaustive
def test_the_runner_tells_caught_from_not_caught_and_from_a_broken_list(repository: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from mutants import __main__ as runner
        from mutants.fault import Fault, in_file
        tests = in_file("accounting/test_journal.py", "test_a_torn_last_line_is_reported_as_such")
        start = 'START = "0" * 64'
        faults = {
            "harmless": (start, 'START = 64 * "0"', tests),
            "harmful": ("    if torn:\\n", "    if not torn:\\n", tests),
            "no such test": (start, 'START = 64 * "0"', in_file("accounting/test_journal.py", "test_nothing")),
        }
        runner.FAULTS = tuple(Fault(name, "accounting/chain.py", *faults[name]) for name in sys.argv[2:])
        sys.exit(runner.main(["--jobs", sys.argv[1]]))
        """
    )

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=repository,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CI": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    code, said = run("2", "harmful", "harmless")
    assert code == 1
    assert "1 of 2 faults caught" in said
    assert "NOT CAUGHT: harmless" in said
    assert run("1", "harmful")[0] == 0
    code, said = run("1", "no such test")
    assert code == 2
    assert "without a fault" in said
