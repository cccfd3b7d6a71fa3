"""Records with images through all stages: the environment of ScienceQA on a small checkpoint, and digits."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.text.test_images import picture
from tests.vl2 import SIZE, original_weights, save_checkpoint
from tests.whole.project import REPOSITORY, Project

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

# Fewer and smaller steps; everything else is the environment's.
QUICK = "training.cycles=1,training.batch_size=64,training.physical_batch_size=64,training.threads=1"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A class of a module that is not there cannot be made a data class.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def science_questions(number: int) -> list[dict[str, Any]]:
    """Rows in the form of ScienceQA, a tenth of them without an image."""
    return [
        {
            "question": "which digit is shown ?",
            "hint": "",
            "choices": ["the odd", "the large"],
            "answer": row % 2,
            "image": {"bytes": picture(row, (SIZE, SIZE)), "path": None} if row % 10 else None,
        }
        for row in range(number)
    ]


def test_the_environment_of_scienceqa_runs_on_a_checkpoint_of_the_original_s_layout(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    save_checkpoint(project.root / "tiny", original_weights())
    place = project.root / "data/01_raw/scienceqa.parquet"
    place.parent.mkdir(parents=True)
    made, rows = script("scienceqa"), science_questions(240)
    pq.write_table(
        pa.concat_tables([made.records(rows[:200], "train"), made.records(rows[200:], "test")]), place
    )
    project.kedro("run", "--env", "scienceqa-vl2", "--params", f"base_model.source=tiny,{QUICK}")
    plan = project.json("05_model_input/privacy_plan.json")
    # The last sparse layer of three blocks.
    assert plan["layers"] == [2]
    assert project.json("08_reporting/privacy_certificate.json")["epsilon"] <= 8.0
    assert project.raptor("verify", "data/08_reporting/privacy_certificate.json").returncode == 0
    pq.write_table(made.records(rows[:20], "test"), project.root / "new.parquet")
    done = (
        "predict",
        "--model",
        "data/06_models/raptor_model",
        "--input",
        "new.parquet",
        "--output",
        "new.csv",
    )
    project.raptor(*done)
    with (project.root / "new.csv").open(encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    assert [answer["row"] for answer in answers] == [str(number) for number in range(1, 21)]
    # The answer depends on the image: all these questions are alike.
    assert len({answer["p(A)"] for answer in answers}) > 10


def test_private_training_on_digits_beats_the_largest_class_by_twenty_points(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    script("digits_vl2").make(project.root / "data/01_raw/digits", steps=500)
    project.kedro("run", "--env", "digits-vl2", "--params", "training.threads=1")
    methods = project.json("08_reporting/evaluation_metrics.json")["methods"]
    assert project.json("08_reporting/privacy_certificate.json")["epsilon"] <= 8.0
    assert methods["raptor"]["accuracy"] >= methods["largest_class"]["accuracy"] + 0.2
