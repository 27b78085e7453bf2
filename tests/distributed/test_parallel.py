"""Models spread over devices and processes. Two processes of a CPU stand for two GPUs of tensor parallelism."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import multi_gpu
from kvmm import KVMMCache
from kvmm.cache.plan import Move, Plan
from kvmm.calibration import FILE_NAME, Calibration, model_fingerprint
from kvmm.calibration.collect import Collector
from kvmm.calibration.fit import fit_codecs
from kvmm.calibration.heads import local_heads
from kvmm.codecs import EncodeContext, Site, build_codec
from kvmm.modality import TEXT
from kvmm.policy import get_policy, spec
from kvmm.policy.calibrated import load_calibration
from tests.distributed import worker
from tests.tiny_models import build, inputs

ROOT = Path(__file__).parents[2]


def _calibration(model):
    collector = Collector(model)
    for seed in range(3):
        collector.add(inputs("qwen3", 1, seed=seed), torch.tensor([5, 9, 4, 11, 3]))
    return Calibration(model_fingerprint(model), fit_codecs(collector.samples()), {"importance": "gradient"})


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_tensor_parallel_generates_the_same_tokens(tmp_path):
    """Also with a calibration file, of which every process takes the part of its heads, and with static buffers."""
    model = copy.deepcopy(build("qwen3"))
    model.save_pretrained(tmp_path)
    _calibration(model).save(tmp_path / FILE_NAME)
    model = type(model).from_pretrained(tmp_path)
    expected = {policy: worker.generate(model, policy) for policy in worker.POLICIES}
    save_file(expected, tmp_path / "expected.safetensors")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.distributed.worker", str(tmp_path), str(tmp_path / "expected.safetensors")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_process_takes_the_transforms_of_its_heads():
    """The same bits for all, transforms by head; what is encoded by parts is what all heads encode together."""
    model = build("qwen3")
    whole = _calibration(model)
    x = torch.randn(1, 2, 256, 32)
    for side in ("key", "value"):
        codecs = [
            build_codec(spec("rd", 2), side, Site(1, TEXT, calibration, spec("rd", 2)))
            for calibration in (whole, replace(whole, heads=(0, 1)), replace(whole, heads=(1, 2)))
        ]
        decoded = codecs[0].decode(codecs[0].encode(x, EncodeContext(128)))
        for head, codec in enumerate(codecs[1:]):
            own = x[:, head : head + 1]
            found = codec.decode(codec.encode(own, EncodeContext(128)))
            torch.testing.assert_close(found, decoded[:, head : head + 1], atol=1e-4, rtol=1e-4)
    assert local_heads(model) is None
    assert load_calibration(model, get_policy("oscar2")) is None


def test_a_table_serves_layers_on_other_devices():
    """What a layer takes of the token table comes to the layer's device; ``meta`` stands for a second one."""
    index = torch.zeros(1, 4, dtype=torch.long)
    plan = Plan([Move(TEXT, index, index >= 0, index.int(), 32)], index, index.int(), 2)
    there = plan.to(torch.device("meta"))
    assert there.stay.device.type == there.moves[0].index.device.type == there.moves[0].valid.device.type == "meta"
    assert plan.to(torch.device("meta")) is there
    cache = KVMMCache.for_model(build("llama"), "oscar2", max_length=50)
    cache.table.append(torch.tensor([[0, 0, -1, 0]], dtype=torch.int8))
    assert cache.table.bias(None, 1, torch.device("meta")).device.type == "meta"
    assert cache.table.bias(None, 1).device.type == "cpu"


def test_benchmark_of_several_gpus(tmp_path):
    """Toy sizes on a CPU: one process, and two of tensor parallelism, generate the same tokens."""
    output = tmp_path / "multi_gpu.json"
    multi_gpu.main(["--smoke", "--device", "cpu", "--models", "qwen3", "--output", str(output)])
    rows = json.loads(output.read_text())["results"]
    assert [row["name"] for row in rows] == ["qwen3 alone x1", "qwen3 device_map x2", "qwen3 tp_plan x2"]
    for row in rows:
        for found in row["policies"].values():
            assert found["tokens_differ_at"] is None
            assert found["tokens_per_second"] > 0
            assert found["graph"] == (row["way"] != "device_map")
