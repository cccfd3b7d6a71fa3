"""`raptor inspect`: quick, on the terminal only, and right about errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raptor.cli import cli
from tests.pipelines.directories import save_tokenizer
from tests.text.reading import put
from tests.text.test_images import picture

ROWS = (
    "text,label,split,who\nsome words,yes,train,u1\nmore words,no,train,u2\nlast,no,dev,u1\nleft,,test,u3\n"
)


def inspect(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["inspect", *arguments])


def test_json_holds_the_contract(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", ROWS)
    result = inspect(str(path), "--split", "split", "--user", "who", "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert {key: shown[key] for key in ("rows", "labels", "splits", "users")} == {
        "rows": 4,
        "labels": {"no": 2, "yes": 1},
        "splits": {"train": 2, "validation": 1, "test": 1},
        "users": 3,
    }
    assert shown["labels_by_split"]["validation"] == {"no": 1, "yes": 0}
    assert shown["unlabelled"] == 1
    assert any("'yes'" in warning for warning in shown["warnings"])


def test_records_with_an_image_are_counted(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    table = "text,label,image\none,a,0.png\ntwo,b,1.png\nthree,a,\n"
    path = str(put(tmp_path, "a.csv", table))
    assert "  with an image: 2" in inspect(path, "--image", "image").output.splitlines()
    assert json.loads(inspect(path, "--image", "image", "--json").stdout)["images"] == 2
    assert "image" not in inspect(path).output


def test_people_can_read_it(tmp_path: Path) -> None:
    result = inspect(str(put(tmp_path, "a.csv", ROWS)), "--split", "split", "--user", "who")
    assert result.exit_code == 0
    for line in (
        "4 records (csv), 2 classes",
        "  validation: 1, the held-out set",
        "  users: 3",
        "Warning: Classes absent",
    ):
        assert line in result.stdout


def test_two_texts_and_an_encoding(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "q,p,label\né,b,1\nc,d,0\n".encode("cp1252"))
    result = inspect(str(path), "--text", "q+p", "--encoding", "cp1252", "--json")
    assert json.loads(result.stdout)["rows"] == 2
    assert json.loads(result.stdout)["users"] is None


def test_cut_texts_are_counted_by_the_model_that_is_given(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "model")
    path = put(tmp_path, "a.csv", "text,label\na b c,1\nd,0\n")
    result = inspect(str(path), "--model", str(tmp_path / "model"), "--max-length", "3", "--json")
    assert any(
        warning.startswith("1 of 2 records are longer than 3 tokens")
        for warning in json.loads(result.stdout)["warnings"]
    )


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_an_error_is_one_message_with_the_value_shortened(tmp_path: Path, as_json: list[str]) -> None:
    path = put(tmp_path, "a.csv", f"text,label,split\na,1,train\nb,0,{'fold ' * 40}\n")
    result = inspect(str(path), "--split", "split", *as_json)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {path}, line 3, column 'split': this is no split.")
    assert "Found: 'fold fold" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "fold " * 20 not in result.stderr


def test_a_wrong_column_lists_the_columns(tmp_path: Path) -> None:
    result = inspect(str(put(tmp_path, "a.csv", ROWS)), "--text", "Text")
    assert result.exit_code == 1
    assert "no column 'Text'. The closest is 'text'" in result.stderr
    assert "Found: 'text', 'label', 'split', 'who'." in result.stderr


def test_a_label_that_is_the_text_is_refused(tmp_path: Path) -> None:
    result = inspect(str(put(tmp_path, "a.csv", ROWS)), "--label", "text")
    assert result.exit_code == 1
    assert "ingestion.label and ingestion.text both name the column 'text'" in result.stderr


def test_nothing_is_written_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", ROWS)
    program = (
        "import sys\nfrom raptor.cli import cli\n"
        f"cli(['inspect', {str(path)!r}, '--split', 'split'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'datasets', 'kedro', 'mlflow'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.csv"]
