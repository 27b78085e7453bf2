"""Links, anchors and paths of the README and of docs/ lead somewhere, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, PAGES, ROOT, anchors, name_of, prose, slug

pages = pytest.mark.parametrize("page", PAGES, ids=name_of)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:kvmm|benchmarks|assets|training|tests|docs|examples)/[\w./-]+)`")


def broken(page: Path, text: str) -> list[str]:
    """The relative links of a page that lead nowhere, and of a page of the site those that leave docs/."""
    wrong = []
    for link in _LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        outside = page.is_relative_to(DOCS) and not target.is_relative_to(DOCS)
        missing = not target.is_file() and not (target.is_dir() and not page.is_relative_to(DOCS))
        if outside or missing or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    return wrong


@pages
def test_links_and_anchors_resolve(page: Path):
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found():
    text = (
        "[a](gpu.md) [b](gpu.md#whole-decode-steps) [c](gone.md) [d](gpu.md#gone) [e](../README.md) [f](https://x.org)"
    )
    assert broken(DOCS / "index.md", text) == ["gone.md", "gpu.md#gone", "../README.md"]
    assert slug("`generate()` on a GPU, twice") == "generate-on-a-gpu-twice"


@pages
def test_paths_that_are_named_exist(page: Path):
    named = _PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def _navigation() -> set[str]:
    # PyYAML knows no tags of mkdocs, and the navigation has none
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return {path for entry in config["nav"] for value in entry.values() for path in _leaves(value)}


def _leaves(value: str | list) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [path for entry in value for one in entry.values() for path in _leaves(one)]


def test_every_page_is_in_the_navigation():
    assert _navigation() | {"figures/README.md"} == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed")
def test_the_site_builds_strictly(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    said = done.stdout + done.stderr  # with --quiet, --strict would count no warnings
    assert done.returncode == 0 and "WARNING" not in said and "Documentation built" in said, said
    reference = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("KVMMCache.for_model", "KVMMCache.crop", "get_policy", "load_model", "compare_methods"):
        assert f'id="kvmm.{name}"' in reference or f".{name}" in reference, name
    assert ":class:" not in reference and ":func:" not in reference
