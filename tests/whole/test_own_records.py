"""A whole run on a user's own file: its words stay private, and the test figures are noised and charged."""

from __future__ import annotations

import csv
import json

import pytest

from tests.whole.project import Project
from tests.whole.test_whole_run import published

pytestmark = pytest.mark.slow

WORDS = ("zorblatt", "quixnarf", "mumblefrotz")
FILE = "wardnotes_kovalenko.csv"
PARAMETERS = ",".join(
    [
        f"ingestion.source={FILE}",
        "ingestion.text=subject+body",
        "ingestion.label=queue",
        "selection.corpus_records=400",
        "training.cycles=2",
        "training.batch_size=40",
        "training.threads=1",
        "privacy.delta=1e-5",
        # Enough held-out records, and little enough noise, for an evaluation that can be read.
        "ingestion.held_out_fraction=0.4",
        "evaluation.noise_multiplier=8",
        "audit.enabled=false",
    ]
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("own") / "project")
    with (project.root / FILE).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["subject", "body", "queue"])
        for number in range(700):
            word = WORDS[number % 3]
            rows.writerow(
                [f"{word} number {number}", f"The {word}, said\nno {number * 7919}", f"queue {number % 3}"]
            )
    project.kedro("run", "--params", PARAMETERS)
    return project


def test_the_evaluation_is_noised_and_charged(project) -> None:
    metrics = project.json("08_reporting/evaluation_metrics.json")
    assert metrics["records_are_public"] is False
    assert set(metrics["methods"]) == {"raptor", "base_model", "largest_class"}
    certificate = project.json("08_reporting/privacy_certificate.json")
    charged = {stream["name"]: stream for stream in certificate["streams"]}
    assert charged["evaluation"]["steps_charged"] == 4
    assert certificate["epsilon"] <= project.json("05_model_input/privacy_plan.json")["epsilon_target"]
    assert project.raptor("verify", "data/08_reporting/privacy_certificate.json").returncode == 0


def test_a_second_evaluation_spends_nothing_more(project) -> None:
    before = project.json("08_reporting/evaluation_metrics.json")
    project.kedro("run", "--pipelines", "evaluation", "--params", PARAMETERS)
    assert project.json("08_reporting/evaluation_metrics.json") == before


def test_baselines_that_need_the_records_are_refused(project) -> None:
    done = project.kedro(
        "run",
        "--pipelines",
        "training",
        "--params",
        f"{PARAMETERS},evaluation.baselines=[nonprivate]",
        check=False,
    )
    assert done.returncode == 1
    assert "nonprivate" in done.stdout + done.stderr


def test_nothing_published_holds_a_word_of_the_records(project) -> None:
    project.kedro("viz", "build")
    files = published(project)
    assert any(name.startswith("mlruns/") for name in files)
    for name, text in files.items():
        for word in (*WORDS, str(699 * 7919)):
            assert word not in text, name


def test_what_inspect_says_is_what_ingestion_does(project) -> None:
    done = project.raptor("inspect", FILE, "--text", "subject+body", "--label", "queue", "--json")
    shown = json.loads(done.stdout)
    assert shown["rows"] == 700
    assert shown["labels"] == {"queue 0": 234, "queue 1": 233, "queue 2": 233}
    from datasets import load_from_disk

    assert len(load_from_disk(str(project.root / "data/02_intermediate/private_records"))) == 700


def test_a_batch_larger_than_the_population_is_refused_before_anything_is_spent(project) -> None:
    journals = len(list((project.root / "data/06_models/journals").iterdir()))
    done = project.kedro(
        "run", "--pipelines", "training", "--params", f"{PARAMETERS},training.batch_size=5000", check=False
    )
    assert done.returncode == 1
    assert "training.batch_size is 5000" in done.stdout + done.stderr
    assert len(list((project.root / "data/06_models/journals").iterdir())) == journals


OF_TRAINING = ",".join(
    part for part in PARAMETERS.split(",") if not part.startswith(("ingestion", "selection"))
)


def journals(project: Project) -> int:
    return len(list((project.root / "data/06_models/journals").glob("*.jsonl")))


def test_a_later_stage_without_the_source_still_treats_the_records_as_private(project) -> None:
    before = project.json("08_reporting/evaluation_metrics.json")
    project.kedro("run", "--pipelines", "evaluation", "--params", OF_TRAINING)
    assert project.json("08_reporting/evaluation_metrics.json") == before
    done = project.kedro(
        "run",
        "--pipelines",
        "evaluation",
        "--params",
        f"{OF_TRAINING},evaluation.records_are_public=true",
        check=False,
    )
    assert done.returncode == 1
    assert "made for private records" in done.stdout + done.stderr


def test_training_by_other_parameters_than_the_plan_spends_nothing(project) -> None:
    """What is compared: `tests/dp/test_trainable.py::test_training_has_to_be_as_planned`."""
    before = journals(project)
    changed = f"{OF_TRAINING},training.cycles=4"
    done = project.kedro("run", "--nodes", "train_raptor", "--params", changed, check=False)
    assert done.returncode == 1
    assert "in the privacy plan" in done.stdout + done.stderr
    assert journals(project) == before


@pytest.mark.exhaustive
def test_no_evaluation_by_a_plan_that_the_certificate_does_not_know(project) -> None:
    """Less noise planned after the training would leave with nobody charged for it."""
    changed = f"{OF_TRAINING},evaluation.noise_multiplier=5"
    project.kedro("run", "--nodes", "plan_privacy", "--params", changed)
    before = project.json("08_reporting/evaluation_metrics.json")
    done = project.kedro("run", "--pipelines", "evaluation", "--params", changed, check=False)
    assert done.returncode == 1
    assert "does not belong to the privacy plan" in done.stdout + done.stderr
    assert project.json("08_reporting/evaluation_metrics.json") == before
    project.kedro("run", "--nodes", "plan_privacy", "--params", OF_TRAINING)


def test_a_report_of_another_budget_is_refused(project) -> None:
    done = project.kedro(
        "run", "--nodes", "write_report", "--params", f"{OF_TRAINING},privacy.epsilon=0.5", check=False
    )
    assert done.returncode == 1
    assert "privacy.epsilon" in done.stdout + done.stderr


def test_label_names_of_another_run_are_refused_before_anything_is_spent(project) -> None:
    place = project.root / "data/05_model_input/label_names.json"
    kept, before = place.read_text(), journals(project)
    place.write_text('["queue 0"]')
    done = project.kedro("run", "--nodes", "train_raptor", "--params", OF_TRAINING, check=False)
    place.write_text(kept)
    assert done.returncode == 1
    assert "different runs" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert journals(project) == before


def test_private_files_are_closed_to_other_users(project) -> None:
    for name in (
        "02_intermediate/private_records",
        "05_model_input/private_train",
        "05_model_input/owner_partition",
    ):
        folder = project.root / "data" / name
        assert folder.stat().st_mode & 0o077 == 0
        assert all(file.stat().st_mode & 0o077 == 0 for file in folder.rglob("*"))
