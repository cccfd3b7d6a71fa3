"""`kedro run` and `raptor` end with one message and exit code 1 when the user can mend the cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from raptor.cli_run import split_parameters
from tests.lab import Lab

OFF = "tracking.enabled=false"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("cli"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--params", f"{OFF},training.stesp=3"], "training.stesp is unknown; did you mean training.steps?"),
        (["--params", f"{OFF},training.steps=-1"], "training.steps = -1: input should be greater than 0"),
        (["--pipelines", "selecton"], "There is no pipeline selecton; did you mean selection?"),
        (["--env", "quik"], "There is no environment quik; did you mean quick?"),
        (["--nodes", "nope", "--params", OFF], "Pipeline does not contain nodes named ['nope']."),
        (
            ["--nodes", "profile", "--params", OFF],
            "Error: data/corpus.json (corpus) is not there yet. Run `kedro run --pipelines selection`, which makes it",
        ),
        (["--pipelines", "refused", "--params", OFF], "rows.csv, line 3: the label is empty."),
        (["--pipelines", "badtype", "--params", OFF], "profile.json cannot be written as JSON"),
        (
            ["--pipelines", "leaky", "--params", OFF],
            "[leak] count_records -> profile: labelled public, but made",
        ),
        (
            ["--env", "leaky", "--params", OFF],
            "[relabel] read -> private_train: this environment lowers the label",
        ),
    ],
)
def test_one_message_and_no_traceback(lab: Lab, arguments: list[str], message: str) -> None:
    done = lab.kedro("run", *arguments)
    assert done.returncode == 1
    assert done.stderr.count("Error: ") == 1
    assert message in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (lab.root / "data").exists() or not list((lab.root / "data").iterdir())
    assert not (lab.root / "mlflow.db").exists()


@pytest.mark.slow
def test_raptor_run_is_kedro_run(lab: Lab) -> None:
    done = lab.raptor("run", "--params", f"{OFF},training.stesp=3")
    assert done.returncode == 1
    assert "did you mean training.steps?" in done.stderr


@pytest.mark.slow
def test_the_console_shows_nodes_and_the_log_file_the_rest(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    done = lab.kedro("run", "--params", OFF)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        *(f"Running node: {name}" for name in re.findall(r"Running node: (\w+)", done.stdout)),
        "Done. The log is raptor.log.",
    ]
    assert done.stdout.count("Running node: train\n") == 1
    assert "Completed node: train" in (lab.root / "raptor.log").read_text()


@pytest.mark.slow
def test_an_input_that_went_missing_names_its_stage(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.kedro("run", "--pipelines", "selection", "--params", OFF).returncode == 0
    (lab.root / "data/corpus.json").unlink()
    for arguments in (["--nodes", "profile"], ["--nodes", "profile", "--only-missing-outputs"]):
        (lab.root / "data/profile.json").unlink(missing_ok=True)
        done = lab.kedro("run", *arguments, "--params", OFF)
        assert done.returncode == 1
        assert "Run `kedro run --pipelines selection`, which makes it" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_raptor_outside_a_project_says_so(lab: Lab, tmp_path: Path) -> None:
    lab_elsewhere = Lab(tmp_path)
    lab_elsewhere.root = tmp_path
    done = lab_elsewhere.raptor("flow")
    assert done.returncode == 1
    assert "is not inside a Kedro project" in done.stderr


@pytest.mark.slow
def test_a_defect_shows_on_the_terminal_but_not_in_the_log(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    done = lab.kedro("run", "--pipelines", "broken", "--params", OFF)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "SECRET a private record" in done.stderr
    log = (lab.root / "raptor.log").read_text()
    assert "Node fail failed: KeyError at __init__.py:5" in log
    assert "SECRET" not in log
    assert "a private record" not in log


@pytest.mark.slow
def test_environment_changes_single_parameters_and_the_command_line_wins(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.kedro("run", "--env", "quick", "--params", OFF).returncode == 0
    assert len((lab.root / "data/release_log.jsonl").read_text().splitlines()) == 5
    done = lab.kedro("run", "--env", "quick", "--params", f"{OFF},training.steps=1,training.layers=[1,3]")
    assert done.returncode == 0
    assert len((lab.root / "data/release_log.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_the_first_node(lab: Lab) -> None:
    """What would delay it; `benchmarks/start_up.py` measures the time."""
    clock = lab.root / "first_node"
    done = lab.kedro("run", "--pipelines", "selection", LAB_FIRST_NODE=str(clock))
    assert done.returncode == 0
    assert clock.read_text() == ""
    assert (lab.root / "mlflow.db").exists()


@pytest.mark.slow
def test_flow_command_names_each_leak(lab: Lab) -> None:
    done = lab.raptor("flow")
    assert done.returncode == 1
    assert "[leak] count_records -> profile" in done.stdout
    assert "[relabel] catalog -> private_train" in done.stdout
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line[0] != " "] == [
        "base",
        "leaky",
        "local",
        "quick",
    ]
    done = lab.raptor("flow", "--env", "nowhere")
    assert done.returncode == 1
    assert "There is no environment nowhere" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1,a.c=x", {"a": {"b": 1, "c": "x"}}),
        ("a.layers=[1, 3],b=true,c=null,d=1e-6", {"a": {"layers": [1, 3]}, "b": True, "c": None, "d": 1e-6}),
        ("a.text=title+body, b = 2", {"a": {"text": "title+body"}, "b": 2}),
        ("a=x=y", {"a": "x=y"}),
        ("", {}),
    ],
)
def test_parameters_of_the_command_line(text: str, expected: dict[str, Any]) -> None:
    assert split_parameters(click.Context(click.Command("run")), click.Option(["--params"]), text) == expected


@pytest.mark.parametrize("text", ["a", "=1", "a.b"])
def test_parameters_without_a_name_or_value_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="name=value"):
        split_parameters(click.Context(click.Command("run")), click.Option(["--params"]), text)
