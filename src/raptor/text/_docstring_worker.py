"""Reads docstrings out of source files; run as a script by `raptor.text.docstrings`, one process per core.

Input: one JSON list of paths on standard input. Output: one JSON list per path on standard output, in order,
holding the docstrings of that file with white space folded and the names of libraries masked. Only the
standard library is imported, so a worker starts in a few milliseconds and never loads the packages it reads.
"""

from __future__ import annotations

import ast
import gc
import json
import re
import sys
from functools import cache
from pathlib import Path

# A longer text is cut: no model of this project reads more, and a few package docstrings are whole manuals.
MAX_WORDS = 256
MIN_WORDS = 8

MASK = "lib"
"""What stands in a text for the name of a library."""

# Names that would give the label away, and those of the large public libraries, so that both sets look alike.
_NAMES = re.compile(
    r"pytorch|torch|transformers|hugging[-_]?face|sympy|mlflow|scikit-?learn|sklearn|pandas|scipy|networkx"
    r"|numpy|matplotlib|pyplot|sqlalchemy|pyarrow|pydantic|kedro|setuptools|fonttools|ipython|mpmath|pygments"
    r"|werkzeug|aiohttp|\b(?:pd|nx|sp|np|plt|skl|hf|mpl)(?=\.)|\bnx\b",
    re.IGNORECASE,
)
_TWO_WORDS = re.compile(r"\b(?:hugging face|scikit learn)", re.IGNORECASE)


@cache
def _mask_word(word: str) -> str:
    return _NAMES.sub(MASK, word)


def mask_names(text: str) -> str:
    """Fold white space, and replace the names of libraries and their short names before a dot by `MASK`."""
    # Word by word: the same few words fill all texts, so nearly every one is looked up and not searched.
    masked = " ".join(map(_mask_word, text.split()))
    return _TWO_WORDS.sub(MASK, masked)


def docstrings_of(path: str) -> list[str]:
    """Docstrings of a module, its classes and its functions, whitespace folded, in the order of the file."""
    try:
        source = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    if '"""' not in source and "'''" not in source:
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # Templates and files for another version of Python: nothing to read in them.
        return []
    found: list[str] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        body = getattr(node, "body", [])
        if body and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                words = value.value.split()
                if len(words) >= MIN_WORDS:
                    found.append(mask_names(" ".join(words[:MAX_WORDS])))
        # Only statements hold definitions; walking expressions as well would take five times as long.
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, field, None)
            if isinstance(children, list):
                pending.extend(c for c in reversed(children) if hasattr(c, "body"))
    return found


def main() -> None:
    # The trees are freed by reference counting; collecting garbage over them only costs time.
    gc.disable()
    for path in json.load(sys.stdin):
        sys.stdout.write(json.dumps(docstrings_of(path)) + "\n")


if __name__ == "__main__":
    main()
