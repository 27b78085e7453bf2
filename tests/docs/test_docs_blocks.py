"""The code of the README and of docs/: Python compiles, complete programs run, commands know their options."""

from __future__ import annotations

import ast
import re
import shlex
from functools import lru_cache
from pathlib import Path

import pytest
import typer

from kvmm.cli import COMMANDS, load_command
from tests.docs.pages import PAGES, ROOT, blocks, name_of

pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


@pages
def test_python_compiles(page: Path):
    """``python`` blocks are complete programs; ``py`` blocks go on from names that the page explains."""
    text = page.read_text(encoding="utf-8")
    for code in (*blocks(text, "python"), *blocks(text, "py")):
        ast.parse(code, name_of(page))
    assert text.count("```python\n") == len(blocks(text, "python"))


@pages
def test_names_that_are_imported_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    for code in (*blocks(text, "python"), *blocks(text, "py")):
        imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
        for node in imports:
            if node.module.partition(".")[0] == "kvmm":
                module = __import__(node.module, fromlist=["*"])
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_it_is_said_whose_python_is_meant(page: str):
    """Nothing is installed for a plain ``python``, which Debian does not even have."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.index("`. .venv/bin/activate`") < text.index("\npython -m kvmm ")


@lru_cache
def options_of(name: str, sub: str | None = None) -> set[str]:
    command = load_command(name)
    if sub is not None:
        command = command.get_command(typer.Context(command), sub)
        assert command is not None, sub
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def commands(text: str) -> list[list[str]]:
    """The arguments of every ``kvmm`` in the shell blocks, placeholders in brackets taken away."""
    found = []
    lines = [line for block in blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
    for line in lines:
        if not re.search(r"(^|-m )kvmm ", line):
            continue
        words = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)
        for index, word in enumerate(words):
            if word == "kvmm" and (index == 0 or words[index - 1] == "-m"):
                found.append(words[index + 1 :])
    return found


@pages
def test_commands_and_options_exist(page: Path):
    for arguments in commands(page.read_text(encoding="utf-8")):
        name, *rest = arguments
        assert name in COMMANDS, name
        sub = rest[0] if name == "analyze" else None
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= options_of(name, sub) | {"--help"}, arguments


def test_commands_are_found():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    found = commands(text)
    assert {arguments[0] for arguments in found} == set(COMMANDS) - {"app"}
    assert sum(arguments[0] == "ask" for arguments in found) >= 4
    assert commands("```sh\nkvmm ask --wrong x  # --not\n```\n") == [["ask", "--wrong", "x"]]
    assert commands("```sh\nkvmm ask \\\n    --wrong x\n```\n") == [["ask", "--wrong", "x"]], "goes on in the next line"
    assert "--wrong" not in options_of("ask") and "--out" in options_of("analyze", "norms")
