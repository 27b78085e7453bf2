"""``--help``, ``--version`` and completion answer at once: what they import is checked in a process of their own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import kvmm
from kvmm import cli
from kvmm.analysis.cost.shapes import SHAPES
from kvmm.embedded import EMBEDDED_MODELS

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers", "gradio", "plotly", "numpy", "PIL", "librosa", "huggingface_hub", "pyarrow"}
# Runs the command line and says on the last line of stderr which of the heavy modules it imported.
PROBE = f"""
import json, sys
from kvmm.cli import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(set({sorted(HEAVY)!r}) & set(sys.modules))]), file=sys.stderr)
"""


def probe(*arguments: str, **environment: str) -> tuple[str, int, list[str]]:
    """stdout, exit code and heavy modules of ``kvmm`` with these arguments."""
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    code, heavy = json.loads(done.stderr.splitlines()[-1])
    return done.stdout, code, heavy


def commands() -> list[tuple[str, ...]]:
    nested = [("analyze", name) for name in ("norms", "errors", "drift", "cost")]
    return [(), *((name,) for name in cli.COMMANDS), *nested]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_imports_nothing_heavy(command):
    out, code, heavy = probe(*command, "--help")
    assert (code, heavy) == (0, [])
    assert f"Usage: {' '.join(('kvmm', *command))}" in out and "--help" in out


def test_version():
    out, code, heavy = probe("--version")
    assert (out, code, heavy) == (f"kvmm {kvmm.__version__}\n", 0, [])


def test_the_list_of_policies_imports_nothing_heavy():
    out, code, heavy = probe("policies")
    assert (code, heavy) == (0, [])
    assert set(kvmm.policies()) <= {line.split()[0] for line in out.splitlines() if line.startswith("  ")}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_table_of_commands_says_what_their_docstrings_say(name):
    command = cli.load_command(name)
    assert command.name == name
    assert cli.COMMANDS[name] == inspect.cleandoc(command.help).partition("\n")[0]


def test_every_command_module_is_in_the_table():
    folder = ROOT / "kvmm" / "commands"
    defining = {p.stem for p in folder.glob("*.py") if "\ndef command(" in p.read_text() or "\napp = " in p.read_text()}
    assert defining == set(cli.COMMANDS)


def complete(*words: str) -> list[str]:
    """What bash offers for the last of the words."""
    out, code, heavy = probe(
        _KVMM_COMPLETE="complete_bash", COMP_WORDS=" ".join(("kvmm", *words)), COMP_CWORD=str(len(words))
    )
    assert heavy == [] and code == 0
    return out.split("\n")


def test_completion():
    assert {"ask", "app", "analyze"} <= set(complete("a"))
    assert "norms" in complete("analyze", "n")
    assert "--policy" in complete("ask", "--pol")
    assert {"kitty", "kitty-pro"} <= set(complete("ask", "--policy", "kit"))
    assert "balanced" in complete("app", "--policy", "b")
    assert "balanced" in complete("eval", "docvqa", "--policies", "ba")
    hub = [shape.hub_id for shape in SHAPES.values() if shape.hub_id.startswith("Qwen/Qwen2.5-VL")]
    assert len(hub) >= 4 and set(hub) <= set(complete("ask", "--model", "Qwen/Qwen2.5-VL"))
    assert {"Qwen3-8B", "Qwen3-VL-8B-Instruct"} <= set(complete("plan", "--model", "Qwen3"))
    for words in (("ask",), ("app",), ("serve",), ("eval", "docvqa"), ("plan",), ("analyze", "norms")):
        assert set(EMBEDDED_MODELS) <= set(complete(*words, "--model", ""))
    assert "tiny-omni" in complete("ask", "--model", "ti") and "tiny-omni" not in complete("ask", "--model", "of")
    assert "google/gemma-3-12b-it" in complete("analyze", "cost", "--model", "google/")


def test_completion_of_files_and_folders(tmp_path, monkeypatch):
    from kvmm.commands.options import complete_model, complete_policy

    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert dict(complete_policy("m")) == {"mine.yaml": "file", "models": "folder"}
    assert dict(complete_policy(f"{tmp_path}/mine")) == {f"{tmp_path}/mine.yaml": "file"}
    assert dict(complete_model("mod")) == {"models": "folder"}
    assert list(complete_policy("nowhere/")) == []


def test_show_completion_is_a_script(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    # typer looks for the shell that runs it
    command = f"{sys.executable} {tmp_path / 'probe.py'} --show-completion; true"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60)
    assert json.loads(script.stderr.splitlines()[-1]) == [0, []]
    assert "_KVMM_COMPLETE=complete_bash" in script.stdout


def test_import_kvmm_is_lazy_and_complete():
    code = (
        "import sys, kvmm; before = sorted({'torch', 'numpy'} & set(sys.modules)); names = dir(kvmm);"
        "from kvmm import *; from kvmm import KVMMCache as one; import kvmm.cache;"
        "print(before, set(kvmm.__all__) <= set(names), one is kvmm.cache.KVMMCache is KVMMCache is kvmm.KVMMCache,"
        "all(hasattr(kvmm, name) for name in kvmm.__all__), hasattr(kvmm, 'nothing'), kvmm.media.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[] True True True False kvmm.media\n", done.stderr


def test_every_module_is_the_first_to_be_imported():
    """No circle shows, whichever of the lower modules comes first; torch stays loaded in between."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("", "cache", "calibration", "codecs", "commands", "cuda_graphs", "decoding", "models", "policy")
        for path in sorted((ROOT / "kvmm" / folder).glob("**/*.py" if folder == "codecs" else "*.py"))
        if path.stem != "__main__"
    ]
    if find_spec("lmcache") is None:
        names.remove("kvmm.lmcache")  # which is of use to that package alone
    code = f"""
import importlib, sys, torch, transformers
for name in {names!r}:
    for old in [one for one in sys.modules if one.partition(".")[0] == "kvmm"]:
        del sys.modules[old]
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "kvmm" or "circular" in str(error):
            print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def test_the_version_is_that_of_the_package():
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{kvmm.__version__}"' in pyproject
