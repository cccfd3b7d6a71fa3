"""Bad parameters of a whole run: one clear message, exit code 1, nothing written and nothing spent."""

from __future__ import annotations

import pytest

from tests.whole.project import Project

pytestmark = pytest.mark.slow

BAD = {
    "privacy.epsilon=0": "privacy.epsilon",
    "privacy.epsilon=-1": "privacy.epsilon",
    "privacy.epsilon=nan": "privacy.epsilon",
    "privacy.epsilon=.inf": "privacy.epsilon",
    "privacy.epsilon=null": "privacy.epsilon",
    "privacy.epsilon=true": "privacy.epsilon",
    "privacy.delta=0": "privacy.delta",
    "privacy.delta=1": "privacy.delta",
    "privacy.delta=-1e-6": "privacy.delta",
    "privacy.delta=.nan": "privacy.delta",
    "privacy.delta=null": "privacy.delta",
    "privacy.adjacency=both": "privacy.adjacency",
    "privacy.unit=household": "privacy.unit",
    "training.stesp=3": "training",
    "trainig.cycles=3": "training",
    "privacy.epsilom=3": "privacy.epsilon",
    "training.cycles=0": "training.cycles",
    "training.batch_size=-5": "training.batch_size",
    "training.seed=1": "seed",
    "training.device=tpu": "training.device",
    "ingestion.owner_vote=loudest": "ingestion.owner_vote",
    "evaluation.noise_multiplier=0": "evaluation.noise_multiplier",
    "training.shared.clipping_norm=.inf": "training.shared.clipping_norm",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("bad") / "project")


@pytest.mark.parametrize("parameters", BAD)
def test_a_bad_parameter_is_refused_before_anything_runs(project, parameters) -> None:
    done = project.kedro("run", "--params", parameters, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert BAD[parameters] in shown
    assert "Traceback" not in shown
    assert "Running node" not in shown
    assert not (project.root / "data").exists()
    assert not (project.root / "mlflow.db").exists()


WRONG_COLUMNS = {
    "ingestion.text=bodi": "there is no column 'bodi'. The closest is 'body'",
    "ingestion.text=body,ingestion.label=queu": "there is no column 'queu'. The closest is 'queue'",
    "ingestion.text=body,ingestion.split=fold": "there is no column 'fold'",
    "ingestion.text=body,privacy.unit=user": "ingestion.user names no column that says whose record it is",
    "ingestion.text=body,ingestion.label=body": "both name the column 'body'",
    "ingestion.source=note.csv": "The closest is notes.csv",
}


@pytest.mark.parametrize("parameters", WRONG_COLUMNS)
def test_a_wrong_column_is_refused_before_anything_runs(project, parameters) -> None:
    (project.root / "notes.csv").write_text("body,queue\na zorblatt,1\nanother,0\n")
    done = project.kedro(
        "run", "--params", f"ingestion.source=notes.csv,ingestion.label=queue,{parameters}", check=False
    )
    shown = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, shown
    assert WRONG_COLUMNS[parameters] in shown
    assert "Traceback" not in shown
    assert "Running node" not in shown
    assert not (project.root / "data").exists()
    assert not (project.root / "mlflow.db").exists()
    log = project.root / "raptor.log"
    assert not log.exists() or "zorblatt" not in log.read_text()


def test_a_base_model_without_a_sparse_layer_is_refused(project, tmp_path) -> None:
    from transformers import T5Config, T5EncoderModel

    T5EncoderModel(
        T5Config(vocab_size=20, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    ).save_pretrained(tmp_path / "dense")
    done = project.kedro("run", "--params", f"base_model.source={tmp_path / 'dense'}", check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "not covered" in done.stdout + done.stderr or "sparse" in done.stdout + done.stderr


def test_an_empty_public_corpus_is_refused(project, tmp_path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    done = project.kedro(
        "run",
        "--pipelines",
        "base_model",
        "--params",
        f"selection.corpus={tmp_path / 'empty.txt'}",
        check=False,
    )
    assert done.returncode == 1
    assert "empty.txt" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
