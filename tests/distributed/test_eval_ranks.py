"""``accelerate launch -m kvmm eval``: two processes share the questions, and the result is that of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvmm.eval.run.evaluate import run
from kvmm.eval.run.records import read_run
from kvmm.eval.tasks import get_task
from kvmm.models import load_model

ROOT = Path(__file__).parents[2]
OPTIONS = ("docvqa", "--data", "mini", "--limit", "4", "--policies", "bf16", "rd2", "--max-new-tokens", "8")


def evaluate(out: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    command = [*launcher, "-m", "kvmm", "eval", *OPTIONS, "--out", str(out)]
    command += ["--device", "cpu", "--dtype", "float32"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_processes_answer_as_one(tmp_path: Path):
    accelerate = Path(sys.executable).with_name("accelerate")
    launcher = str(accelerate) if accelerate.exists() else shutil.which("accelerate")
    # --multi_gpu is accelerate's name for one process a device on this host; without it, it starts one on a CPU
    two = (launcher, "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
    two += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
    done = evaluate(tmp_path / "two", *two)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Results:") == 1  # one of the two talks
    task = get_task("docvqa")
    model, processor = load_model(None, device="cpu", dtype="float32")
    options = {"model_name": "tiny-omni", "max_new_tokens": 8}
    run(model, processor, task, task.load("mini", limit=4), ("bf16", "rd2"), tmp_path / "one", **options)
    runs = [read_run(tmp_path / name) for name in ("one", "two")]
    assert [found.results["config"]["processes"] for found in runs] == [1, 2]
    assert not list(runs[1].folder.glob("*rank*"))
    keep = (
        "doc_id",
        "filtered_resps",
        "kv_bytes",
        "kv_bytes_bf16",
        "anls",
        "token_counts",
        "tokens_by_modality",
        "error",
    )
    for policy in ("bf16", "rd2"):
        one, two = ([{k: row[k] for k in keep} for row in x.samples["docvqa"][policy]] for x in runs)
        assert len(one) == 4 and one == two
        assert runs[0].scores("docvqa", policy)["anls"] == runs[1].scores("docvqa", policy)["anls"]
    assert runs[1].results["complete"] and runs[1].results["throughput"]["total_requests"] == 8
