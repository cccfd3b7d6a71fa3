"""Docstrings of installed packages: the text of the embedded default, present on every machine.

Two sets with no text in common. The *private* records are docstrings of eight libraries, labelled with the
library and with the names of libraries masked; they play the data to be protected. The *public* corpus holds
docstrings of the standard library and of other packages that the project installs anyway.

Files are found without importing the packages and parsed by worker processes, so neither torch nor any other
heavy package is loaded. For fixed package versions both tables are the same on every machine and in every call.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from raptor.errors import DataError, ParameterError
from raptor.progress import working
from raptor.text import docstring_cache

if TYPE_CHECKING:
    import pyarrow as pa

_PRIVATE_PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "sympy": "sympy",
    "mlflow": "mlflow",
    "scikit-learn": "sklearn",
    "pandas": "pandas",
    "scipy": "scipy",
    "networkx": "networkx",
}
"""Label of a private record, and the import name of the package it comes from."""

PRIVATE_COLUMNS = ("text", "label")
"""Columns of the private records, known without reading them."""

PRIVATE_LIBRARIES: tuple[str, ...] = tuple(_PRIVATE_PACKAGES)
"""The eight classes of the embedded default, in label order."""

STANDARD_LIBRARY = "python"
"""Name of the standard library in the `library` column of the public corpus."""

_PUBLIC_PACKAGES = (
    "numpy",
    "matplotlib",
    "mpl_toolkits",
    "sqlalchemy",
    "alembic",
    "datasets",
    "huggingface_hub",
    "fsspec",
    "pydantic",
    "pyarrow",
    "jinja2",
    "kedro",
    "kedro_viz",
    "pip",
    "setuptools",
    "rich",
    "click",
    "pygments",
    "prompt_toolkit",
    "IPython",
    "fontTools",
    "PIL",
    "mpmath",
    "joblib",
    "werkzeug",
    "flask",
    "aiohttp",
    "anyio",
    "websockets",
    "graphql",
    "git",
    "docker",
    "omegaconf",
    "dp_accounting",
)
"""Public packages by import name; one that is not installed is left out."""

_SKIPPED_FOLDERS = frozenset({"test", "tests", "_vendor", "site-packages", "dist-packages", "__pycache__"})

_WORKER = Path(__file__).with_name("_docstring_worker.py")


def private_docstrings(limit: int | None = None, processes: int = 2) -> pa.Table:
    """Return the labelled records of the embedded default.

    Args:
        limit: take a deterministic sample of this many records (fewer when there are not that many);
            None takes all, about 46,000.
        processes: worker processes that parse the source files.

    Returns:
        A table with the columns `text` (string, 8 to 256 words, distinct, in no public text either) and
        `label` (string, one of `PRIVATE_LIBRARIES`), in an order that is fixed and looks random.

    Raises:
        ParameterError: `limit` or `processes` is not positive.
        DataError: one of the eight packages is not installed, or holds no docstrings.
    """
    import pyarrow as pa

    _check_arguments(limit, processes)
    files = {label: _package_files(name) for label, name in _PRIVATE_PACKAGES.items()}
    absent = [_PRIVATE_PACKAGES[label] for label, paths in files.items() if not paths]
    if absent:
        raise DataError(
            f"the embedded records need the source files of {', '.join(absent)}, which are not installed; "
            "install the project's requirements, or set ingestion.source to your own data"
        )
    public_paths = tuple((name, tuple(paths)) for name, paths in _public_files().items())
    rows = _sampled(files, limit, processes, without=_digests(public_paths, processes))
    columns = [pa.array([text for text, _ in rows], pa.string()), [label for _, label in rows]]
    return pa.table(dict(zip(PRIVATE_COLUMNS, columns, strict=True)))


def public_docstrings(limit: int | None = None, processes: int = 2) -> pa.Table:
    """Return the public corpus of the embedded default.

    Args:
        limit: take a deterministic sample of this many texts; None takes all, about 30,000.
        processes: worker processes that parse the source files.

    Returns:
        A table with the columns `text` (string, 8 to 256 words, distinct) and `library` (string, the package
        that holds it, `python` for the standard library), in an order that is fixed and looks random.

    Raises:
        ParameterError: `limit` or `processes` is not positive.
        DataError: no source file is found at all.
    """
    import pyarrow as pa

    _check_arguments(limit, processes)
    rows = _sampled(_public_files(), limit, processes, without=frozenset())
    return pa.table({"text": pa.array([t for t, _ in rows], pa.string()), "library": [n for _, n in rows]})


def _check_arguments(limit: int | None, processes: int) -> None:
    if limit is not None and limit < 1:
        raise ParameterError(f"limit must be at least 1 or None, got {limit}")
    if processes < 1:
        raise ParameterError(f"processes must be at least 1, got {processes}")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _source_files(root: Path) -> list[Path]:
    """Source files under `root` without tests and vendored copies, in an order that does not depend on the disk."""
    found = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS.isdisjoint(relative.parts):
            found.append((_digest(relative.as_posix()), path))
    return [path for _, path in sorted(found)]


def _package_files(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return []
    return [path for place in spec.submodule_search_locations for path in _source_files(Path(place))]


def _public_files() -> dict[str, list[Path]]:
    files = {STANDARD_LIBRARY: _source_files(Path(sysconfig.get_paths()["stdlib"]))}
    files.update({name: _package_files(name) for name in _PUBLIC_PACKAGES})
    return files


def _sampled(
    files: dict[str, list[Path]], limit: int | None, processes: int, without: frozenset[bytes]
) -> list[tuple[str, str]]:
    """All rows, or `limit` of them from as small a share of every library's files as holds that many."""
    share = 1.0
    if limit is not None:
        # A file holds about five texts; counting on three makes a second look rare.
        share = min(1.0, max(1 / 32, limit / (3 * sum(map(len, files.values())))))
    while True:
        part = {name: paths[: max(1, round(share * len(paths)))] for name, paths in files.items()}
        rows = [row for row in _distinct(part, processes) if _digest(row[0]) not in without]
        if share >= 1 or (limit is not None and len(rows) >= limit):
            break
        share = min(1.0, share * 4)
    if not rows:
        raise DataError("no docstring of at least eight words was found in the installed packages")
    rows.sort(key=lambda row: _digest(row[0]))
    return rows[:limit]


