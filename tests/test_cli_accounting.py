"""`raptor epsilon`, `raptor calibrate`, `raptor verify` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from raptor.cli import cli

from .accounting.samples import make_project


def run(*arguments: str):
    return CliRunner().invoke(cli, list(arguments))


def test_epsilon_of_several_events_in_one_ledger() -> None:
    done = run("epsilon", "--event", "0.02,1.2,400", "--event", "0.02, 1.6, 400", "--delta", "1e-6", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["epsilon"] == pytest.approx(2.40, abs=0.005)
    assert (found["bound"], found["method"], found["adjacency"]) == ("upper", "pld", "add-remove")


def test_epsilon_for_a_person() -> None:
    done = run("epsilon", "--event", "1,2,1", "--delta", "1e-5", "--adjacency", "replace-one")
    assert done.exit_code == 0
    assert done.stdout.startswith("epsilon <= 4.37")


def test_epsilon_confirmed_by_the_library() -> None:
    done = run("epsilon", "--event", "0.02,1.2,400", "--delta", "1e-6", "--confirm", "--json")
    assert json.loads(done.stdout)["library"].startswith("dp-accounting")


def test_epsilon_of_a_shared_sample() -> None:
    done = run("epsilon", "--shared-sample", "0.02, 1.2+1.6, 400", "--delta", "1e-6", "--json")
    joint = (1.2**-2 + 1.6**-2) ** -0.5
    same = run("epsilon", "--event", f"0.02,{joint!r},400", "--delta", "1e-6", "--json")
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(json.loads(same.stdout)["epsilon"], rel=1e-9)


def test_epsilon_of_owners_is_that_of_the_worst() -> None:
    owners = ["--owner", "0.02,1.6,40/0.02,0.9,30", "--owner", "0.02,0.8,40/0.02,1.8,30"]
    done = run("epsilon", "--event", "0.02,1.2,100", *owners, "--delta", "1e-6", "--json")
    found = json.loads(done.stdout)
    one = ["--event", "0.02,1.2,100", "--event", "0.02,0.8,40", "--event", "0.02,1.8,30"]
    assert found["epsilon"] == json.loads(run("epsilon", *one, "--delta", "1e-6", "--json").stdout)["epsilon"]
    assert found["owner"] == 1
    assert "worst owner: 2 of 2" in run("epsilon", *owners, "--delta", "1e-6").stdout


def test_calibrate_gives_one_sigma_per_event() -> None:
    done = run(
        "calibrate",
        "--event",
        "0.02,400",
        "--event",
        "0.02,400,0.5",
        "--epsilon",
        "3",
        "--delta",
        "1e-6",
        "--json",
    )
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    first, second = found["sigmas"]
    assert second == pytest.approx(first / 2)
    assert 3 * (1 - 1e-4) <= found["epsilon"] <= 3
    again = run(
        "epsilon",
        "--event",
        f"0.02,{first!r},400",
        "--event",
        f"0.02,{second!r},400",
        "--delta",
        "1e-6",
        "--json",
    )
    assert json.loads(again.stdout)["epsilon"] == found["epsilon"]


def test_calibrate_a_shared_sample_beside_an_event() -> None:
    budget = ["--delta", "1e-6", "--json"]
    done = run(
        "calibrate", "--shared-sample", "0.02,400,1+0.5", "--event", "0.01,50", "--epsilon", "3", *budget
    )
    found = json.loads(done.stdout)
    event, first, second = found["sigmas"]
    assert (event, second) == pytest.approx((first, first / 2))
    parts = ["--shared-sample", f"0.02,{first!r}+{second!r},400", "--event", f"0.01,{event!r},50"]
    again = json.loads(run("epsilon", *parts, *budget).stdout)["epsilon"]
    assert again == pytest.approx(found["epsilon"], rel=1e-6)
    assert 3 * (1 - 1e-4) <= again <= 3


def test_calibrate_for_a_person() -> None:
    done = run("calibrate", "--event", "0.02,400", "--epsilon", "3", "--delta", "1e-6")
    assert done.stdout.startswith("noise multipliers ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["epsilon", "--event", "2,1,1", "--delta", "1e-6"],
            "rate of an event must be above 0 and at most 1",
        ),
        (
            ["epsilon", "--event", "0.1,0,1", "--delta", "1e-6"],
            "noise_multiplier of an event must be above 0",
        ),
        (["epsilon", "--event", "0.1,nan,1", "--delta", "1e-6"], "finite"),
        (
            ["epsilon", "--event", "0.1,1,1.5", "--delta", "1e-6"],
            "STEPS of --event 0.1,1,1.5 must be a whole number",
        ),
        (["epsilon", "--event", "0.1,1,inf", "--delta", "1e-6"], "must be a whole number"),
        (["epsilon", "--event", "0.1,1,-1", "--delta", "1e-6"], "steps of an event must be at least 0"),
        (["epsilon", "--event", "0.1,1", "--delta", "1e-6"], "must be RATE,SIGMA,STEPS"),
        (["epsilon", "--event", "a,1,1", "--delta", "1e-6"], "RATE of --event a,1,1 is not a number"),
        (["epsilon", "--shared-sample", "0.1,1+1", "--delta", "1e-6"], "must be RATE,SIGMA1+SIGMA2,STEPS"),
        (
            ["epsilon", "--shared-sample", "0.1,1+,5", "--delta", "1e-6"],
            "SIGMA1+SIGMA2 of --shared-sample 0.1,1+,5",
        ),
        (["epsilon", "--owner", "0.1,1", "--delta", "1e-6"], "--owner 0.1,1 must be RATE,SIGMA,STEPS"),
        (["epsilon", "--event", "0.1,1,1", "--delta", "0"], "delta must be above 0 and below 1"),
        (["epsilon", "--event", "0.1,1,1", "--delta", "nan"], "delta must be a finite number"),
        (["calibrate", "--event", "0.1,5", "--epsilon", "0", "--delta", "1e-6"], "epsilon must be above 0"),
        (
            ["calibrate", "--event", "0.1,5", "--epsilon", "inf", "--delta", "1e-6"],
            "epsilon must be a finite",
        ),
        (["calibrate", "--event", "0.1,0", "--epsilon", "1", "--delta", "1e-6"], "nothing to calibrate"),
        (
            ["calibrate", "--event", "0.1,5,1,1", "--epsilon", "1", "--delta", "1e-6"],
            "must be RATE,STEPS[,WEIGHT]",
        ),
        (["calibrate", "--event", "0.1,5,0", "--epsilon", "1", "--delta", "1e-6"], "weight"),
        (["verify", "absent.json"], "absent.json cannot be read"),
    ],
)
def test_bad_input_gets_one_message(arguments, message) -> None:
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_missing_budget_is_refused() -> None:
    nothing = run("epsilon", "--delta", "1e-6")
    assert nothing.exit_code == 2
    assert "at least one --event" in nothing.output
    nothing = run("calibrate", "--epsilon", "1", "--delta", "1e-6")
    assert "at least one --event" in nothing.output
    assert run("epsilon", "--event", "0.1,1,1").exit_code != 0
    assert run("calibrate", "--event", "0.1,1", "--delta", "1e-6").exit_code != 0


def test_verify_accepts_and_refuses(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    done = run("verify", str(project.certificate))
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("valid: epsilon")
    fields = project.fields()
    fields["epsilon"] /= 2
    project.write_fields(fields)
    done = run(
        "verify", str(project.certificate), "--ledger", str(project.ledger), "--model", str(project.model)
    )
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: epsilon is ")


HEAVY = ["torch", "transformers", "kedro", "mlflow", "pandas", "datasets", "dp_accounting", "pydantic"]


def imported_by(*arguments: str) -> list[str]:
    """Heavy packages that one command imports in a new process; `benchmarks/start_up.py` measures its time."""
    script = (
        "import sys\n"
        "from raptor.cli import cli\n"
        f"cli({list(arguments)!r}, standalone_mode=False)\n"
        f"print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    source = Path(__file__).resolve().parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_usual_questions_are_answered_without_heavy_imports() -> None:
    event = "0.0152,1.0,500"
    asks = [
        ("epsilon", "--event", event, "--event", "0.0152,1.4,500", "--delta", "1e-6", "--json"),
        (
            "calibrate",
            "--event",
            "0.0152,500",
            "--event",
            "0.0152,500,0.6",
            "--epsilon",
            "3",
            "--delta",
            "1e-6",
            "--json",
        ),
    ]
    for ask in asks:
        assert imported_by(*ask) == []
