"""Word problems, programs, questions over paragraphs: official fields, prompts, scores, what is wrong with items."""

from __future__ import annotations

import itertools
import json
import operator
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.eval import execution
from kvmm.eval.tasks import Scored, get_task
from kvmm.eval.tasks.humaneval import program


def lines(path: Path, items: list) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def results(task, samples, answers: list[str]) -> dict[str, float]:
    return task.aggregate([Scored(s, task.score(s, text), text) for s, text in zip(samples, answers, strict=True)])


def test_gsm8k(tmp_path: Path):
    items = [
        {"question": "2 + 3?", "answer": "It is 2+3=<<2+3=5>>5.\n#### 5"},
        {"question": "How much?", "answer": "1000+234\n#### 1,234"},
        {"question": "And?", "answer": "no number"},
        {"question": "", "answer": "#### 1"},
    ]
    task = get_task("gsm8k")
    loaded = task.load(lines(tmp_path / "test.jsonl", items))
    assert loaded.skipped_by_kind() == {"no answers": 1, "empty question": 1}
    assert [sample.answers for sample in loaded] == [("5",), ("1,234",)]
    assert loaded.samples[0].question.startswith("2 + 3?\n") and "####" in loaded.samples[0].question
    assert results(task, loaded, ["#### 5", "It is $1,234."]) == {"exact_match": 1, "strict_match": 0.5}


def test_math(tmp_path: Path):
    items = [
        {"problem": "Half?", "solution": r"So \boxed{\frac12}.", "level": "Level 2", "type": "Algebra"},
        {
            "problem": "Root?",
            "solution": "...",
            "answer": r"\sqrt{3}",
            "level": 5,
            "subject": "Geometry",
            "unique_id": "a/1",
        },
        {"problem": "None?", "solution": "no box"},
    ]
    task = get_task("math")
    loaded = task.load(lines(tmp_path / "test.jsonl", items))
    assert loaded.skipped_by_kind() == {"no answers": 1} and loaded.samples[1].doc_id == "a/1"
    assert results(task, loaded, [r"\boxed{1/2}", "it is 5"]) == {
        "accuracy": 0.5,
        "boxed": 0.5,
        "accuracy/Algebra": 1,
        "accuracy/Geometry": 0,
        "accuracy/level 2": 1,
        "accuracy/level 5": 0,
    }


def test_aime(tmp_path: Path):
    items = [
        {"id": 60, "problem": "Which?", "answer": "073", "solution": "..."},
        {"ID": "2024-I-2", "Problem": "What?", "Answer": 204},
        {"id": "float", "problem": "Which?", "answer": 33.0},
        {"problem": "Bad?", "answer": "1000"},
        {"problem": "Bad?", "answer": "x"},
        {"problem": "Bad?", "answer": 33.5},
    ]
    task = get_task("aime")
    loaded = task.load(lines(tmp_path / "aime.jsonl", items))
    assert [(s.doc_id, s.answers[0]) for s in loaded] == [("60", "73"), ("2024-I-2", "204"), ("float", "33")]
    assert loaded.skipped_by_kind() == {"wrong answer": 3}
    scores = [
        task.score(loaded.samples[0], text)["accuracy"]
        for text in (r"\boxed{073}", "so 73.", r"73 \boxed{74}", "", r"\boxed{\frac{1}{73}}", r"\boxed{2^{73}}")
    ]
    assert scores == [1, 1, 0, 0, 0, 0]


ADD = {
    "task_id": "HumanEval/900",
    "prompt": 'from typing import List\n\n\ndef add_all(xs: List[int]) -> int:\n    """The sum."""\n',
    "canonical_solution": "    return sum(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
    "entry_point": "add_all",
}


