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
from kvmm.codecs import Codec
from tests.docs.pages import ROOT, blocks, rows, text_of

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
    listed = run(["-c", code, "policies"], package).stdout
    assert re.search(r"^Added\n  clipped2 +Clipped ranges, 2 bits, groups of 32\.$", listed, re.MULTILINE), listed
    plan = ["plan", "--model", "Qwen2.5-VL-7B", "--context", "4096", "--images", "4", "--json"]
    plan += ["--policy", str(policy), "--policy", "clipped2"]
    done = run(["-c", code, *plan], package)
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)["policies"]
    assert [one["policy"] for one in planned] == ["clipped", "clipped2"]
    assert [int(one["packed_bits_per_value"]) for one in planned] == [5, 3]  # with 32 bits per group of 32
    with pytest.raises(KVMMError, match="Unknown codec 'clipped'"):
        KVPolicy.from_file(policy)


@pytest.mark.parametrize("head", ["| Define |", "| Optional |"])
def test_what_a_codec_may_define_is_there(head):
    names = [name for cell in rows(PAGE, head) for name in re.findall(r"`(\w+)", cell)]
    assert len(names) >= 5 and [name for name in names if not hasattr(Codec, name)] == []
    if head == "| Define |":
        assert Codec.__abstractmethods__ <= set(names)
