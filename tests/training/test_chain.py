"""A chain of sessions on a CPU: parts cut and joined, a run that goes on, and a run that starts from the parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from training.chain import BATCH, send
from training.checkpoints import compact, load_weights
from training.parts import PART_BYTES, join_parts, split_folder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
QUICK = "--dataset tests.training.paired_data --device cpu --workers 1 --slots 4 --steps 2 --log-every 1 --minutes 30"
QUICK = [*QUICK.split(), *"--teacher-minutes 5 --piece-minutes 5 --only page".split()]


def run_chain(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "training.chain", "run", *QUICK, *arguments]
    environment = ENVIRONMENT | variables
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)


def chain(*arguments: str) -> str:
    done = run_chain(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("compress", [False, True])
def test_parts_are_joined_to_the_same_files(tmp_path, compress):
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "a.bin").write_bytes(os.urandom(70_000))
    (source / "below" / "b.txt").write_text("text " * 999)
    manifest = split_folder(source, tmp_path / "one", "x", 16_384, compress)
    names = [part["file"] for part in json.loads(manifest.read_text())["parts"]]
    assert len(names) >= 5 and all((tmp_path / "one" / name).stat().st_size <= 16_384 for name in names)
    (tmp_path / "two").mkdir()  # fetched in two transfers
    (tmp_path / "one" / names[1]).rename(tmp_path / "two" / names[1])
    with pytest.raises(ValueError, match=r"x\.01 is not in"):
        join_parts("x", [tmp_path / "one"], tmp_path / "joined")
    join_parts("x", [tmp_path / "one", tmp_path / "two"], tmp_path / "joined")
    for name in ("a.bin", "below/b.txt"):
        assert (tmp_path / "joined" / name).read_bytes() == (source / name).read_bytes()
    (tmp_path / "two" / names[1]).write_bytes(b"another run's")
    with pytest.raises(ValueError, match="damaged"):
        join_parts("x", [tmp_path / "one", tmp_path / "two"], tmp_path / "joined")
    assert (tmp_path / "joined" / "a.bin").is_file()  # what was there stays


def test_a_transfer_fits_what_comes_back(tmp_path):
    assert (BATCH + 2) <= 8 and BATCH * PART_BYTES < 63 * 2**20
    parts = tmp_path / "parts"
    parts.mkdir()
    names = [f"omni.{i:02d}" for i in range(BATCH + 2)]
    for name in names:
        (parts / name).write_text(name)
    (parts / "omni.json").write_text(json.dumps({"parts": [{"file": name} for name in names]}))
    (tmp_path / "chain.json").write_text("[]")
    assert send(tmp_path, tmp_path / "out", 0) + send(tmp_path, tmp_path / "again", 1) == names
    with pytest.raises(ValueError, match="no batch 2"):
        send(tmp_path, tmp_path / "out", 2)


def test_sessions_go_on_and_start_again_from_parts(base, tmp_path):
    first, out = tmp_path / "first", tmp_path / "out"
    log = chain("--base", str(base), "--folder", str(first), "--out", str(out), "--pieces", "2")
    assert "teacher" in log and log.count("piece ") >= 2 and "of exact branches" in log
    progress = json.loads((first / "omni" / "progress.json").read_text())
    assert progress["step"] == 2 + 2 + 2  # the teacher's count goes on
    assert {"omni.json", "omni.00", "chain.json"} <= {f.name for f in out.iterdir()}
    assert {"model.packed.safetensors", "config.json"} <= {f.name for f in (first / "model").iterdir()}
    # again on the same machine: the teacher is there, the schedule goes on from the state
    log = chain("--base", str(base), "--folder", str(first), "--pieces", "1")
    later = json.loads((first / "omni" / "progress.json").read_text())
    assert "teacher," not in log and later["step"] == 8 and later["minutes"] > progress["minutes"] > 0
    # on another machine: coded weights, no base, a warm-up
    elsewhere = ["--parts", str(out), "--base", str(tmp_path / "none"), "--pieces", "1"]
    log = chain("--folder", str(tmp_path / "second"), *elsewhere, "--teacher-minutes", "0")
    assert "teacher," not in log and f"lr {1.2e-3 / 30:.2e}" in log and " kl " in log
    again = json.loads((tmp_path / "second" / "omni" / "progress.json").read_text())
    assert again["step"] == 8 and again["minutes"] > progress["minutes"]
    # the base as it is, without a teacher of its own
    log = chain("--base", str(base), "--folder", str(tmp_path / "plain"), "--pieces", "1", "--teacher-minutes", "0")
    plain = json.loads((tmp_path / "plain" / "omni" / "progress.json").read_text())
    assert "teacher," not in log and " kl " in log and plain["step"] == 2
    # there are new texts: the checkpoint's text tower learns them first and teaches in a schedule of its own
    log = chain("--folder", str(tmp_path / "third"), *elsewhere, "--", "--lr", "3e-3")
    assert "teacher," in log and " kl " in log and f"lr {3e-3 / 30:.2e}" in log
    third = json.loads((tmp_path / "third" / "omni" / "progress.json").read_text())
    assert third["step"] == 10 and third["minutes"] < again["minutes"]


def test_a_run_that_cannot_begin_says_why(base, tmp_path):
    options = ("--base", str(base), "--folder", str(tmp_path / "run"), "--teacher-minutes", "0")
    missing = run_chain(*options, "--dataset", "training.office_dataset", KVMM_TRAIN_ASSETS=str(tmp_path / "assets"))
    assert missing.returncode == 1 and "Traceback" not in missing.stdout + missing.stderr
    assert f"{tmp_path}/assets/words.txt is missing; run: python -m training.assets" in missing.stdout
    assert missing.stderr == "the piece did not end well, and there is no checkpoint to go on with; its log is above\n"


def test_compact_weights_are_read_as_they_were_written(base, tmp_path):
    from safetensors.torch import save_file

    from tests.training.conftest import SMALL
    from training.model import OmniModel

    torch.manual_seed(1)
    source = tmp_path / "run"
    source.mkdir()
    save_file(OmniModel(SMALL).state_dict(), source / "weights-0.safetensors")
    for name in ("model_config.json", "tokenizer.json"):
        (source / name).write_bytes((base / name).read_bytes())
    (source / "progress.json").write_text("{}")
    compact(source, tmp_path / "once", 0.08)
    compact(tmp_path / "once", tmp_path / "twice", 0.08)
    exact, once, twice = (load_weights(tmp_path / name) for name in ("run", "once", "twice"))
    assert exact.keys() == once.keys() and "aux_head.weight" in once
    name = "model.layers.0.mlp.up_proj.weight"
    assert 0 < (once[name] - exact[name]).abs().max() < 0.03 * exact[name].abs().max()
    assert all(torch.equal(twice[name], tensor) for name, tensor in once.items())


def test_workers_do_not_outlive_a_killed_trainer(base, tmp_path):
    command = [sys.executable, "-m", "training.train", "--dataset", "tests.training.paired_data", "--device", "cpu"]
    command += [
        "--base",
        str(base),
        "--out",
        str(tmp_path / "omni"),
        "--workers",
        "2",
        "--slots",
        "2",
        "--log-every",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT) as trainer:
        while "step 1 " not in trainer.stdout.readline():
            assert trainer.poll() is None
        children = Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split()
        assert len(children) >= 2
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        for _ in range(100):
            alive = [pid for pid in children if Path(f"/proc/{pid}/cmdline").is_file() and is_running(pid)]
            if not alive:
                break
            time.sleep(0.1)
    assert not alive


def is_running(pid: str) -> bool:
    """Whether a process runs: one that has ended may wait to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
