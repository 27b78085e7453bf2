"""kvmm as a model of lmms-eval, with the real package where it is installed."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.eval.answering import answer_samples, resolve_policies
from kvmm.eval.tasks import get_task

ENTRY_POINT = ("lmms_eval.models", "kvmm", "kvmm.eval.lmms_plugin:manifest")


def test_entry_point_is_declared():
    """Read from pyproject.toml: a checkout has no metadata."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    group, name, target = ENTRY_POINT
    assert project["entry-points"][group] == {name: target}
    assert "kvmm.eval.lmms_plugin" not in sys.modules or "lmms_eval" in sys.modules


def test_answers_through_lmms_eval_are_those_of_kvmm_eval():
    pytest.importorskip("lmms_eval.models.registry_v2", reason="lmms-eval is not installed")
    from lmms_eval.api.instance import Instance, unwrap_generation_output
    from lmms_eval.models.model_utils import gen_metrics
    from lmms_eval.models.registry_v2 import ModelRegistryV2

    from kvmm.eval.lmms_plugin import manifest

    torch.set_num_threads(1)
    registry = ModelRegistryV2()
    registry.register_manifest(manifest())
    found = registry.resolve("kvmm")
    assert found.model_type == "chat"
    cls = registry.get_model_class("kvmm")
    model = cls.create_from_arg_string("kv_policy=rd2,dtype=float32", {"batch_size": 2, "device": "cpu"})
    assert model.is_simple is False

    task = get_task("docvqa")
    samples = task.load("mini", limit=3).samples
    docs = [{"question": s.question, "image": s.load_images()[0]} for s in samples]
    model.task_dict = {"docvqa": {"val": docs}}

    def messages(doc: dict) -> list[dict]:
        image, text = {"type": "image", "url": doc["image"]}, {"type": "text", "text": doc["question"]}
        return [{"role": "user", "content": [image, text]}]

    settings = {"max_new_tokens": 8, "temperature": 0, "until": ["\n\n"]}
    requests = [
        Instance(
            "generate_until",
            (s.question, messages, settings, number, "docvqa", "val"),
            number,
            {"task": "docvqa", "doc_id": number, "repeats": 1},
        )
        for number, s in enumerate(samples)
    ]
    answers = [unwrap_generation_output(out) for out in model.generate_until(requests)]
    options = {"max_new_tokens": 8, "batch_size": 1}
    policies = resolve_policies(["rd2"])
    rows = list(answer_samples(model.model, model.processor, task, samples, policies, **options))
    assert [text for text, _ in answers] == [row["filtered_resps"] for row in rows]
    for (_, counts), row in zip(answers, rows, strict=True):
        assert counts.input_tokens == row["token_counts"]["prompt"]
        assert counts.output_tokens == row["token_counts"]["output"]
    assert gen_metrics.summarize_logged_metrics()["total_gen_tokens"] == sum(row["output_tokens"] for row in rows)
    with pytest.raises(KVMMError, match="Unknown policy"):
        cls.create_from_arg_string("kv_policy=nothing", {})
    with pytest.raises(KVMMError, match="no model argument nothing"):
        cls.create_from_arg_string("nothing=1", {})
    with pytest.raises(KVMMError, match="generate_until"):
        model.loglikelihood(requests)
