"""docs/adding-a-codec.md, executed: its codec from outside the package passes the matrix and answers a question."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvmm import KVMMError, KVPolicy
from tests.docs.pages import ROOT, blocks, text_of

PAGE = text_of("docs/adding-a-codec.md")
CODEC, PROGRAM = blocks(PAGE, "python")


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder outside of the project with the page's module."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "clipped.py").write_text(CODEC, encoding="utf-8")
    return folder


def run(arguments: list[str], package: Path) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTHONPATH": os.pathsep.join((str(package), str(ROOT))), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_the_codec_passes_the_matrix(package):
    (command,) = [line for line in "".join(blocks(PAGE, "sh")).splitlines() if line.startswith("python ")]
    done = run([*shlex.split(command)[1:], "-q"], package)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 100 and "skipped" not in done.stdout and "failed" not in done.stdout


def test_the_codec_answers(package):
    done = run(["-c", PROGRAM], package)
    assert done.returncode == 0, done.stderr
    assert f"It prints `{done.stdout.strip()}`" in PAGE and "$364.08" in done.stdout


def test_the_command_line_knows_the_codec(package):
    (code,) = re.findall(r'`python -c "([^"]+)" ask', PAGE)
    policy = package / "clipped.yaml"
    policy.write_text("base: bf16\nimage: {codec: clipped, bits: 4, group_size: 32}\n", encoding="utf-8")
    plan = ["plan", "--model", "Qwen2.5-VL-7B", "--policy", str(policy), "--context", "4096", "--images", "4", "--json"]
    done = run(["-c", code, *plan], package)
    assert done.returncode == 0, done.stderr
    assert 5 < json.loads(done.stdout)["policies"][0]["packed_bits_per_value"] < 5.1
    with pytest.raises(KVMMError, match="Unknown codec 'clipped'"):
        KVPolicy.from_file(policy)
