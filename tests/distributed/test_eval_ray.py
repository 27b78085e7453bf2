"""``--engine ray``: a local cluster of two actors, one of which is killed while it works."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.eval.run import ray_engine
from kvmm.eval.run.evaluate import run
from kvmm.eval.tasks import get_task
from kvmm.models import load_model

ROOT = Path(__file__).parents[2]
KEEP = ("doc_id", "filtered_resps", "kv_bytes", "kv_bytes_bf16", "anls", "token_counts", "tokens_by_modality", "error")
POLICIES = ("bf16", "rd2")


def test_without_ray(monkeypatch):
    monkeypatch.setattr(ray_engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KVMMError, match=r"kvmm\[ray\]"):
        ray_engine.Cluster.join()


def test_no_cluster_at_an_address():
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(KVMMError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        ray_engine.Cluster.join("127.0.0.1:1")


def test_a_killed_worker_costs_nothing(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    import psutil

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # what the actors import
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    task = get_task("docvqa")
    samples = task.load("mini", limit=8)
    model, processor = load_model(None, device="cpu", dtype="float32")
    options = {"max_new_tokens": 6, "batch_size": 1}
    one = run(model, processor, task, samples, POLICIES, tmp_path / "one", **options)

    killed = []

    def progress(done: int, total: int, row: dict) -> None:
        if not killed:
            actors = [p for p in psutil.Process().children(recursive=True) if _is_actor(p)]
            assert actors
            killed.append(actors[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    cluster = ray_engine.Cluster.join(workers=2)
    try:
        answer = cluster.runner(None, "cpu", "float32")
        machine = cluster.describe()
        two = run(
            *(model, processor, task, samples, POLICIES, tmp_path / "two"),
            **options,
            answer=answer,
            machine=machine,
            progress=progress,
        )
    finally:
        cluster.close()
    assert killed and not psutil.pid_exists(killed[0])
    assert two.results["complete"] and two.results["config"]["engine"] == "ray"
    for policy in POLICIES:
        expected, found = ([{k: row[k] for k in KEEP} for row in x.samples["docvqa"][policy]] for x in (one, two))
        assert len(found) == 8 and found == expected


def _is_actor(process) -> bool:
    try:
        return process.cmdline()[:1] != [] and process.cmdline()[0].startswith("ray::MapWorker")
    except Exception:  # it ended meanwhile
        return False
