"""The report: what it measures on a tiny model, its JSON, its schema, and the prompts it is made from."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvmm import KVMMError, KVPolicy, get_policy
from kvmm.analysis.drift import prompts as make
from kvmm.analysis.drift.report import DriftReport, fields_of, tables, validate
from kvmm.analysis.drift.run import DriftPrompt, make_report, run_drift
from kvmm.models.caches import DYNAMIC, resolve_policies
from kvmm.models.documents import Document
from tests.tiny_models import build, inputs

WORDS = "abcdefghijklmnopqrstuvwxyz"


class Letters:
    """A tokenizer of letters."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *(3 + ord(c) % 100 for c in text)]}

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(WORDS[i % 26] for i in ids)


@pytest.fixture(scope="module")
def report() -> DriftReport:
    """Two prompts of an image and text, one shared; every metric."""
    model, prompt = build("qwen2_5_vl"), inputs("qwen2_5_vl")
    prompts = [
        DriftPrompt(lambda: prompt, document="first", references=("no such answer",), place=(1, 2)),
        DriftPrompt(lambda: prompt, document="first", max_new_tokens=5),
        DriftPrompt(lambda: inputs("qwen2_5_vl", seed=1), references=("none",), place=(2, 2)),
        DriftPrompt(lambda: prompt, forced_only=True, max_new_tokens=30),
    ]
    exact = {"residual_length": 0, "flush_length": 32, "exact_dtype": "model"}
    chosen = resolve_policies([get_policy(name, **exact) for name in ("bf16", "kivi4", "kivi2")])
    return make_report(
        model, Letters(), prompts, chosen, name="random", command="test", settings={"limit": None, "prefill": [1, 2]},
        answers=True, seeds=2, max_new_tokens=20, temperature=0.7,
    )  # fmt: skip


def test_every_metric_is_measured(report):
    exact, four, two = report.policies
    assert [one.policy for one in report.policies] == ["bf16", "kivi4", "kivi2"] and report.prompts == 4
    assert report.model == "random" and report.device == "cpu" and report.versions["torch"] == torch.__version__
    assert exact.logits.positions == 20 + 5 + 20 + 30
    assert exact.logits.kl_max < 1e-5 and exact.logits.top1_agreement == 1
    assert exact.logits.kl_mean < four.logits.kl_mean < two.logits.kl_mean
    assert 0 < two.kl_error < two.logits.kl_mean
    assert exact.median_kl < four.median_kl < two.median_kl
    assert exact.agreement.identical == 1 and two.agreement.identical < 1
    assert exact.length.answers == 3 and exact.length.mean_tokens == 15  # no end token: 20, 5 and 20
    assert exact.seeds.same_seed == 1 and exact.seeds.gap == 0 and exact.seeds.seeds == 2
    assert exact.seeds.prompts == 3 and exact.seeds.temperature == 0.7
    assert exact.refusals.rate == 0 and exact.early_stop.earlier == 0
    assert [row.page for row in exact.retrieval.by_page] == [1, 2] and exact.retrieval.spread == 0
    assert two.bits.packed_bits < four.bits.packed_bits < exact.bits.packed_bits and exact.tier_flips is None
    assert two.tail.by_position[0].positions == 20


def test_seeds_draw_different_answers_and_repeat():
    model, prompt = build("llama"), inputs("llama")
    prompts = [DriftPrompt(lambda: prompt, packed=20)]
    (first,), (again,) = (
        run_drift(model, Letters(), prompts, resolve_policies(["bf16"]), seeds=3, max_new_tokens=10) for _ in range(2)
    )
    assert first.seeds == again.seeds and first.seeds.full_full < 1 and first.length is None


def test_round_trip(report, tmp_path: Path):
    path = tmp_path / "deep" / "report.json"
    report.save(path)
    read = json.loads(path.read_text())
    assert read["format_version"] == 1 and read["policies"][2]["logits"]["kl_mean"] > 0
    assert validate(read) == [] and read["fields"] == fields_of(DriftReport)
    again = DriftReport.from_dict(read)
    assert again.policies == report.policies and again.to_dict() == read


