"""Runs a notebook's cells without Jupyter: ``python -m tests.docs.notebook FILE`` prints what each cell shows.

``--write`` keeps that in the file, as Jupyter does. Cells are plain Python; a cell's last expression is shown.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any


def run_cell(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of its last expression (None without one)."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return printed.getvalue(), value


def outputs_of(printed: str, value: Any) -> list[dict[str, Any]]:
    """As the notebook format has them."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [f"<{type(value).__name__}>"]}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    notebook = json.loads(options.file.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for count, cell in enumerate((one for one in notebook["cells"] if one["cell_type"] == "code"), 1):
        cell["outputs"] = outputs_of(*run_cell("".join(cell["source"]), names))
        cell["execution_count"] = count
        shown.append(cell["outputs"])
    if options.write:
        options.file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
