"""What is exported is what was certified, and others can load it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from raptor.accounting.certificate import PAPERS
from raptor.accounting.verification import verify_certificate
from raptor.cli import cli
from raptor.datasets import JSONDataset, JSONLinesDataset, PretrainedDirectory
from raptor.errors import LedgerError
from raptor.export.directory import ExportedModel
from raptor.pipelines.export import create_pipeline
from raptor.prediction import Predictor
from tests.accounting.samples import Project
from tests.export.world import MAX_LENGTH, NAMES, finished, save_model

TEXTS = ["a b c", "q z q z q z q z q z", "m", "x y a b"]

# A stand-in that fails to be imported, in front of everything else on the path.
BLOCKED = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("raptor", "kedro"):
            raise ImportError(f"{name} is not here")


sys.meta_path.insert(0, Blocked())
try:
    import raptor
except ImportError:
    pass
else:
    raise SystemExit("raptor is here")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return finished(tmp_path_factory.mktemp("run") / "data", audited=True)


@pytest.fixture(scope="module")
def exported(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("out") / "home"
    result = CliRunner().invoke(
        cli, ["export", "--output", str(place), "--certificate", str(project.certificate)]
    )
    assert result.exit_code == 0, result.output
    assert "valid: epsilon" in result.output
    return place


def test_the_files_of_the_model_are_the_certified_ones(project: Project, exported: Path) -> None:
    for file in project.model.iterdir():
        assert (exported / file.name).read_bytes() == file.read_bytes()
    assert {file.name for file in exported.iterdir()} == {
        file.name for file in project.model.iterdir()
    } | set(PAPERS)
    report = verify_certificate(exported / "privacy_certificate.json")
    assert report.model == exported
    assert report.page is not None
    assert report.audit is not None


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "privacy_certificate.md"]
)
def test_a_changed_copy_is_found(exported: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in exported.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / name).write_bytes((copy / name).read_bytes() + b" ")
    with pytest.raises(LedgerError):
        verify_certificate(copy / "privacy_certificate.json")


def test_a_file_more_is_found(exported: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "sub").mkdir(parents=True)
    for file in exported.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "sub" / "README.md").write_text("papers lie beside the model, not below it")
    with pytest.raises(LedgerError, match="not the certified one"):
        verify_certificate(copy / "privacy_certificate.json")


@pytest.mark.slow
def test_the_card_loads_it_where_this_package_is_not(exported: Path, tmp_path: Path) -> None:
    """The code of the card, as it stands, in a fresh process: the same probabilities as this package gives."""
    card = (exported / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(code) == 1
    script = tmp_path / "load.py"
    tail = f"\nimport json\nprint('JSON' + json.dumps(probabilities({TEXTS!r}).tolist()))\n"
    script.write_text(BLOCKED + code[0] + tail, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(script)], cwd=exported, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "UNEXPECTED" not in done.stdout + done.stderr
    assert "MISSING" not in done.stdout + done.stderr
    plain = json.loads(done.stdout.rpartition("JSON")[2])
    predictor = Predictor.load(exported, "cpu")
    import pyarrow as pa

    table = pa.table({"text": TEXTS, "text_pair": pa.nulls(len(TEXTS), pa.string())})
    (answer,) = predictor.answers(table)
    for ours, theirs in zip(answer.probabilities.tolist(), plain, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert max(max(row) for row in plain) - min(max(row) for row in plain) > 1e-3


def test_the_card_says_what_the_certificate_says(exported: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    certificate = json.loads((exported / "privacy_certificate.json").read_text())
    assert f"at delta {certificate['delta']:g}" in card
    assert f"from the first {MAX_LENGTH} tokens" in card
    assert "bad\\|worse" in card and "0. good, really" in card  # noqa: PT018
    assert "number of training records" in card
    assert str(Path.home()) not in card


def test_no_file_names_a_place_of_this_machine(exported: Path, project: Project) -> None:
    for name in ("config.json", "tokenizer_config.json", "README.md"):
        assert str(project.root.parent) not in (exported / name).read_text(encoding="utf-8")


def test_the_tokenizer_cuts_where_training_cut(exported: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert len(tokenizer(" ".join(["a"] * 40), truncation=True)["input_ids"]) == MAX_LENGTH
    assert tuple(AutoConfig.from_pretrained(exported).id2label.values()) == NAMES


def test_another_models_certificate_is_refused(project: Project, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", text=("subject", "body"))
    result = CliRunner().invoke(
        cli,
        [
            "export",
            "--output",
            str(tmp_path / "home"),
            "--certificate",
            str(project.certificate),
            "--model",
            str(other),
        ],
    )
    assert result.exit_code == 1
    assert "not the certified one" in result.output
    assert not (tmp_path / "home").exists()
    with pytest.raises(LedgerError, match="not the one that the certificate names"):
        ExportedModel(other, project.fields(), project.lines())


def test_nothing_is_written_over(project: Project, exported: Path) -> None:
    result = CliRunner().invoke(
        cli, ["export", "--output", str(exported), "--certificate", str(project.certificate)]
    )
    assert result.exit_code == 1
    assert "is there already" in result.output


def test_a_place_that_cannot_be_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(project.model.iterdir())
    for output, message in (
        (project.model / "inside", "lies in the model itself"),
        (project.model / "no" / "inside", "lies in the model itself"),
        (tmp_path / "link", "is there already"),
        (tmp_path / ("x" * 300), "cannot be the name"),
    ):
        result = CliRunner().invoke(
            cli, ["export", "--output", str(output), "--certificate", str(project.certificate)]
        )
        assert isinstance(result.exception, SystemExit)
        assert message in result.output
    assert sorted(project.model.iterdir()) == before
    assert [file.name for file in tmp_path.iterdir()] == ["link"]


def test_a_full_disk_leaves_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("raptor.export.directory.shutil.copytree", full)
    result = CliRunner().invoke(
        cli, ["export", "--output", str(tmp_path / "home"), "--certificate", str(project.certificate)]
    )
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_stage_writes_the_same(project: Project, exported: Path, tmp_path: Path) -> None:
    (node,) = create_pipeline().nodes
    given = {
        "raptor_model": project.model,
        "privacy_ledger": JSONLinesDataset(filepath=str(project.ledger)).load(),
        "privacy_certificate": JSONDataset(filepath=str(project.certificate)).load(),
        "audit_results": JSONDataset(filepath=str(project.audit)).load(),
    }
    made = node.run(given)["exported_model"]
    PretrainedDirectory(filepath=str(tmp_path / "home")).save(made)
    for file in exported.iterdir():
        assert (tmp_path / "home" / file.name).read_bytes() == file.read_bytes()