def test_every_damage_is_found(report):
    sound = report.to_dict()

    def problems(change) -> list[str]:
        damaged = copy.deepcopy(sound)
        change(damaged)
        found = validate(damaged)
        with pytest.raises(KVMMError, match="not a valid drift report"):
            DriftReport.from_dict(damaged)
        return found

    def first(name):
        return lambda r: r["policies"][0][name]

    for change, match in [
        (lambda r: r.pop("format"), "format"),
        (lambda r: r.update(format_version=99), "version 99"),
        (lambda r: r["fields"]["LogitDrift"].pop("kl_mean"), "fields that it states"),
        (lambda r: r.pop("device"), "report.device is missing"),
        (lambda r: r.update(seconds=1), "report.seconds is unknown"),
        (lambda r: r.update(policies={}), "report.policies is not a list"),
        (lambda r: first("logits")(r).update(kl_mean=float("nan")), "kl_mean is not a finite number"),
        (lambda r: first("logits")(r).update(kl_max=-1.0), "kl_max is out of range"),
        (lambda r: first("logits")(r).update(top1_agreement=1.5), "top1_agreement is out of range"),
        (lambda r: first("logits")(r).update(positions="75"), "positions is not a finite whole number"),
        (lambda r: first("logits")(r).update(positions=True), "positions is not a finite whole number"),
        (lambda r: first("logits")(r).update(kl_mean=None), "kl_mean is not a finite number"),
        (lambda r: r["policies"][1].update(policy=None), r"policies[1].policy is not a str"),
        (lambda r: first("tail")(r)["by_position"][0].pop("end"), r"by_position[0].end is missing"),
        (lambda r: r["policies"][0].update(bits=3.0), "bits is not an object"),
    ]:
        assert any(match in problem for problem in problems(change)), (match, problems(change))
    assert validate([]) and validate({})


def test_an_unsound_report_is_not_written(report, tmp_path: Path):
    broken = replace(report, prompts=-1)
    with pytest.raises(KVMMError, match=r"prompts is out of range"):
        broken.save(tmp_path / "report.json")
    assert not (tmp_path / "report.json").exists()
    with pytest.raises(KVMMError, match="cannot be written"):
        report.save(tmp_path)


def test_tables_leave_out_what_was_not_measured(report):
    drift, answers = tables(report)
    assert drift.columns[:3] == ("policy", "whole", "packed") and len(drift.rows) == 3
    assert "tier flips" not in answers.columns
    assert "seed gap" in answers.columns and all(len(row) == len(answers.columns) for row in answers.rows)
    bare = replace(report, policies=tuple(replace(one, length=None) for one in report.policies))
    assert len(tables(bare)) == 1


def test_policies_are_resolved_once():
    mine = KVPolicy("mine")
    assert list(resolve_policies(["kivi2", mine])) == ["kivi2", "mine"]
    for given, match in [(["kivi2", "kivi2"], "Two policies"), ([], "no policy"), (["nothing"], "nothing")]:
        with pytest.raises(KVMMError, match=match):
            resolve_policies(given)
    assert resolve_policies([DYNAMIC, mine]) == {DYNAMIC: DYNAMIC, "mine": mine}
    for name in (DYNAMIC, "hf-quanto"):  # a reference or a peer, where only kvmm's caches are measured
        with pytest.raises(KVMMError, match=name):
            resolve_policies([name], transformers_caches=False)


def test_runs_without_prompts_or_with_one_seed_are_refused():
    model = build("llama")
    with pytest.raises(KVMMError, match="no prompt"):
        run_drift(model, Letters(), [], {})
    with pytest.raises(KVMMError, match="2 or more"):
        run_drift(model, Letters(), [DriftPrompt(lambda: inputs("llama"))], {}, seeds=1)


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_text_is_cut_where_it_or_the_model_ends():
    model = build("llama")  # 1024 positions
    long, short = "x" * 3000, "y" * 99
    first, second = make.text_prompts(model, Letters(), long, [100, 1000], 512)
    assert first.encode()["input_ids"].shape == (1, 101) and first.packed == 100
    assert first.continuation.shape == (1, 511) and second.continuation.shape == (1, 23)
    (third,) = make.text_prompts(model, Letters(), short, [50], 512)
    assert third.continuation.shape == (1, 49)  # 100 tokens with the first one
    for length in (98, 500):
        with pytest.raises(KVMMError, match=r"notes.txt has 100 tokens and the model 1024 positions"):
            make.text_prompts(model, Letters(), short, [length], 512, "notes.txt")
    with pytest.raises(KVMMError, match="prefill 1022"):
        make.text_prompts(model, Letters(), long, [1022], 512)
    with pytest.raises(KVMMError, match="prefill 0"):
        make.text_prompts(model, Letters(), long, [0], 512)


def test_a_prompt_may_begin_further_on():
    model, words = build("llama"), "".join(chr(97 + at % 26) for at in range(300))
    (whole,) = make.text_prompts(model, Letters(), words, [200], 512)
    (part,) = make.text_prompts(model, Letters(), words, [50], 512, start=150)
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(part.encode()[name], whole.encode()[name][:, -51:])
    assert torch.equal(part.continuation, whole.continuation)
    with pytest.raises(KVMMError, match=r"notes.txt has 51 tokens after the first 250"):
        make.text_prompts(model, Letters(), words, [200], 512, "notes.txt", 250)


