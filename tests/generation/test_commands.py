"""`raptor inspect`, `init` and `predict` where texts are continued."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from raptor.cli import cli
from raptor.completing import Completer, write_completions
from raptor.errors import ModelError, ParameterError
from raptor.moe.language import load_language_model
from raptor.pipelines.training.models import TunedLanguageModel
from raptor.text.completions import Lengths
from tests.generation.world import instructions, save_decoder, write_csv
from tests.whole.project import Project


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("decoder") / "base")


@pytest.fixture(scope="module")
def tuned(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tuned")
    TunedLanguageModel(load_language_model(decoder), decoder, "ask+more", Lengths(12, 4)).save_to(place)
    return place


def test_inspect_counts_what_is_cut_and_what_lacks_a_completion(decoder: Path, tmp_path: Path) -> None:
    place = write_csv(tmp_path / "asked.csv", [("a prompt of many letters", "yes"), ("b", "no"), ("c", "")])
    shown = run(
        "inspect",
        str(place),
        "--text",
        "prompt",
        "--completion",
        "completion",
        "--model",
        str(decoder),
        "--json",
    )
    assert shown.exit_code == 0, shown.output
    report = json.loads(shown.stdout)
    assert report["rows"] == 3
    assert report["labels"] == {}
    assert any("1 of 3 prompts are longer than 16 tokens" in warning for warning in report["warnings"])
    assert any("without a completion" in warning for warning in report["warnings"])
    assert (
        "prompts with completions"
        in run("inspect", str(place), "--text", "prompt", "--completion", "completion").output
    )


def test_init_writes_completions_and_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path / "project")
    write_csv(project.root / "asked.csv", instructions(400, 0))
    (project.root / "decoder").mkdir()
    monkeypatch.chdir(project.root)
    given = ["init", "--source", "asked.csv", "--text", "prompt"]
    for more, message in (
        ([], "Give --label"),
        (["--label", "a", "--completion", "completion"], "one of them"),
        (["--completion", "completion"], "needs --model"),
    ):
        refused = run(*given, *more)
        assert message in f"{refused.output}{refused.exception}"
    done = run(*given, "--completion", "completion", "--model", "decoder")
    assert done.exit_code == 0, done.output
    made = yaml.safe_load((project.root / "conf/asked/parameters.yml").read_text())
    assert made["base_model"] == {"source": "decoder"}
    assert made["ingestion"] == {"source": "asked.csv", "text": "prompt", "completion": "completion"}
    assert made["privacy"]["population"] == 360


def test_a_tuned_directory_says_all_that_prediction_needs(tuned: Path) -> None:
    completer = Completer.load(tuned, "cpu")
    assert completer.text == "ask+more"
    assert completer.lengths == Lengths(12, 4)
    assert completer.tokenizer.truncation_side == "left"


def test_completions_do_not_depend_on_their_company(tuned: Path) -> None:
    completer = Completer.load(tuned, "cpu")
    prompts = [[1, 4, 5], [1, 6], [1, 7, 8], [1, 9, 10, 11]]
    assert completer.complete(prompts) == [completer.complete([prompt])[0] for prompt in prompts]
    assert all(len(answer) <= 4 for answer in completer.complete(prompts))


def test_predict_writes_a_row_a_record_or_refuses(tuned: Path, tmp_path: Path) -> None:
    source = tmp_path / "new.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["ask", "more"], ["copy", "abc"], ["copy", ""], ["x", "y"]])
    output = tmp_path / "out.jsonl"
    done = run("predict", "--model", str(tuned), "--input", str(source), "--output", str(output))
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["row"] for row in rows] == [1, 2, 3]
    assert all(isinstance(row["completion"], str) for row in rows)
    with pytest.raises(ParameterError, match="TSV"):
        write_completions([["a"]], tmp_path / "out.tsv")
    assert write_completions([["a\nb"], ["c"]], tmp_path / "out.parquet") == 2
    assert write_completions([["a\nb"], ["c"]], tmp_path / "out.csv") == 2
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["row", "completion"], ["1", "a\nb"], ["2", "c"]]


def test_a_directory_that_lost_its_lengths_is_refused(tuned: Path, decoder: Path) -> None:
    with pytest.raises(ModelError, match="max_new_tokens"):
        Completer.load(decoder, "cpu")
