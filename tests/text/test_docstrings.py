"""The embedded text: what is taken, what is masked, and that the two sets stay apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raptor.errors import DataError, ParameterError
from raptor.text import docstrings
from raptor.text._docstring_worker import MAX_WORDS, MIN_WORDS, docstrings_of, mask_names

SOURCE = '''\
"""A module that holds several words, more than the eight needed."""

def plain():
    """Too short to count."""

async def waits(x):
    \'\'\'Waits for   something
    that takes a while, and then returns the thing.\'\'\'
    def inner():
        """An inner function whose text is long enough to be found too."""

if True:
    try:
        pass
    except ValueError:
        class Late:
            """A class inside a handler has a docstring of its own here."""
            attribute = """This string is no docstring, as it is assigned to a name there."""
'''


def test_worker_finds_docstrings_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert docstrings_of(str(path)) == [
        "A module that holds several words, more than the eight needed.",
        "Waits for something that takes a while, and then returns the thing.",
        "An inner function whose text is long enough to be found too.",
        "A class inside a handler has a docstring of its own here.",
    ]


@pytest.mark.parametrize(
    "content", [b'"""broken', b'"""\xff\xfe not text"""', b"x = 1\n", b'def f(:\n    """a"""']
)
def test_worker_passes_over_what_it_cannot_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(content)
    assert docstrings_of(str(path)) == []


def test_worker_cuts_long_texts(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""' + "word " * (MAX_WORDS + 50) + '"""')
    (text,) = docstrings_of(str(path))
    assert len(text.split()) == MAX_WORDS


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("A PyTorch module, see torch.nn.", "A lib module, see lib.nn."),
        ("Use pd.DataFrame or nx.Graph.", "Use lib.DataFrame or lib.Graph."),
        ("the scikit-learn and sklearn APIs", "the lib and lib APIs"),
        ("a model on the Hugging Face hub", "a model on the lib hub"),
        ("a SymPy expression", "a lib expression"),
        ("a transformer is fitted", "a transformer is fitted"),
        ("the expd. value", "the expd. value"),
    ],
)
def test_names_are_masked(text: str, masked: str) -> None:
    assert mask_names(text) == masked


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": -3}, {"processes": 0}])
def test_arguments_are_checked(arguments: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match="must be at least 1"):
        docstrings.private_docstrings(**arguments)
    with pytest.raises(ParameterError, match="must be at least 1"):
        docstrings.public_docstrings(**arguments)


def test_absent_private_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(docstrings._PRIVATE_PACKAGES, "sympy", "package_that_is_not_there")
    with pytest.raises(DataError, match="package_that_is_not_there"):
        docstrings.private_docstrings(limit=5)


def _small_package(root: Path, name: str, texts: list[str]) -> None:
    folder = root / name
    (folder / "tests").mkdir(parents=True)
    (folder / "_vendor").mkdir()
    functions = "\n".join(f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(texts))
    (folder / "__init__.py").write_text(functions)
    for hidden in ("tests", "_vendor"):
        (folder / hidden / "case.py").write_text(
            '"""This text stands in a folder that must be skipped always."""'
        )


@pytest.fixture
def small_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tiny packages instead of the installed ones."""
    shared = "This very text is held by a public and a private package."
    twice = "This text of at least eight words is in two packages."
    _small_package(
        tmp_path,
        "raptor_case_a",
        [shared, twice, "Only the first private package says this about sympy, once."],
    )
    _small_package(
        tmp_path, "raptor_case_b", [twice, "Only the second private package says this, and says it once."]
    )
    _small_package(
        tmp_path,
        "raptor_case_c",
        [shared, "Only the public package says this about numpy, and says it once."],
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(docstrings, "_PRIVATE_PACKAGES", {"a": "raptor_case_a", "b": "raptor_case_b"})
    monkeypatch.setattr(
        docstrings, "_public_files", lambda: {"c": docstrings._package_files("raptor_case_c")}
    )


@pytest.mark.usefixtures("small_packages")
def test_sets_are_disjoint_and_texts_distinct() -> None:
    private = {r["text"]: r["label"] for r in docstrings.private_docstrings().to_pylist()}
    public = {r["text"]: r["library"] for r in docstrings.public_docstrings().to_pylist()}
    assert private == {
        "This text of at least eight words is in two packages.": "a",
        "Only the first private package says this about lib, once.": "a",
        "Only the second private package says this, and says it once.": "b",
    }
    assert public == {
        "This very text is held by a public and a private package.": "c",
        "Only the public package says this about lib, and says it once.": "c",
    }


@pytest.mark.usefixtures("small_packages")
def test_number_of_processes_and_calls_change_nothing() -> None:
    first = docstrings.private_docstrings(processes=1)
    assert docstrings.private_docstrings(processes=3).equals(first)
    assert docstrings.private_docstrings(limit=2).equals(first.slice(0, 2))


def test_limited_public_sample_of_the_installed_packages_without_torch() -> None:
    code = (
        "import json, sys\n"
        "from raptor.text.docstrings import public_docstrings\n"
        "rows = public_docstrings(limit=64).to_pylist()\n"
        "print(json.dumps([rows, 'torch' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, torch_loaded = json.loads(done.stdout.splitlines()[-1])
    assert not torch_loaded
    assert len({r["text"] for r in rows}) == 64
    assert len({r["library"] for r in rows}) > 3
    assert all(len(r["text"].split()) >= MIN_WORDS and r["text"] == " ".join(r["text"].split()) for r in rows)


@pytest.mark.exhaustive
def test_whole_corpus() -> None:
    private, public = docstrings.private_docstrings(), docstrings.public_docstrings()
    texts, others = private["text"].to_pylist(), public["text"].to_pylist()
    assert len(texts) == len(set(texts)) > 30_000
    assert len(others) == len(set(others)) > 15_000
    assert set(texts).isdisjoint(others)
    labels = private["label"].to_pylist()
    assert set(labels) == set(docstrings.PRIVATE_LIBRARIES)
    counts = [labels.count(name) for name in docstrings.PRIVATE_LIBRARIES]
    assert min(counts) > 500
    assert max(counts) < 0.4 * len(labels)
    names = ("torch", "sympy", "mlflow", "sklearn", "scikit-learn", "pandas", "scipy", "networkx")
    assert not any(name in text.lower() for text in texts for name in names)
    assert docstrings.private_docstrings(limit=100).num_rows == 100


def test_parsed_texts_are_kept_and_read_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RAPTOR_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "package"
    source.mkdir()
    (source / "a.py").write_text('"""One text that has more than eight words, as it must have."""\n')
    files = {"package": [source / "a.py"]}
    first = docstrings._distinct(files, processes=1)
    assert len(first) == 1
    monkeypatch.setattr(docstrings, "_parse", lambda *_: pytest.fail("parsed again"))
    assert docstrings._distinct(files, processes=1) == first
    monkeypatch.undo()
    monkeypatch.setenv("RAPTOR_CACHE", str(tmp_path / "cache"))
    (source / "a.py").write_text('"""Another text that has more than eight words, as it must have, too."""\n')
    assert docstrings._distinct(files, processes=1) != first
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(b"damaged")
    assert docstrings._distinct(files, processes=1)[0][0].startswith("Another")
