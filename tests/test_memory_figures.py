"""Every surface shows the same memory: API, command line, evaluation, report, methods, app, planner."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from PIL import Image

from benchmarks.policy_bits import measure, sample
from kvmm import KVMMCache, policies
from kvmm.analysis.cost.plan import make_plan
from kvmm.analysis.cost.shapes import shape_of
from kvmm.analysis.methods.measure import iter_methods
from kvmm.analysis.plots import memory_by_modality
from kvmm.cache import MemoryReport
from kvmm.cli import main
from kvmm.eval.report.build import PolicyResult
from kvmm.eval.report.pages import HEAD, _row
from kvmm.eval.run.evaluate import means
from kvmm.eval.run.runner import answer_samples
from kvmm.memory_text import PACKED, WHOLE, bits_text, memory_text, ratio_text
from kvmm.models import Conversation, load_model
from kvmm.models.caches import resolve_policies
from kvmm.models.loading import cpu_multiplies_bfloat16
from kvmm.policy.costs import bits_of, plain_cost
from kvmm.ui.api import _result
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.models import Models
from kvmm.ui.parts.answers import memory_note, stats_html
from kvmm.ui.parts.sidebar import policy_html
from kvmm.ui.settings import Settings
from kvmm.ui.tabs.methods import methods_html
from kvmm.ui.tabs.planner import plan_html

QUESTION = "What is the total?"
POLICIES = ("balanced", "kivi2", "bf16")


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request):
    if request.param == "bfloat16" and not cpu_multiplies_bfloat16():
        pytest.skip("this CPU emulates bfloat16, which takes minutes, and load_model takes float32 on it")
    torch.set_num_threads(1)
    return load_model(device="cpu", dtype=request.param)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.png"
    image = Image.new("RGB", (448, 448), "white")
    image.paste((30, 30, 30), (60, 60, 300, 90))
    image.save(path)
    return path


def asked(loaded, page, policy, question=QUESTION):
    """The last step of the app's session, and the session."""
    session = Session(Models.of(*loaded), max_new_tokens=4)
    *_, step = session.ask(UserMessage(question, (str(page),) if page else ()), Settings(policy=policy))
    return session, step.progress


@pytest.mark.parametrize("policy", POLICIES)
def test_all_surfaces_show_the_same_figures(loaded, page, policy, monkeypatch, capsys):
    model, _ = loaded
    session, progress = asked(loaded, page, policy)
    report = session.conversation.cache.memory()
    sentence = memory_text(report)
    assert progress.memory == report and report.packed_tokens > 100
    if policy == "bf16":  # in float32 as in bfloat16
        assert sentence == "packed: 16.0 bits per value, whole cache: 16.0 bits"
        assert ratio_text(report.ratio) == "1.0×"

    # the app's panel, the note in the chat, and its figure
    panel = stats_html(progress)
    assert sentence in panel and f">{ratio_text(report.ratio)}<" in panel
    assert f'data-stat="bits">{report.bits_per_value:.2f}<' in panel
    assert f"the next, with packing, {progress.first_step:.2f} s later<" in panel
    assert f"packed {report.packed_bits_per_value:.2f}<" in panel
    note = memory_note(progress)["content"][0]["text"]
    assert sentence[1:] in note and f"| {PACKED} | {WHOLE} |" in note
    assert all(f"| {row['bits_per_value']:.2f} |" in note for row in report.by_modality.values())
    labels = " ".join(memory_by_modality(report).data[0].text)
    assert all(f"{row['bits_per_value']:.2f} bits" in labels for row in report.by_modality.values())

    # the app's API
    assert MemoryReport(**{k: v for k, v in _result(progress)["memory"].items() if k != "held_nbytes"}) == report

    # the command line, with the same model
    monkeypatch.setattr("kvmm.models.load_model", lambda *_, **__: loaded)
    arguments = ["ask", QUESTION, "--image", str(page), "--policy", policy, "--max-new-tokens", "4"]
    printed = json.loads(call(monkeypatch, capsys, *arguments, "--json"))["memory"]
    for name in ("nbytes_dense", "held_nbytes", "ratio", "bits_per_value", "packed_bits_per_value", "by_modality"):
        assert printed[name] == report.to_dict()[name]
    table = call(monkeypatch, capsys, *arguments)
    assert sentence in " ".join(table.split())
    total = next(line for line in table.splitlines() if line.strip().startswith(("│ total", "total")))
    assert f"{report.packed_bits_per_value:.2f}" in total and f"{report.bits_per_value:.2f}" in total

    # the planner, of the same tokens
    tokens = {name: int(row["tokens"]) for name, row in report.by_modality.items()}
    plan = make_plan(shape_of(model.config), [policy], tokens, calibration=session.conversation.cache.calibration)
    (row,) = plan.rows
    assert row.cost.bits_per_value == pytest.approx(report.bits_per_value, abs=0.05)
    assert row.cost.packed_bits_per_value == pytest.approx(report.packed_bits_per_value, abs=0.05)
    assert f"<td>{row.cost.packed_bits_per_value:.2f}</td><td>{row.cost.bits_per_value:.2f}</td>" in plan_html(plan)
    assert plan.columns[2:4] == (PACKED, WHOLE)


