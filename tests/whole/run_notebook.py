"""Run the code cells of notebooks, each in a namespace of its own, and draw what the last line of a cell shows."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any


def run(notebook: Path) -> int:
    """The number of pictures that were drawn."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    drawn = 0
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), str(notebook), "exec"), namespace)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), str(notebook), "eval"), namespace)
            if hasattr(shown, "_repr_png_"):
                assert shown._repr_png_()
                drawn += 1
    return drawn


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{Path(name).name}: {run(Path(name))} pictures")