def test_humaneval_is_not_run_unless_asked(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(execution, "run_program", lambda *_: pytest.fail("it ran"))
    task = get_task("humaneval")
    source = lines(tmp_path / "HumanEval.jsonl", [ADD, {**ADD, "task_id": "b", "entry_point": "x; import os"}])
    loaded = task.load(source)
    assert loaded.skipped_by_kind() == {"wrong entry_point": 1}
    assert results(task, loaded, ["    return sum(xs)"]) == {"not_scored": 1}
    with pytest.raises(KVMMError, match="give yes or no"):
        get_task("humaneval@execute=1")
    monkeypatch.setattr(execution, "available", lambda: False)
    with pytest.raises(KVMMError, match="leave execute=yes out"):
        get_task("humaneval@execute=yes")


WHOLE = "Here:\n```python\ndef add_all(xs: List[int]) -> int:\n    return sum(xs)\n```\nIt adds."


FORGED = """```python
import builtins, os, sys
def check(candidate):
    pass
class Anything(list):
    def __eq__(self, other):
        return True
def add_all(xs):
    return Anything()
frame = sys._getframe()
while frame:
    texts = [value for value in frame.f_locals.values() if isinstance(value, str)]
    for text in texts:
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, text.encode())
            except OSError:
                pass
    frame = frame.f_back
os._exit(0)
```"""


@pytest.mark.skipif(not execution.available(), reason="needs seccomp")
def test_tests_use_what_the_prompt_has_before_the_function(tmp_path: Path):
    """As those of HumanEval/32, 38 and 50 do; an answer that gives the helper another meaning changes nothing."""
    item = {
        **ADD,
        "prompt": 'def twice(x):\n    return 2 * x\n\n\ndef half(x):\n    """Undo it."""\n',
        "test": "def check(candidate):\n    assert candidate(twice(8)) == half(16) == 8\n",
        "entry_point": "half",
    }
    task = get_task("humaneval@execute=yes")
    (sample,) = task.load(lines(tmp_path / "HumanEval.jsonl", [item]))
    assert task.score(sample, "    return x // 2\n") == {"pass@1": 1}
    cheat = "```python\ndef twice(x):\n    return 0\ndef half(x):\n    return 8 if x in (0, 16) else 1\n```"
    assert task.score(sample, cheat) == {"pass@1": 1}  # right for both inputs of this test
    assert task.score(sample, cheat.replace("(0, 16)", "(0,)")) == {"pass@1": 0}


@pytest.mark.skipif(not execution.available(), reason="needs seccomp")
def test_humaneval_runs_what_was_written(tmp_path: Path):
    task = get_task("humaneval@execute=yes")
    (sample,) = task.load(lines(tmp_path / "HumanEval.jsonl", [ADD]))
    assert sample.question.count("```") == 2 and ADD["prompt"].rstrip() in sample.question
    answers = {
        ADD["canonical_solution"]: 1,
        WHOLE: 1,
        "return sum(xs)\n\ndef other():\n    return 1/0\nother()": 1,  # a stripped completion, and more after it
        "```python\ndef add_all(xs):\n    return 0\n```": 0,
        "I cannot.": 0,
        "": 0,
        "```python\ndef add_all(xs):\n    while True: pass": 0,
        FORGED: 0,
    }
    for answer, passed in answers.items():
        if "while" not in answer:
            assert task.score(sample, answer) == {"pass@1": passed}, answer
    assert program(sample, WHOLE).startswith("from typing import List") and "It adds" not in program(sample, WHOLE)


def hotpot_item(number: int, **changes: object) -> dict:
    context = [[f"Title {number}-{i}", [f"Sentence {number}-{i}.", " It goes on."]] for i in range(3)]
    item = {"_id": f"q{number}", "question": f"What is {number}?", "answer": f"answer {number}", "type": "bridge"}
    return {**item, "level": "hard", "context": context, **changes}


def test_hotpotqa(tmp_path: Path):
    items = [
        hotpot_item(0),
        hotpot_item(1, answer="yes", type="comparison"),
        hotpot_item(2, context=[["a"]]),
        hotpot_item(3, context="{"),
        hotpot_item(4, context={"title": ["T"], "sentences": [["One.", " Two."]]}),
    ]
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps(items))
    task = get_task("hotpotqa")
    loaded = task.load(path)
    assert loaded.skipped_by_kind() == {"wrong context": 2}
    assert "Title 0-1\nSentence 0-1. It goes on." in loaded.samples[0].question
    assert "T\nOne. Two." in loaded.samples[2].question and loaded.samples[2].metadata["paragraphs"] == 1
    scores = results(task, loaded, ["The answer 0\nmore", "yes, it is", "4"])
    assert scores["exact_match"] == pytest.approx(1 / 3) and scores["f1"] == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert set(scores) == {"f1", "exact_match", "f1/bridge", "f1/comparison", "f1/hard"}


def test_distractors_come_from_other_questions_and_keep_the_order_of_the_seed(tmp_path: Path):
    items = [hotpot_item(number) for number in range(6)]
    items[3]["context"].append(["Gives it away", ["It is answer 0."]])
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(items))
    task = get_task("2wikimultihopqa@distractors=5,seed=3")
    loaded = task.load(path, limit=2)
    first, second = loaded.samples
    assert first.metadata["paragraphs"] == second.metadata["paragraphs"] == 8
    assert all(f"Title 0-{i}\n" in first.question for i in range(3)) and "Gives it away" not in first.question
    assert [s.question for s in task.load(path, limit=2)] == [s.question for s in loaded]
    other = get_task("2wikimultihopqa@distractors=5,seed=4").load(path, limit=2)
    assert operator.ne(*(s.samples[0].question for s in (other, loaded)))
    with pytest.raises(KVMMError, match="0 to 1000 distractors"):
        get_task("hotpotqa@distractors=5000")
    with pytest.raises(KVMMError, match="limit is 0"):
        task.load(path, limit=0)


@pytest.mark.parametrize("answer", ["no", "yes", "ten", "Rome"])
def test_an_answer_that_stands_inside_other_words_gets_its_distractors(tmp_path: Path, answer: str):
    """ "no" is a part of "known": questions of yes and no would be asked over fewer paragraphs than all others."""
    items = [hotpot_item(number, answer=f"elsewhere {number}") for number in range(8)]
    for item in items:
        item["context"] = [[title, ["It is known, no less, that yesteryear often."]] for title, _ in item["context"]]
    items[0] |= {"answer": answer, "answer_aliases": ["Roma"]}
    items[1]["context"] = [["Rome", ["A city."]], ["Roma", ["The same."]], ["Romance", ["A book."]]]
    (tmp_path / "dev.json").write_text(json.dumps(items))
    (sample,) = get_task("hotpotqa@distractors=19").load(tmp_path / "dev.json", limit=1).samples
    assert sample.metadata["paragraphs"] == 3 + 19
    titles = [paragraph.split("\n")[0] for paragraph in sample.question.split("\n\n")]
    assert "Roma" not in titles and ("Rome" in titles) is (answer != "Rome")


def test_needles_at_fifteen_depths():
    task = get_task("niah@lengths=300,depths=15,repeats=1")
    samples = task.load("generated").samples
    depths = [sample.metadata["depth"] for sample in samples]
    assert len({sample.doc_id for sample in samples}) == 15 and depths[0] == 0 and depths[-1] == 1
    assert {round(b - a, 3) for a, b in itertools.pairwise(depths)} <= {0.071, 0.072}
    with pytest.raises(KVMMError, match="2 to 101 depths"):
        get_task("niah@depths=500")
