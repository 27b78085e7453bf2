"""The notebook runs, and its cells show what is kept in it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
_NUMBER = re.compile(r"(?<![$\d.])(?:\d+\.\d+|\d+\b)")  # an amount that was read off the page is a word


def text_of(outputs: list[dict]) -> str:
    return "".join(line for one in outputs for line in one.get("text", ()))


def same(found: str, kept: str) -> bool:
    """Equal words; numbers may differ by a hundredth of their size or by a thousandth."""
    if _NUMBER.sub("#", found).split() != _NUMBER.sub("#", kept).split():
        return False
    pairs = zip(_NUMBER.findall(found), _NUMBER.findall(kept), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=0.01, abs_tol=1e-3) for a, b in pairs)


def test_same_tells_differences():
    assert same("small 277 KiB, 1.70 bits", "small  276 KiB, 1.70 bits")
    assert not same("small 277 KiB", "small 290 KiB") and not same("$364.08", "$364.09")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_shows_what_is_kept_in_it(path: Path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.notebook", str(path)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for outputs, cell in zip(json.loads(done.stdout), cells, strict=True):
        found, kept = text_of(outputs), text_of(cell["outputs"])
        assert same(found, kept), f"{found}\n--- kept:\n{kept}"
        pictures = [[sorted(one.get("data", ())) for one in shown] for shown in (outputs, cell["outputs"])]
        assert pictures[0] == pictures[1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_the_notebook_resolve(path: Path):
    text = "".join(line for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] for line in cell["source"])
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links and [link for link in links if not (path.parent / link).is_file()] == []
