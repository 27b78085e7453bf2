"""The plain costs of presets are those of the committed measurements."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.mini_report import combined_run
from benchmarks.policy_answers import TASKS, count_answers
from benchmarks.text_tables import NEEDLES, policies_of
from kvmm import KVMMError, policies
from kvmm.eval.report.depth_plot import depth_cells
from kvmm.memory_text import bits_text
from kvmm.policy.costs import ANSWERS_PATH, BITS_PATH, bits_of, kept_of, measured_on, plain_cost, short_cost


@pytest.fixture(scope="module")
def run() -> dict:
    return combined_run()


def test_the_answers_are_those_of_the_evaluation(run):
    answers = json.loads(ANSWERS_PATH.read_text(encoding="utf-8"))
    assert answers == count_answers(run)
    assert set(answers["policies"]) == set(policies())
    rows = [p for t in run["tasks"] if t["task"] in TASKS for p in t["policies"] if p["policy"] == "rd2"]
    assert answers["policies"]["rd2"]["kept"] == sum(row["mcnemar"]["both"] for row in rows)
    assert answers["questions"] == sum(row["answered"] for row in rows)


def test_a_cost_is_the_measured_bits_and_the_answers_kept():
    bits = json.loads(BITS_PATH.read_text(encoding="utf-8"))["policies"]
    answers = json.loads(ANSWERS_PATH.read_text(encoding="utf-8"))
    for name in policies():
        whole, packed = bits[name]["bits_per_value"], bits[name]["packed_bits_per_value"]
        assert bits_of(name) == (whole, packed)
        row = answers["policies"][name]
        assert (kept_of(name) == 100) == (row["kept"] == row["right"])  # rounded down: 100 means all
        assert plain_cost(name).startswith(f"{bits_text(whole, packed)}; ")
        assert short_cost(name).startswith(f"{packed:.1f} / {whole:.1f} · ")
    assert plain_cost("kivi2").endswith(f"keeps {kept_of('kivi2')} of 100 right answers")
    assert plain_cost("bf16").endswith("the reference of all answers") and short_cost("bf16").endswith("reference")
    assert f"{answers['questions']} questions about pages" in measured_on()


def test_a_preset_that_was_not_measured_has_no_cost():
    assert bits_of("mine") is None and kept_of("mine") is None
    assert plain_cost("mine") == short_cost("mine") == ""


def test_an_evaluation_that_lacks_something_is_refused(run):
    with pytest.raises(KVMMError, match="run kvmm eval on both"):
        count_answers({**run, "tasks": run["tasks"][:1]})
    short = json.loads(json.dumps(run))
    del short["tasks"][0]["policies"][-1]
    with pytest.raises(KVMMError, match="other policies"):
        count_answers(short)


def test_what_a_line_says_of_long_texts_was_measured():
    needles = {one.policy: [round(value) for value in depth_cells(one).values()] for one in policies_of(NEEDLES)}
    said = {name: re.search(r"(\d+) of (\d+) numbers .* finds (\d+)\.", line) for name, line in policies().items()}
    said = {name: tuple(map(int, found.groups())) for name, found in said.items() if found}
    assert set(said) == {"balanced", "oscar4-2"}
    exact = sum(needles["bf16"])
    assert said == {name: (sum(needles[name]), len(needles[name]), exact) for name in said}
    assert not any("lossless" in line for name, line in policies().items() if name != "bf16")
