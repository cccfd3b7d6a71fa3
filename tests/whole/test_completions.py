"""A whole run on instruction data by parameters alone: a private language model, its certificate, and what it says."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest

from tests.generation.world import instructions, save_decoder, write_csv
from tests.whole.project import Project

pytestmark = pytest.mark.slow

PARAMETERS = ",".join(
    [
        "base_model.source=decoder",
        "selection.corpus=public.txt",
        "ingestion.source=asked_kovalenko.csv",
        "ingestion.text=prompt",
        "ingestion.completion=completion",
        "ingestion.completion_length=8",
        "ingestion.held_out_fraction=0.4",
        "training.cycles=1",
        "training.batch_size=40",
        "training.threads=1",
        "training.diagnostics=[loss]",
        "privacy.delta=1e-5",
        # Enough held-out records, and little enough noise, for an evaluation that can be read.
        "evaluation.noise_multiplier=3",
    ]
)
WORD = "qzqzx"
# As in the card, in a process that cannot import the project.
ELSEWHERE = """
import sys
sys.modules["raptor"] = None
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
for prompt in sys.argv[2:]:
    batch = tokenizer(prompt, truncation=True, return_tensors="pt")
    made = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"])
    print(repr(tokenizer.decode(made[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("completions") / "project")
    save_decoder(project.root / "decoder")
    public = [f"{prompt.strip()} {answer}" for prompt, answer in instructions(200, 1)]
    (project.root / "public.txt").write_text("\n".join(public), encoding="utf-8")
    records = [*instructions(500, 0), (f"copy: {WORD}\n", WORD), ("nothing to say\n", "")]
    write_csv(project.root / "asked_kovalenko.csv", records)
    project.kedro("run", "--params", PARAMETERS)
    return project


def test_perplexity_and_exact_match_are_noised_charged_and_reported(project) -> None:
    metrics = project.json("08_reporting/evaluation_metrics.json")
    assert metrics["task"] == "completions"
    assert metrics["records_are_public"] is False
    assert set(metrics["methods"]) == {"raptor", "base_model"}
    for method in metrics["methods"].values():
        assert 1 <= method["perplexity"] <= 33.001
        assert 0 <= method["exact_match"] <= 1
    certificate = project.json("08_reporting/privacy_certificate.json")
    charged = {stream["name"]: stream["steps_charged"] for stream in certificate["streams"]}
    assert charged["evaluation"] == 2
    assert charged["diagnostics"] == 1
    assert certificate["epsilon"] <= 4
    assert any(
        "24 tokens of the prompt and 8 of the completion" in fact for fact in certificate["taken_as_public"]
    )
    assert "valid" in project.raptor("verify", "data/08_reporting/privacy_certificate.json").stdout
    report = (project.root / "data/08_reporting/report.html").read_text(encoding="utf-8")
    assert "perplexity on held-out completions" in report
    assert "largest class" not in report


def test_no_word_of_the_records_is_published(project) -> None:
    for place in [*(project.root / "data/08_reporting").rglob("*"), project.root / "raptor.log"]:
        if place.is_file():
            assert WORD.encode() not in place.read_bytes(), place


def test_export_and_predict_say_the_same_as_transformers_alone(project) -> None:
    prompts = ["copy: ab\n", "reverse: xyz\n", "a prompt that is longer than what is read: hij\n"]
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    (project.root / "new.jsonl").write_text("".join(lines))
    project.raptor(
        "predict", "--model", "data/06_models/raptor_model", "--input", "new.jsonl", "--output", "out.csv"
    )
    with (project.root / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["1", "2", "3"]
    answers = [row["completion"] for row in rows]
    project.raptor("export", "--output", "home")
    assert "text-generation" in (project.root / "home/README.md").read_text()
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "home", *prompts],
        cwd=project.root,
        env={**project.environment(), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [repr(answer) for answer in answers]


def test_an_encoder_is_refused_before_anything_is_spent(project) -> None:
    other = PARAMETERS.replace("base_model.source=decoder", "base_model.source=embedded")
    done = project.kedro("run", "--pipelines", "base_model,ingestion", "--params", other, check=False)
    assert done.returncode == 1
    assert "no covered decoder" in done.stdout + done.stderr
