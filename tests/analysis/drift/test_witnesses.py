"""Witnesses W1 to W8: their figures, their verdicts, and tool calls against a real schema."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.utils import get_json_schema

from kvmm import KVMMError
from kvmm.analysis.drift.answer_metrics import GeneratedAnswer, length_drift, refusal_flips
from kvmm.analysis.drift.measure import long_context_tail, summarise
from kvmm.analysis.drift.prompts import tool_prompts
from kvmm.analysis.drift.report import Bits, DriftReport, PolicyReport
from kvmm.analysis.drift.tool_calls import ToolSchemas, schema_integrity
from kvmm.analysis.drift.tool_run import read_tools
from kvmm.analysis.drift.witnesses import Thresholds, lines, save_verdicts, tails, verdicts, witnesses
from kvmm.eval.metrics import is_refusal
from kvmm.models import assets_folder
from kvmm.models.forced_text import PositionDrift, compare_logits

OFFICE = Path(__file__).resolve().parents[3] / "benchmarks" / "tools" / "office.json"


def convert(amount: float, currency: str, places: int = 2) -> str:
    """
    Convert an amount of euros.

    Args:
        amount: euros
        currency: into what (choices: ["USD", "GBP"])
        places: decimals
    """
    return f"{amount:.{places}f} {currency}"


SCHEMAS = ToolSchemas([get_json_schema(convert)])


def call(**arguments):
    return json.dumps({"name": "convert", "arguments": arguments})


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (call(amount=4.5, currency="USD"), True),
        (f"<tool_call>\n{call(amount=4, currency='GBP', places=1)}\n</tool_call>", True),
        (f"Here it is:\n```json\n{call(amount=4, currency='GBP')}\n```", True),
        (call(amount=4.5, currency="USD")[:-2], False),
        (call(amount="4.5", currency="USD"), False),
        (call(amount=4.5), False),
        (call(amount=4.5, currency="EUR"), False),
        (call(amount=4.5, currency="USD", when="now"), False),
        (json.dumps({"name": "convrt", "arguments": {"amount": 1, "currency": "USD"}}), False),
        (json.dumps([1, 2]), False),
        ("[" * 60000, False),
        ("4.50 USD", False),
        (call(amount=float("nan"), currency="USD"), False),
        (call(amount=float("inf"), currency="USD"), False),
        (call(amount=1, currency="USD", places=1).replace('"places": 1', '"places": ' + "9" * 5000), False),
    ],
)
def test_a_tool_call_meets_its_schema_or_not(text, valid):
    assert (SCHEMAS.call(text) is not None) == valid


def schema(**parameters):
    return {"type": "function", "function": {"name": "convert", "parameters": {"type": "object", **parameters}}}


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "/$defs/none is not in it"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}, "http://127.0.0.1:9/schema.json is not"),
        ({"properties": {"a": {"$ref": "#anchor"}}}, "$ref anchor is not in it"),
        ({"$ref": "#/x", "x": {"items": {"$ref": "#/y"}}}, "/y is not in it"),
        ({"properties": {"a": {"$ref": "#/properties/b/default"}, "b": {"default": 3}}}, "3 is not of type"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}}}, "leads back to itself"),
    ],
)
def test_references_that_lead_nowhere_are_refused(parameters, says, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a schema was fetched"))
    with pytest.raises(KVMMError, match="are no JSON Schema") as error:
        ToolSchemas([schema(**parameters)])
    assert says in str(error.value) and "\n" not in str(error.value)


def test_references_that_lead_somewhere():
    tree = schema(
        properties={"a": {"$ref": "#/$defs/tree"}}, **{"$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}}}}
    )
    assert ToolSchemas([tree]).call(call(a=[[], [[]]])) is not None
    assert ToolSchemas([schema(properties={"$ref": {"enum": [{"$ref": "#/none"}]}})]).call(call()) is not None


def test_answers_that_a_schema_cannot_be_put_to():
    halves = ToolSchemas([schema(properties={"a": {"multipleOf": 0.5}})])
    assert halves.call(call(a=1.5)) is not None and halves.call(call(a=1.2)) is None
    assert halves.call(call(a=1).replace('"a": 1', '"a": 1e400')) is None  # infinite where it is read
    deep = ToolSchemas(
        [schema(properties={"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}})]
    )
    assert deep.call(call(a=0).replace('"a": 0', '"a": ' + "[" * 700 + "]" * 700)) is None


def test_schema_integrity():
    good, other, broken = call(amount=1, currency="USD"), call(amount=2, currency="USD"), call(amount=1)
    found = schema_integrity([good, good, good, "prose"], [good, other, broken, good], SCHEMAS)
    assert (found.answers, found.valid_full, found.valid) == (4, 0.75, 0.75)
    assert found.kept == pytest.approx(2 / 3) and found.same == pytest.approx(1 / 3)
    assert schema_integrity(["prose"], ["prose"], SCHEMAS).kept is None
    with pytest.raises(KVMMError, match="pass pairs"):
        schema_integrity([], [], SCHEMAS)
    with pytest.raises(KVMMError, match="name and parameters"):
        ToolSchemas([{"type": "function"}])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("Unfortunately, I am unable to read it.", True),
        ("The document does not mention a date.", True),
        ("This scanned page doesn't contain that figure.", True),
        ("Cannot be determined from the image.", True),
        ("I can see 42 boxes.", False),
        ("The document mentions 1998.", False),
        ("Sorry, Inc.", False),
    ],
)
def test_refusals_in_general_words(text, expected):
    assert is_refusal(text) == expected
    assert not is_refusal(text, ("It does not say.",))


def test_divergences():
    g = torch.Generator().manual_seed(0)
    full, other = torch.randn(5, 11, generator=g), torch.randn(5, 11, generator=g)
    found = compare_logits(full, other)
    p, q = full.double().softmax(-1), other.double().softmax(-1)
    m = (p + q) / 2
    expected = ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2
    torch.testing.assert_close(found["js"].double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found["js"], compare_logits(other, full)["js"])
    torch.testing.assert_close(
        found["difference"].double(), (p * (p.log() - q.log()).abs()).sum(-1), atol=1e-5, rtol=1e-5
    )
    apart = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    found = compare_logits(apart, apart.flip(0))
    torch.testing.assert_close(found["js"], torch.full((2,), math.log(2)))
    assert torch.equal(found["difference"], torch.zeros(2)) and bool(torch.isinf(found["kl"]).all())
    assert float(compare_logits(full, full)["js"].max()) < 1e-6


def measured(kl, **answers):
    kl = np.asarray(kl, dtype=np.float32)
    count = len(kl)
    one, zero = np.ones(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
    place = np.arange(count) / np.float32(count)
    drift = PositionDrift(kl, kl / 4, kl, one.astype(bool), one, zero, zero, np.arange(100, 100 + count), place)
    fields = dict.fromkeys((f.name for f in dataclasses.fields(PolicyReport)), None)
    fields |= {"policy": "p", "bits": Bits(2.0, 2.0, None, None), "logits": summarise(drift)}
    fields |= {"tail": long_context_tail(drift), "median_kl": float(np.median(kl)), "median_top1": 1.0}
    return PolicyReport(**(fields | answers)), drift


def test_each_witness_has_a_verdict_of_its_own():
    full = [GeneratedAnswer(tuple(range(10)), "ten", True)] * 2
    short = [GeneratedAnswer(tuple(range(5)), "I cannot say.", True)] * 2
    quiet = measured([0.01] * 40, length=length_drift(full, full), refusals=refusal_flips(full, full))
    found = witnesses(*quiet)
    assert [one.number for one in found] == list(range(1, 9))
    assert [one.passed for one in found] == [True, True, None, True, None, True, None, None]
    loud = measured([0.01] * 30 + [2.0] * 10, length=length_drift(full, short), refusals=refusal_flips(full, short))
    found = witnesses(*loud)
    assert [one.passed for one in found] == [False, False, None, False, None, False, None, None]
    shown = lines(found)
    assert shown[0].startswith("W1 length drift: FAIL; length 0.5 (at most 0.05)") and "not measured" in shown[7]
    broken = schema_integrity([call(amount=1, currency="USD")], ["{"], SCHEMAS)
    assert witnesses(*quiet, broken)[7].passed is False
    assert witnesses(*loud, None, Thresholds(kl=9, kl_p95=9, js_p95=9, difference_p95=9))[1].passed


def test_tails_see_what_a_mean_hides():
    found = tails(np.array([0.0] * 90 + [5.0] * 10))
    assert found.mean == pytest.approx(0.5) and found.p95 == found.p99 == found.max == 5
    with pytest.raises(KVMMError, match="no positions"):
        tails(np.zeros(0))


def test_prompts_offer_tools_as_the_template_writes_them():
    tokenizer = AutoTokenizer.from_pretrained(assets_folder() / "tiny-omni")
    tokenizer.chat_template = "{{ tools | tojson }} {{ messages[0]['content'] }}"
    first, second = tool_prompts(tokenizer, [get_json_schema(convert)], ["Convert 5 euros.", "Convert 6 euros."])
    inputs = first.encode()
    text = tokenizer.decode(inputs["input_ids"][0])
    assert "currency" in text and text.rstrip().endswith("5 euros.") and bool(inputs["attention_mask"].all())
    assert not torch.equal(inputs["input_ids"], second.encode()["input_ids"])


def test_a_template_without_tools_has_them_in_a_system_message():
    tokenizer = AutoTokenizer.from_pretrained(assets_folder() / "tiny-omni")
    assert "tools" not in tokenizer.chat_template
    examples = [("Convert 4 euros to USD.", {"name": "convert", "arguments": {"amount": 4, "currency": "USD"}})]
    (prompt,) = tool_prompts(tokenizer, [get_json_schema(convert)], ["Convert 5 euros."], examples)
    text = tokenizer.decode(prompt.encode()["input_ids"][0])
    places = [text.index(part) for part in ('"currency"', "Convert 4 euros", "<tool_call>\n{", "Convert 5 euros.")]
    assert places[0] < places[1] < places[3] and SCHEMAS.call(text[places[1] :])["arguments"]["amount"] == 4
    tokenizer.chat_template = None
    with pytest.raises(KVMMError, match="no chat template"):
        tool_prompts(tokenizer, [get_json_schema(convert)], ["Convert 5 euros."])


def test_the_shipped_tools_are_read():
    asked = read_tools(OFFICE)
    assert len(asked.tools) == 3 and len(asked.requests) == 5 and len(asked.examples) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"\xff", "not UTF-8"),
        (b"{", "is not JSON"),
        (b"[" * 100 + b"]" * 100, "nested deeper"),
        (b"[]", "must hold"),
        (b'{"tools": [], "requests": ["a"]}', "must hold"),
        (b'{"tools": [{"type": "function"}], "requests": ["a"]}', "a function with a name"),
        (b'{"tools": [{"function": {"name": "f"}}], "requests": []}', "must hold"),
        (b'{"tools": [{"function": {"name": "f"}}], "requests": [1]}', "must hold"),
        (b'{"tools": [{"function": {"name": "f", "parameters": {"type": 3}}}], "requests": ["a"]}', "no JSON Schema"),
        (b'{"tools": [{"function": {"name": "f", "parameters": [3]}}], "requests": ["a"]}', "no JSON Schema"),
        (
            b'{"tools": [{"function": {"name": "f"}}], "requests": ["a"], "examples": [{"request": "b", "call": 1}]}',
            'each of "examples"',
        ),
    ],
)
def test_files_of_tools_that_are_none(tmp_path, text, says):
    path = tmp_path / "tools.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(KVMMError, match=says) as error:
        read_tools(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_verdicts_are_plain_values(tmp_path):
    one, positions = measured([0.01] * 40)
    report = DriftReport("m", "cpu", "float32", "c", {}, {}, 1, (one,))
    calls = schema_integrity([call(amount=1, currency="USD")], ["prose"], SCHEMAS)
    found = verdicts(report, {"p": positions}, {"p": calls})
    save_verdicts(found, tmp_path / "verdicts.json")
    assert json.loads((tmp_path / "verdicts.json").read_text()) == found
    one = found["policies"]["p"]
    assert [witness["number"] for witness in one["witnesses"]] == list(range(1, 9))
    assert one["witnesses"][7]["passed"] is False and one["tool_calls"]["kept"] == 0
    assert one["witnesses"][4]["passed"] is None and found["thresholds"]["schema"] == 0.98
    assert verdicts(report, {"p": positions})["policies"]["p"]["witnesses"][7]["passed"] is None
    with pytest.raises(KVMMError, match="cannot be written"):
        save_verdicts(found, tmp_path)


def test_verdicts_that_are_not_finite_are_null(tmp_path):
    one, positions = measured([float("nan")] * 40)
    report = DriftReport("m", "cpu", "float32", "c", {}, {}, 1, (one,))
    save_verdicts(verdicts(report, {"p": positions}), tmp_path / "verdicts.json")
    drift = json.loads((tmp_path / "verdicts.json").read_text())["policies"]["p"]["witnesses"][1]
    assert drift["measures"][0]["value"] is None and drift["passed"] is False
