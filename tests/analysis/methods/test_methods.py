"""All methods on one document: rows against single measurements, the front by hand, stopping, reasons."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvmm import KVMMError, policies
from kvmm.analysis import compare_methods, iter_methods, measure_drift
from kvmm.analysis.methods.measure import MethodRow, MethodsReport, question_inputs
from kvmm.media import load_image
from kvmm.models import load_model
from kvmm.models.caches import DYNAMIC, measured_bits
from kvmm.models.conversation import model_lock
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.prompting import encode_question
from kvmm.policy import get_policy
from tests.tiny_models import build, inputs

SAMPLES = Path(__file__).parents[3] / "assets" / "samples"
OPENING = [91, 92, 93]


class Tokenizer:
    """Ids as numbers in words; a template that opens answers with three tokens."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": OPENING if text == "<answer>" else []}

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(map(str, ids))


class Processor:
    tokenizer = Tokenizer()

    def apply_chat_template(self, messages, tokenize=False, add_generation_prompt=False):
        return "<ask>" + "<answer>" * add_generation_prompt


class Plain(Processor):
    """Without a template."""

    def apply_chat_template(self, *args, **kwargs):
        raise ValueError("no template")


@pytest.fixture(scope="module")
def prompt():
    return build("qwen2_5_omni"), inputs("qwen2_5_omni")


def row(name, nbytes, kl):
    return MethodRow(name, "", name, None, nbytes, 16 * nbytes, kl=kl)


def report(*rows):
    return MethodsReport(10, 8, "answer", 2, 0.1, 0.1, rows, len(rows))


def test_rows_are_what_single_measurements_say(prompt):
    model, given = prompt
    seen = []
    found = compare_methods(model, Plain(), given, ["bf16", "kivi2"], max_new_tokens=6, progress=seen.append)
    assert [len(one.rows) for one in seen] == [0, 1, 2] and seen[-1] is found
    assert [one.done for one in seen] == [False, False, True]
    document = Document(model, given)
    full = answer_tokens(model, given, document.cache(DYNAMIC), 6)
    assert found.answer == " ".join(map(str, full.tolist())) and found.document_tokens == document.length
    for one in found.rows:
        drift, _ = measure_drift(model, given, one.policy, full[None])
        assert one.kl == pytest.approx(float(drift.kl.mean()), rel=1e-5, abs=1e-9)
        assert one.kl_max == pytest.approx(float(drift.kl.max()), rel=1e-5, abs=1e-9)
        cache = document.cache(one.policy)
        tokens = answer_tokens(model, given, cache, 6)
        memory, bits = cache.memory(), measured_bits(cache)  # after the answer, as everywhere
        assert (one.positions, one.bits, one.media_bits) == (6, bits["bits"], bits["media_bits"])
        assert (one.nbytes, sum(one.by_component.values())) == (memory.held_nbytes, memory.held_nbytes)
        assert one.answer == " ".join(map(str, tokens.tolist()))
        assert one.identical == torch.equal(tokens, full) and one.tokens == 6
        assert one.pack_seconds > 0 and one.answer_seconds > 0
    exact, two = found.rows
    assert exact.kl < 1e-6 and exact.identical and two.kl > 1e-3 and two.nbytes < exact.nbytes
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_a_model_cannot_have_is_a_row_with_its_reason(prompt):
    model, given = prompt
    deep = replace(get_policy("kivi2"), name="deep", skip_layers=(7,))
    found = compare_methods(model, Plain(), given, [deep, "kivi2"], max_new_tokens=2)
    broken, fine = found.rows
    assert broken.policy == "deep" and broken.nbytes is None and fine.error is None
    assert "names layer 7, but the model has 2" in broken.error
    assert found.pareto() == ("kivi2",) and found.done
    json.dumps(found.to_dict(), allow_nan=False)


def test_all_presets_without_a_calibration_file(prompt):
    model, given = prompt
    found = compare_methods(model, Plain(), given, max_new_tokens=2)
    assert [one.policy for one in found.rows] == list(policies())
    stored = {one.policy: one.stored_as for one in found.rows}
    assert stored["balanced"] == "oscar4-2" and stored["small"] == "oscar2" and stored["rd2"] == "rd2"
    same = {one.policy: (one.nbytes, one.kl) for one in found.measured()}
    assert same["balanced"] == same["oscar4-2"]


