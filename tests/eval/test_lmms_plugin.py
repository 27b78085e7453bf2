"""kvmm as a model of lmms-eval: what its entry point promises, and a whole run where lmms-eval is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

from kvmm.errors import KVMMError
from kvmm.eval.run.runner import answer_samples
from kvmm.eval.tasks import get_task
from kvmm.eval.tasks.docvqa import SUFFIX
from kvmm.models import load_model
from kvmm.models.caches import resolve_policies

ROOT = Path(__file__).parents[2]
MINI = ROOT / "assets" / "mini" / "docvqa"
TARGET = "kvmm.eval.lmms_plugin:manifest"
LIMIT = 4

needs_lmms_eval = pytest.mark.skipif(importlib.util.find_spec("lmms_eval") is None, reason="lmms-eval is not installed")


def entry_points() -> dict[str, str]:
    """Read from pyproject.toml: a checkout has no metadata, or old ones."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["lmms_eval.models"]


def test_entry_point_names_the_plugin():
    assert entry_points() == {"kvmm": TARGET}
    module, _, name = TARGET.partition(":")
    source = Path(importlib.util.find_spec(module).origin).read_text()
    assert f"def {name}() -> ModelManifest:" in source and "class KVMM(lmms):" in source


def test_kvmm_does_not_need_lmms_eval():
    """Everything but the plug-in itself is imported without it."""
    code = (
        "import sys; sys.modules['lmms_eval'] = None; import kvmm.cli; from kvmm.eval.run import chat_adapter, launch"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.fixture(scope="module")
def lmms_eval(tmp_path_factory):
    """``lmms_eval(policy, batch_size)`` runs lmms-eval's command on four questions: its results and sample lines."""
    folder = tmp_path_factory.mktemp("lmms")
    metadata, tasks = folder / "installed" / "kvmm-0.0.0.dist-info", folder / "tasks"
    metadata.mkdir(parents=True)
    tasks.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvmm\nVersion: 0.0.0\n")
    lines = [f"{name} = {target}" for name, target in entry_points().items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[lmms_eval.models]", *lines, ""]))
    (questions,) = MINI.glob("*.json")
    config = {
        "task": "mini_docvqa",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(questions)}, "field": "data"},
        "test_split": "validation",
        "output_type": "generate_until",
        "doc_to_target": "answers",
        "generation_kwargs": {"max_new_tokens": 32, "temperature": 0, "do_sample": False},
        "metric_list": [{"metric": "anls", "aggregation": "mean", "higher_is_better": True}],
    }
    functions = "doc_to_visual: !function utils.pages\ndoc_to_text: !function utils.question\n"
    (tasks / "mini_docvqa.yaml").write_text(yaml.safe_dump(config) + functions)
    (tasks / "utils.py").write_text(
        textwrap.dedent(f"""
        from pathlib import Path

        from PIL import Image


        def pages(doc):
            return [Image.open(Path({str(MINI)!r}) / doc["image"]).convert("RGB")]


        def question(doc, lmms_eval_specific_kwargs=None):
            return doc["question"] + {SUFFIX!r}
        """)
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "installed"), str(ROOT)]),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }

    def run(policy: str, batch_size: int) -> tuple[dict, list[dict]]:
        out = folder / policy
        arguments = {
            "model": "kvmm",
            "model_args": f"kv_policy={policy},dtype=float32",
            "tasks": "mini_docvqa",
            "include_path": tasks,
            "limit": LIMIT,
            "batch_size": batch_size,
            "device": "cpu",
            "output_path": out,
        }
        command = [sys.executable, "-m", "lmms_eval", "--log_samples"]
        command += [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0 and list(out.rglob("*_results.json")), done.stdout[-3000:] + done.stderr[-3000:]
        assert f"mini_docvqa: {LIMIT} answers, KV cache" in done.stdout
        (results,), (samples,) = out.rglob("*_results.json"), out.rglob("*_samples_mini_docvqa.jsonl")
        return json.loads(results.read_text()), [json.loads(line) for line in samples.read_text().splitlines()]

    return run


@pytest.fixture(scope="module")
def rows():
    """What ``kvmm eval docvqa --data mini --limit 4`` finds."""
    torch.set_num_threads(1)
    task = get_task("docvqa")
    model, processor = load_model(None, device="cpu", dtype="float32")
    samples = task.load("mini", limit=LIMIT).samples
    found = answer_samples(model, processor, task, samples, resolve_policies(["rd2", "bf16"]), batch_size=1)
    return [dict(row) for row in found]


@needs_lmms_eval
@pytest.mark.parametrize(("policy", "batch_size"), [("rd2", 1), ("bf16", 3)])
def test_a_run_finds_what_kvmm_eval_finds(lmms_eval, rows, policy, batch_size):
    results, lines = lmms_eval(policy, batch_size)
    wanted = {row["doc_id"]: row for row in rows if row["policy"] == policy}
    assert len(lines) == len(wanted) == LIMIT
    for line, row in zip(lines, wanted.values(), strict=True):
        (counts,) = line["token_counts"]
        assert line["filtered_resps"] == [row["filtered_resps"]] or line["filtered_resps"] == row["filtered_resps"]
        assert line["anls"] == pytest.approx(row["anls"])
        assert counts["input_tokens"] == row["token_counts"]["prompt"]
        assert counts["output_tokens"] == row["token_counts"]["output"]
        assert counts["tokens_by_modality"] == row["tokens_by_modality"]
        if batch_size == 1:
            assert counts["kv_bytes"] == row["kv_bytes"] and counts["kv_bytes_bf16"] == row["kv_bytes_bf16"]
    assert results["results"]["mini_docvqa"]["anls,none"] == pytest.approx(
        sum(row["anls"] for row in wanted.values()) / LIMIT
    )
    held, dense = (sum(line["token_counts"][0][key] for line in lines) for key in ("kv_bytes", "kv_bytes_bf16"))
    assert results["throughput"]["avg_bits_per_value"] == pytest.approx(16 * held / dense)


@needs_lmms_eval
def test_model_arguments():
    from kvmm.eval.lmms_plugin import KVMM

    arguments = "kv_policy=kivi2,dtype=float32,key_bits=4,residual_length=8,max_pixels=250000,min_pixels=210000"
    model = KVMM.create_from_arg_string(arguments, {"batch_size": "auto", "device": "cpu"})
    assert model.is_simple is False and (model.rank, model.world_size, model.batch_size) == (0, 1, 1)
    assert model.policy.image.key.bits == 4 and model.policy.image.value.bits == 2
    assert model.policy.residual_length == 8
    size = model.processor.image_processor.size
    assert (size["shortest_edge"], size["longest_edge"]) == (210000, 250000)
    for refused in (model.loglikelihood, model.generate_until_multi_round):
        with pytest.raises(KVMMError, match="choose a generate_until task"):
            refused([])
    for wrong, match in (
        ("kv_policy=nothing", "Unknown policy"),
        ("nothing=1", "no model argument nothing: use pretrained"),
        ("kv_policy=dynamic,key_bits=2", "key_bits cannot change kv_policy=dynamic"),
        ("kv_policy=rd2,max_pixels=1000", "give both"),
    ):
        with pytest.raises(KVMMError, match=match):
            KVMM.create_from_arg_string(wrong, {"device": "cpu"})
    with pytest.raises(KVMMError, match="batch_size"):
        KVMM.create_from_arg_string("kv_policy=rd2", {"batch_size": "many", "device": "cpu"})