@cache
def _digests(files: tuple[tuple[str, tuple[Path, ...]], ...], processes: int) -> frozenset[bytes]:
    """Digests of all texts in these files; kept for the life of the process, as every private call asks for them."""
    return frozenset(_digest(text) for text, _ in _distinct({n: list(p) for n, p in files}, processes))


def _distinct(files: dict[str, list[Path]], processes: int) -> list[tuple[str, str]]:
    """Masked texts with the library that holds them; the first library keeps a text that several hold."""
    key = docstring_cache.key(files, (_WORKER, Path(__file__)))
    kept = docstring_cache.load(key)
    if kept is not None:
        return kept
    owners = [(name, path) for name, paths in files.items() for path in paths]
    first: dict[str, str] = {}
    with working("Reading docstrings of installed packages"):
        for (name, _), texts in zip(owners, _parse([path for _, path in owners], processes), strict=True):
            for text in texts:
                first.setdefault(text, name)
    rows = list(first.items())
    docstring_cache.save(key, rows)
    return rows


def _parse(paths: Sequence[Path], processes: int) -> Iterator[list[str]]:
    """Yield the docstrings of every file, in the order of `paths`.

    The workers are plain child processes and not forks: the caller may hold the threads of a tensor library.
    """
    by_size = sorted(range(len(paths)), key=lambda i: (-paths[i].stat().st_size, i))
    shares = [by_size[k::processes] for k in range(processes)]
    results: list[list[str]] = [[] for _ in paths]
    with ThreadPoolExecutor(max_workers=processes) as pool:
        outputs = list(pool.map(_run_worker, [[str(paths[i]) for i in share] for share in shares]))
    for share, output in zip(shares, outputs, strict=True):
        for i, line in zip(share, output, strict=True):
            results[i] = json.loads(line)
    yield from results


def _run_worker(paths: list[str]) -> list[str]:
    if not paths:
        return []
    # -S and -P: the worker needs the standard library only, and must not see the modules beside it.
    done = subprocess.run(
        [sys.executable, "-S", "-P", str(_WORKER)],
        input=json.dumps(paths),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        raise DataError(f"reading docstrings failed in a worker process: {done.stderr.strip()[-500:]}")
    return done.stdout.splitlines()