@pytest.mark.parametrize("policy", POLICIES)
def test_methods_show_the_figures_of_their_caches(loaded, page, policy):
    """The document is packed before the question here, so at most a page of text more or less is exact."""
    model, processor = loaded
    session, progress = asked(loaded, page, policy)
    inputs = session.prompt_inputs()
    *_, found = iter_methods(model, processor, inputs, [policy], max_new_tokens=4)
    (row,) = found.rows
    report = progress.memory
    assert row.error is None and row.ratio == pytest.approx(row.nbytes_dense / row.nbytes)
    assert row.bits == pytest.approx(16 / row.ratio)
    assert row.packed_bits == pytest.approx(report.packed_bits_per_value, abs=0.35)
    assert row.bits == pytest.approx(report.bits_per_value, abs=16 * 64 / report.tokens)
    cells = methods_html(found)
    assert f"<td>{row.packed_bits:.2f}</td><td>{row.bits:.2f}</td>" in re.sub(r"\s+<td", "<td", cells)
    assert PACKED in cells and WHOLE in cells


def test_an_evaluation_and_its_report_show_the_caches_figures(loaded, page, monkeypatch):
    from kvmm.eval.tasks import get_task
    from kvmm.eval.tasks.base import Sample
    from kvmm.models.documents import Document, answer_tokens
    from kvmm.models.prompting import encode_question

    model, processor = loaded
    task, one = get_task("docvqa"), Sample("a", QUESTION, ("12",), (page,))
    rows = list(answer_samples(model, processor, task, [one], resolve_policies(POLICIES), batch_size=1))
    for row, policy in zip(rows, POLICIES, strict=True):
        inputs = encode_question(model, processor, QUESTION, one.load_images())
        cache = Document(model, inputs).cache(policy)
        answer_tokens(model, inputs, cache, task.max_new_tokens)
        report = cache.pack().memory()
        assert row["error"] is None and row["kv_bytes"] == report.held_nbytes
        assert row["bits_per_value"] == pytest.approx(report.bits_per_value)
        assert row["packed_bits_per_value"] == pytest.approx(report.packed_bits_per_value)
        found = means([row])
        assert found["bits_per_value,none"] == pytest.approx(report.bits_per_value)
        names = ("kv_bytes", "ttft_s", "tpot_s", "output_tokens", "repetition_rate", "packed_bits_per_value")
        result = PolicyResult(
            policy, 1.0, 1, 0, found["bits_per_value,none"], kv_ratio=report.ratio, **{n: row[n] for n in names}
        )
        cells = dict(zip(HEAD, _row(result), strict=True))
        assert cells[WHOLE] == f"{report.bits_per_value:.2f}" and cells[PACKED] == f"{report.packed_bits_per_value:.2f}"
        if policy == "bf16":
            assert f"{report.bits_per_value:.1f}" == "16.0" and f"{report.ratio:.1f}" == "1.0"


@pytest.mark.parametrize("policy", ["balanced", "bf16"])
@pytest.mark.parametrize("new_tokens", [1, 4])
def test_a_short_question_is_said_in_words(loaded, policy, new_tokens):
    """Also one that is answered in a single token, before any step that would pack it."""
    model, processor = loaded
    *_, progress = Conversation(model, processor, policy).ask("Hello?", max_new_tokens=new_tokens)
    report = progress.memory
    words = f"nothing packed yet: {report.tokens} tokens stay exact"
    assert memory_text(report) == words and report.packed_tokens == 0
    assert ratio_text(report.ratio) == "1.0×" and report.bits_per_value == pytest.approx(16, abs=0.05)
    panel = stats_html(progress)
    assert words in panel and "1.0×" in panel and "0.4×" not in panel and "nothing packed yet</small>" in panel
    assert "with packing" not in panel


def test_where_most_tokens_are_exact_both_are_counted():
    report = MemoryReport(bits_per_value=11.2, packed_bits_per_value=3.1, packed_tokens=32, tokens=90)
    words = "packed: 3.1 bits per value, whole cache: 11.2 bits (58 tokens stay exact, 32 are packed)"
    assert memory_text(report) == memory_text(report.to_dict()) == words
    assert memory_text(MemoryReport()) == "empty"
    assert bits_text(3.6, None) == "whole cache: 3.6 bits per value"


@pytest.mark.parametrize("policy", ["balanced", "small", "kivi2", "bf16"])
def test_the_sidebar_promises_what_the_sample_shows(policy):
    """The committed figures, against an answer of the app's session about the same document."""
    torch.set_num_threads(1)
    session = Session(Models.of(*load_model(device="cpu")), max_new_tokens=8)
    shown = measure(session, sample(), policy)
    whole, packed = bits_of(policy)
    assert shown["bits_per_value"] == pytest.approx(whole, abs=0.05)
    assert shown["packed_bits_per_value"] == pytest.approx(packed, abs=0.05)
    line = policy_html(policy)
    assert bits_text(whole, packed) in line and plain_cost(policy) in line
    assert set(policies()) >= {policy}


def call(monkeypatch, capsys, *arguments):
    """What a command prints."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", ["kvmm", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    out, err = capsys.readouterr()
    assert not exit_.value.code, err
    return out


def test_a_cache_before_and_after_reset():
    cache = KVMMCache.for_model(load_model(device="cpu")[0], "balanced")
    assert memory_text(cache.memory()) == "empty"