def test_an_unknown_policy_is_an_error_at_once(prompt):
    model, given = prompt
    with pytest.raises(KVMMError, match="nothing"):
        compare_methods(model, Plain(), given, ["kivi2", "nothing"])
    with pytest.raises(KVMMError, match="at least one"):
        compare_methods(model, Plain(), given, [])


def test_it_stops_between_rows_and_lets_others_have_the_model(prompt):
    model, given = prompt
    stop = threading.Event()
    rows = iter_methods(model, Plain(), given, ["bf16", "kivi2", "kivi4"], max_new_tokens=2, stop=stop)
    next(rows)
    assert next(rows).rows[0].policy == "bf16"
    assert model_lock(model).acquire(timeout=1), "the model is free between rows"
    model_lock(model).release()
    stop.set()
    (last,) = rows
    assert last.stopped and last.done and len(last.rows) == 1 and last.total == 3


def test_it_stops_within_an_answer(prompt):
    model, given = prompt
    stop = threading.Event()
    stop.set()
    *_, last = iter_methods(model, Plain(), given, ["bf16"], max_new_tokens=200, stop=stop)
    assert last.stopped and not last.rows and last.answer_tokens < 5


def test_an_error_gives_the_model_back():
    model, given = build("llama"), {"input_ids": torch.full((1, 1023), 5)}  # of 1024 positions
    with pytest.raises(KVMMError, match="positions"):
        compare_methods(model, Plain(), given, ["bf16"], max_new_tokens=4)
    assert model_lock(model).acquire(timeout=1)
    model_lock(model).release()


def test_the_prompt_ends_where_the_last_answer_begins(prompt):
    _, given = prompt
    count = given["input_ids"].shape[1]

    def with_tail(*tokens):
        ids = torch.cat([given["input_ids"], torch.tensor([tokens])], 1)
        return {**given, "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    asked = with_tail(*OPENING)
    assert question_inputs(Processor(), asked)["input_ids"].shape[1] == count + 3
    answered = question_inputs(Processor(), with_tail(*OPENING, 5, 6))
    assert torch.equal(answered["input_ids"], asked["input_ids"])
    assert answered["attention_mask"].shape == answered["input_ids"].shape
    assert answered["pixel_values"] is given["pixel_values"]
    twice = with_tail(*OPENING, 5, *OPENING, 6, 7)
    assert question_inputs(Processor(), twice)["input_ids"].shape[1] == count + 7, "the last of two answers"
    assert question_inputs(Processor(), given)["input_ids"].shape[1] == count, "no answer: all of it"
    assert question_inputs(Plain(), answered)["input_ids"].shape[1] == count + 3
    assert question_inputs(Processor(), twice, 20)["input_ids"].shape[1] == 20
    with pytest.raises(KVMMError, match="cannot be asked"):
        question_inputs(Processor(), given, count + 1)


def test_text_without_media():
    given = {"input_ids": torch.randint(3, 110, (1, 300), generator=torch.Generator().manual_seed(0))}
    found = compare_methods(build("llama"), Plain(), given, ["bf16", "kivi2"], max_new_tokens=3)
    assert found.document_tokens == 299 and found.rows[0].identical and found.rows[0].media_bits is None
    assert found.rows[1].kl > found.rows[0].kl


def test_front():
    found = report(
        row("large", 100, 0.0),
        row("mid", 50, 0.1),
        row("beaten", 60, 0.2),
        row("equal", 50, 0.1),
        row("small", 10, 1.0),
    )
    assert found.pareto() == ("small", "mid", "equal", "large")
    dear = report(row("worse", 60, 0.1), row("better", 50, 0.1), MethodRow("none", "", "none", error="why"))
    assert dear.pareto() == ("better",)


def test_the_embedded_model_on_a_page():
    """What the app shows of the invoice: two bits keep the answer, one-bit min/max levels do not."""
    model, processor = load_model()
    given = encode_question(model, processor, "What is the total?", [load_image(SAMPLES / "invoice.png")])
    found = compare_methods(model, processor, given, ["bf16", "balanced", "rd1", "calibquant1"], max_new_tokens=12)
    exact, balanced, one, paper = found.rows
    assert exact.identical and balanced.identical and found.answer == balanced.answer != ""
    assert exact.kl <= balanced.kl < 1e-3 < paper.kl and one.kl < paper.kl
    assert balanced.media_bits < 2.5 and one.media_bits < 1.3
    assert "calibquant1" not in found.pareto() or paper.nbytes < one.nbytes
    assert get_policy("balanced").description == balanced.description
