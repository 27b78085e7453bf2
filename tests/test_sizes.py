"""No file is longer than one idea, no function longer than two screens."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE_LINES, FUNCTION_LINES = 450, 80


def sources() -> dict[str, str]:
    """Text by path."""
    package = ROOT / "kvmm"
    paths = sorted(package.rglob("*.py"))
    return {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def beside_the_package() -> dict[str, str]:
    """Text by path of the tests, the training, the benchmarks and the app."""
    paths = [path for name in ("tests", "training", "benchmarks") for path in sorted((ROOT / name).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in [*paths, ROOT / "app.py"]}


def long_functions(text: str) -> list[str]:
    """Names of functions of more than :data:`FUNCTION_LINES` lines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [node.name for node in found if node.end_lineno - node.lineno + 1 > FUNCTION_LINES]


def test_files_are_short():
    lengths = {name: text.count("\n") for name, text in (sources() | beside_the_package()).items()}
    assert len(lengths) > 400
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_functions_are_short():
    texts = sources() | beside_the_package()
    assert [f"{name}:{one}" for name, text in texts.items() for one in long_functions(text)] == []


def test_long_functions_are_found():
    body = "\n".join(["    pass"] * FUNCTION_LINES)
    assert long_functions(f"async def f():\n{body}\ndef g():\n    pass\n") == ["f"]
    assert long_functions(f"def f():\n{body[9:]}\n") == []
