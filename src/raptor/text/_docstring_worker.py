"""Reads docstrings out of source files; run as a script by `raptor.text.docstrings`, one process per core.

Input: one JSON list of paths on standard input. Output: one JSON list per path on standard output, in order,
holding the whitespace-folded docstrings of that file. Only the standard library is imported, so a worker
starts in a few milliseconds and never loads the packages whose text it reads.
"""

from __future__ import annotations

import ast
import gc
import json
import sys
from pathlib import Path

# A longer text is cut: no model of this project reads more, and a few package docstrings are whole manuals.
MAX_WORDS = 256
MIN_WORDS = 8


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
                    found.append(" ".join(words[:MAX_WORDS]))
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