def test_a_text_is_measured():
    model = build("llama")
    prompts = make.text_prompts(model, Letters(), WORDS * 20, [150, 300], 64)
    chosen = resolve_policies([get_policy(name, residual_length=0, flush_length=32) for name in ("kivi4", "kivi2")])
    four, two = run_drift(model, Letters(), prompts, chosen)
    assert four.logits.positions == 2 * 63 and 0 < four.logits.kl_mean < two.logits.kl_mean
    assert [bucket.start for bucket in two.tail.by_context] == [0, 256] and two.bits.media_bits is None


def test_a_policy_with_a_budget_reports_its_flips():
    model = build("llama")
    prompts = make.text_prompts(model, Letters(), WORDS * 30, [600], 64)
    free = get_policy("spherical-high", residual_length=0, flush_length=32)
    (full,) = run_drift(model, Letters(), prompts, resolve_policies([free]), answers=True, max_new_tokens=3)
    cache = Document(model, prompts[0].encode(), 600).cache(free)
    tight = resolve_policies([replace(free, budget=cache.memory().nbytes * 9 // 10)])
    (one,) = run_drift(model, Letters(), prompts, tight, answers=True, max_new_tokens=3)
    assert full.tier_flips is None
    assert one.tier_flips.decisions > 0 and one.tier_flips.rate == one.tier_flips.flips / one.tier_flips.decisions < 1
    assert one.bits.bits < full.bits.bits


@pytest.fixture
def data(tmp_path: Path) -> Path:
    def line(image, kind, **more):
        turn = {"question": f"What is {image}?", "answers": [image]}
        return {"images": [image], "audio": None, "kind": kind, **more, "turns": [turn]}

    lines = [
        line("a.png", "letter"),
        line("a.png", "letter"),
        line("b.png", "table"),
        line("c.png", "sign"),
        {"images": [], "audio": "d.wav", "question": "Who called?", "answers": []},
        {"images": ["a.png", "b.png"], "question": "Which?", "answers": ["x"], "page": 2},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in lines) + "\n\n")
    return path


def test_lines_of_data(data):
    lines = make.read_lines(data)
    assert lines[0]["images"] == [data.parent / "a.png"] and lines[0]["question"] == "What is a.png?"
    assert lines[4]["audio"] == data.parent / "d.wav" and lines[5]["page"] == 2
    prompts = make.line_prompts(None, None, lines)
    assert prompts[0].document == prompts[1].document != prompts[2].document
    assert prompts[0].place is None and prompts[5].place == (2, 2) and prompts[5].references == ("x",)


def test_transcriptions_follow_the_last_question_about_a_page(data):
    lines = make.with_transcriptions(make.read_lines(data), 7)
    assert [line["question"] for line in lines] == [
        "What is a.png?",
        "What is a.png?",
        make.TRANSCRIBE,
        "What is b.png?",
        make.TRANSCRIBE,
        "What is c.png?",
        make.TRANSCRIBE,
        "Who called?",
        make.DESCRIBE,
        "Which?",
    ]
    prompt = make.line_prompts(None, None, lines)[2]
    assert prompt.forced_only and prompt.max_new_tokens == 7 and prompt.document[0].name == "a.png"
    assert make.with_transcriptions(make.read_lines(data), 0) == make.read_lines(data)


def test_pages_are_hidden_among_others_at_every_place(data):
    hidden = make.hidden_pages(make.read_lines(data), 3)
    assert len(hidden) == 4 * 3  # four questions about single pages
    names = [[path.name for path in line["images"]] for line in hidden[:3]]
    assert names == [["a.png", "b.png", "c.png"], ["b.png", "a.png", "c.png"], ["b.png", "c.png", "a.png"]]
    assert [line["page"] for line in hidden[:3]] == [1, 2, 3] and hidden[0]["question"] == "What is a.png?"
    with pytest.raises(KVMMError, match="among 5 pages"):
        make.hidden_pages(make.read_lines(data), 5)


def test_data_that_cannot_be_read(tmp_path):
    bad = tmp_path / "bad.jsonl"
    for content, match in [("{", "Line 1"), ('{"images": []}', "Line 1"), ("[1]", "Line 1"), ("\n", "no questions")]:
        bad.write_text(content)
        with pytest.raises(KVMMError, match=match):
            make.read_lines(bad)
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(KVMMError, match="cannot be read"):
            make.read_lines(path)


def test_a_limit_spreads_over_the_data():
    assert make.shortened(list(range(10)), 4) == [0, 2, 5, 7]
    assert make.shortened([1, 2], 5) == [1, 2] == make.shortened([1, 2], None)
