"""Several processes of one run: gradients are summed, the clock is shared, and a real run has one set of files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.replicas import Replicas

ROOT = Path(__file__).parents[2]
PROCESS = """
import json, os, sys, torch
from training.replicas import Replicas
replicas = Replicas()
replicas.connect()
torch.manual_seed(replicas.rank)
layers = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(3))
x = torch.full((1, 2), 1.0 + replicas.rank)
(layers[0](x).sum() + (layers[1](x).sum() if replicas.rank else 0)).backward()
replicas.sum_gradients(list(layers.parameters()))
clock = replicas.agree(5.0 + replicas.rank)
replicas.align(layers.state_dict().values())
gradients = [None if p.grad is None else p.grad.tolist() for p in layers.parameters()]
replicas.disconnect()
print(json.dumps([clock, gradients, layers[0].weight.tolist()]))
"""


def together(*command: str) -> list[str]:
    """What two processes of one run print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    shared |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **shared, "RANK": str(rank)}, cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [p.communicate(timeout=240)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    assert [p.returncode for p in processes] == [0, 0], outputs
    return outputs


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_gradients_are_summed_and_unused_parameters_keep_none():
    first, second = (json.loads(out.splitlines()[-1]) for out in together("-c", PROCESS))
    assert first == second
    clock, gradients, _ = first
    assert clock == 5.0
    assert gradients == [[[3.0, 3.0]] * 2, [[2.0, 2.0]] * 2, None]


def test_a_process_alone_does_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    replicas, layer = Replicas(), torch.nn.Linear(2, 2)
    replicas.connect()
    replicas.disconnect()
    replicas.sum_gradients(list(layer.parameters()))
    assert replicas.first and replicas.agree(3.0) == 3.0 and layer.weight.grad is None
    assert replicas.device("cpu") == torch.device("cpu")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_make_one_run(tmp_path):
    """Both take part in every update, the first alone logs and writes."""
    out = tmp_path / "omni"
    arguments = "--dataset tests.training.fake_data --device cpu --workers 1 --slots 4 --total-minutes 5".split()
    arguments += ["--steps", "2", "--log-every", "1", "--out", str(out)]
    first, second = together("-m", "training.train", *arguments)
    assert "step 2 " in first and "saved step 2" in first
    assert second.strip() == ""
    assert json.loads((out / "progress.json").read_text())["step"] == 2
