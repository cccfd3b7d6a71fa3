"""`raptor init` and `raptor plan`: from somebody's file to public constants, and what they would cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from raptor.accounting.accountant import epsilon
from raptor.accounting.types import Adjacency, Event
from raptor.cli import cli
from raptor.cli_plan import project_parameters
from raptor.environment import Constants, environment_name, parameters_text, round_down, write_environment
from raptor.errors import DataError, ParameterError
from raptor.text import sources
from tests.whole.project import REPOSITORY, Project

ROWS = 3217


@pytest.fixture(autouse=True)
def _few_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kind, as every one is a calibration of its own."""
    monkeypatch.setattr("raptor.forecast.FACTORS", (2,))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path / "project")
    (made.root / "my tickets.csv").write_text(
        "Betreff,Text,Queue\n" + "".join(f"s {n},t {n},{'ab'[n % 2]}\n" for n in range(ROWS)),
        encoding="utf-8",
    )
    monkeypatch.chdir(made.root)
    return made


def init(*more: str) -> Result:
    usual = ["--source", "my tickets.csv", "--text", "Betreff+Text", "--label", "Queue"]
    return CliRunner().invoke(cli, ["init", *usual, *more])


def written(project: Project, name: str = "my_tickets") -> dict[str, Any]:
    return yaml.safe_load((project.root / "conf" / name / "parameters.yml").read_text(encoding="utf-8"))


def per_cycle() -> int:
    """Steps of one cycle, by the project's own parameters."""
    text = (REPOSITORY / "conf/base/parameters_training.yml").read_text(encoding="utf-8")
    training = yaml.safe_load(text)["training"]
    return training["shared"]["steps_per_cycle"] + training["expert"]["steps_per_cycle"]


def test_an_environment_with_public_constants_is_written(project: Project) -> None:
    result = init()
    assert result.exit_code == 0, result.output
    made = written(project)
    assert made["ingestion"] == {"source": "my tickets.csv", "text": "Betreff+Text", "label": "Queue"}
    # Nine tenths of the rows are trained on; two digits of that are declared.
    assert made["privacy"] == {"epsilon": 4, "delta": 1e-5, "population": 2800, "unit": "record"}
    assert made["training"] == {"batch_size": 512, "cycles": round(120 / per_cycle())}
    for word in ("n = 2,800", "epsilon = 4", "delta = 1e-05", "B = 512", "kedro run --env my_tickets"):
        assert word in result.output


def test_the_exact_count_stands_in_no_file(project: Project) -> None:
    init()
    text = (project.root / "conf/my_tickets/parameters.yml").read_text(encoding="utf-8")
    for number in (ROWS, ROWS * 9 // 10):
        assert str(number) not in text
        assert f"{number:,}" not in text


def test_options_are_kept_and_defaults_left_out(project: Project) -> None:
    (project.root / "l.csv").write_bytes(
        "tëxt,label,who\n".encode("cp1252")
        + b"".join(f"é {n},{n % 2},u{n % 40}\n".encode("cp1252") for n in range(400))
    )
    result = CliRunner().invoke(
        cli,
        ["init", "--source", "l.csv", "--text", "tëxt", "--label", "label", "--user", "who",
         "--encoding", "cp1252", "--epsilon", "2.5", "--name", "letters"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    made = written(project, "letters")
    assert made["ingestion"] == {
        "source": "l.csv", "text": "tëxt", "label": "label", "user": "who", "encoding": "cp1252"
    }  # fmt: skip
    assert made["privacy"]["epsilon"] == 2.5


def test_users_are_counted_where_they_are_protected(project: Project) -> None:
    (project.root / "u.csv").write_text(
        "text,label,who\n" + "".join(f"t {n},{n % 2},u{n % 640}\n" for n in range(3000)), encoding="utf-8"
    )
    usual = ["init", "--source", "u.csv", "--text", "text", "--label", "label"]
    assert "--unit user needs --user" in CliRunner().invoke(cli, [*usual, "--unit", "user"]).output
    result = CliRunner().invoke(cli, [*usual, "--user", "who", "--unit", "user"])
    assert result.exit_code == 0, result.output
    assert written(project, "u")["privacy"] == {
        "epsilon": 4,
        "delta": 1e-4,
        "population": 570,
        "unit": "user",
    }
    assert written(project, "u")["training"]["batch_size"] == 128
    assert "training users" in result.output
    assert "one user and all the user's records" in result.output
    plan = CliRunner().invoke(cli, ["plan", "--env", "u", "--no-measure"])
    assert "n = 570 users (declared)" in plan.output, plan.output


def test_a_source_outside_of_the_project_is_kept_whole(project: Project, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere.csv"
    (project.root / "my tickets.csv").rename(place)
    result = CliRunner().invoke(
        cli, ["init", "--source", "../elsewhere.csv", "--text", "Text", "--label", "Queue"]
    )
    assert result.exit_code == 0, result.output
    assert written(project, "elsewhere")["ingestion"]["source"] == str(place)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--text", "body"), "there is no column 'body'"),
        (("--name", "base"), "cannot be the name"),
        (("--name", "Mine/yours"), "cannot be the name"),
        (("--name", "x" * 300), "cannot be the name"),
        (("--epsilon", "0"), "0"),
        (("--epsilon", "nan"), "is no budget"),
        (("--epsilon", "inf"), "is no budget"),
    ],
)
def test_what_cannot_be_is_refused_and_writes_nothing(
    project: Project, more: tuple[str, ...], message: str
) -> None:
    before = sorted((project.root / "conf").iterdir())
    result = init(*more)
    assert result.exit_code != 0
    assert message in result.output
    assert sorted((project.root / "conf").iterdir()) == before


def test_an_environment_that_is_there_stays(project: Project) -> None:
    init()
    before = written(project)
    result = init("--epsilon", "1")
    assert result.exit_code == 1
    assert "is there already" in result.output
    assert written(project) == before


def test_a_full_disk_leaves_no_environment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def full(self: Path, *given: Any, **named: Any) -> int:
        if self.name == "parameters.yml":
            raise OSError(28, "No space left on device")
        return real(self, *given, **named)

    monkeypatch.setattr(Path, "write_text", full)
    result = init()
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert not list((project.root / "conf").glob("*tickets*"))


def test_names_and_numbers_of_any_kind() -> None:
    assert environment_name("data/Über Tickets.2024.csv") == "ber_tickets"
    assert environment_name("2024.csv") == environment_name("base.csv") == "own"
    assert environment_name("owner/some-set:config") == "some_set_config"
    assert [round_down(number) for number in (7, 99, 101, 12_345, 999_999)] == [0, 90, 100, 12_000, 990_000]
    assert len(environment_name("x" * 300 + ".csv")) <= 60


@pytest.mark.parametrize("units", [16, 17, 99, 100, 431, 1000, 5000, 12_345, 67_349, 999_999, 40_000_000])
def test_constants_fit_together(units: int) -> None:
    made = Constants.of(units, 4.0, 5)
    assert min(0.9 * units, units - 9) <= made.population <= units
    assert made.population % 10 == 0
    assert 0.009 < made.delta * made.population <= 0.1 * (1 + 1e-9)
    assert made.batch_size <= max(made.population / 4, 8)
    assert made.batch_size == 1024 or made.batch_size > made.population / 8 - 1


@pytest.mark.parametrize("epsilon", [1e-7, 4.123456789, 12345678.0, 1e-300, 0.1])
def test_a_budget_is_kept_to_the_last_digit(project: Project, epsilon: float) -> None:
    folder = project.root / "conf/exact"
    write_environment(folder, parameters_text({"text": "a"}, Constants.of(500, epsilon, 5)))
    assert project_parameters("exact")[0]["privacy"].epsilon == epsilon


@pytest.mark.parametrize(
    "name",
    ["a\x85b", "a\x7fb", "a\u2028b", "a\nb", "${x}", "a\\b", '"a"', "#a", "null", "1", "\U0001f600", "a: b"],
)
def test_every_name_of_a_column_comes_back(project: Project, name: str) -> None:
    write_environment(project.root / "conf/odd", parameters_text({"text": name}, Constants.of(500, 4.0, 5)))
    assert project_parameters("odd")[0]["ingestion"].text == name


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    text = parameters_text({"source": "a\udcff.csv"}, Constants.of(500, 4.0, 5))
    with pytest.raises(ParameterError, match="not UTF-8"):
        write_environment(tmp_path / "odd", text)
    assert not list(tmp_path.iterdir())


def test_too_few_records_are_refused() -> None:
    with pytest.raises(DataError, match="at least 16 training records"):
        Constants.of(15, 4.0, 5)
    with pytest.raises(DataError, match="at least 50 training users"):
        Constants.of(49, 4.0, 5, "user")


def test_the_plan_is_that_of_the_accountant_and_reads_no_record(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    init()
    (project.root / "my tickets.csv").unlink()
    monkeypatch.setattr(sources, "open_source", None)
    result = CliRunner().invoke(cli, ["plan", "--env", "my_tickets", "--no-measure", "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    streams = {stream["name"]: stream for stream in plan["streams"]}
    assert abs(streams["shared"]["steps"] + streams["expert"]["steps"] - 120) < per_cycle()
    events = [
        Event(1.0 if name == "evaluation" else 512 / 2800, stream["noise_multiplier"], stream["steps"])
        for name, stream in streams.items()
    ]
    assert plan["epsilon"] == pytest.approx(epsilon(events, 1e-5, Adjacency.ADD_REMOVE).epsilon, rel=1e-4)
    assert plan["epsilon"] <= 4
    alone = [stream["epsilon"] for stream in plan["streams"]]
    assert max(alone) < plan["epsilon"] < sum(alone)
    others = {other["parameter"]: other for other in plan["alternatives"]}
    assert set(others) == {"training.cycles", "training.batch_size", "privacy.epsilon"}
    for other in others.values():
        assert other["costs"]["record_steps"] <= 4 * plan["record_steps"]
    assert others["privacy.epsilon"]["costs"]["epsilon"] <= others["privacy.epsilon"]["value"] < 4


def test_the_plan_measures_time_and_says_all_in_words(project: Project) -> None:
    init()
    result = CliRunner().invoke(cli, ["plan", "--env", "my_tickets"])
    assert result.exit_code == 0, result.output
    for words in ("n = 2,800 records (declared)", "together: epsilon", "Training takes about", "GiB of memory",
                  "training.cycles=", "training.batch_size=", "privacy.epsilon="):  # fmt: skip
        assert words in result.output


def test_a_plan_needs_a_declared_number(project: Project) -> None:
    result = CliRunner().invoke(cli, ["plan", "--no-measure"])
    assert result.exit_code == 1
    assert "no record is read here" in result.output
    assert "did you mean" in CliRunner().invoke(cli, ["plan", "--env", "bas"]).output
