"""OCRBench, captions, audio, needles and LongBench-E: their formats and what they count."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from kvmm.errors import KVMMError
from kvmm.eval.tasks import Sample, Scored, Task, get_task
from kvmm.eval.tasks.longbench_e import PROMPTS
from kvmm.eval.tasks.ocrbench import TYPES

VECTORS = Path(__file__).parents[2] / "data" / "vectors"


def save_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (60, 40), "white").save(path)


def save_recording(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.sin(np.arange(8000) / 20), 16_000)


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def answered(task: Task, samples: list[Sample], predictions: list[str]) -> dict[str, float]:
    pairs = zip(samples, predictions, strict=True)
    return task.aggregate([Scored(sample, task.score(sample, text), text) for sample, text in pairs])


# --------------------------------------------------------------------------------------------------------------------
# OCRBench


def ocr_item(number: int, kind: str, **changes: object) -> dict:
    base = {
        "dataset_name": "IIIT5K",
        "id": number,
        "image_path": f"IIIT5K/{number}.png",
        "question": " what is written? ",
    }
    return {**base, "answers": "Centre", "type": kind, **changes}


def test_ocrbench_official_json(tmp_path: Path):
    items = [
        ocr_item(0, "Regular Text Recognition"),
        ocr_item(1, "Doc-oriented VQA", answers=["3.5", "three"]),
        ocr_item(2, "Handwritten Mathematical Expression Recognition", dataset_name="HME100k", answers="x ^ 2"),
        ocr_item(3, "Reading"),
    ]
    for item in items:
        save_image(tmp_path / "OCRBench_Images" / item["image_path"])
    task = get_task("ocrbench")
    loaded = task.load(write(tmp_path / "OCRBench.json", items))
    assert loaded.skipped == (("3", "unknown type: Reading"),)
    assert loaded.samples[0].question == "what is written?" and loaded.samples[1].answers == ("3.5", "three")
    result = answered(task, loaded.samples, ["CENTRE\n", "about three", "X^2"])
    assert result["ocrbench_accuracy"] == pytest.approx(2 / 3)  # the formula keeps case
    assert result["ocrbench_accuracy/Text Recognition"] == 1
    assert result["ocrbench_accuracy/Handwritten Mathematical Expression Recognition"] == 0
    assert result["ocrbench_score"] == pytest.approx(1000 * (50 + 200) / (50 + 200 + 100))


def test_ocrbench_scores_are_those_of_the_rows():
    task = get_task("ocrbench")
    for row in json.loads((VECTORS / "ocrbench.json").read_text(encoding="utf-8")):
        answers = (row["answer"],) if isinstance(row["answer"], str) else tuple(row["answer"])
        metadata = {"type": row["question_type"], "group": "", "dataset": row["dataset"]}
        assert task.score(Sample("0", "", answers, metadata=metadata), row["prediction"]) == {
            "ocrbench_accuracy": row["score"]
        }


def test_ocrbench_points_of_the_whole_benchmark_are_its_hits():
    task = get_task("ocrbench")
    scored = [
        Scored(
            Sample("0", "", (), metadata={"type": kind, "group": group}), {"ocrbench_accuracy": float(i % 3 == 0)}, ""
        )
        for kind, (group, count) in TYPES.items()
        for i in range(count)
    ]
    assert len(scored) == 1000
    assert Counter(group for group, _ in TYPES.values()).total() == 10 and len({g for g, _ in TYPES.values()}) == 5
    assert task.aggregate(scored)["ocrbench_score"] == pytest.approx(sum(s.scores["ocrbench_accuracy"] for s in scored))


# --------------------------------------------------------------------------------------------------------------------
# Captions


def test_coco_official_files(tmp_path: Path):
    corpus = json.loads((VECTORS / "captions.json").read_text(encoding="utf-8"))["corpora"][-1]
    images = [{"id": 100 + n, "file_name": f"COCO_val2014_{n:012d}.jpg"} for n in range(12)]
    for image in images:
        save_image(tmp_path / "val2014" / image["file_name"])
    annotations = [
        {"image_id": 100 + n, "id": 10 * n + k, "caption": text}
        for n, texts in enumerate(corpus["references"])
        for k, text in enumerate(texts)
    ]
    images.append({"id": 999, "file_name": "COCO_val2014_000000000000.jpg"})  # nobody wrote a caption
    write(
        tmp_path / "annotations" / "captions_val2014.json", {"info": {}, "images": images, "annotations": annotations}
    )
    write(tmp_path / "annotations" / "instances_val2014.json", {"images": [], "annotations": []})
    task = get_task("coco-caption")
    loaded = task.load(tmp_path)
    assert loaded.skipped == (("999", "no answers"),)
    assert loaded.samples[3].answers == tuple(corpus["references"][3])
    assert loaded.samples[0].load_images()[0].size == (60, 40)
    # The corpus is in PTB's words; what the tokenizer splits again stays together when written as people write.
    predictions = [text.replace(" n't", "n't").replace(" 's", "'s") for text in corpus["predictions"]]
    scored = [Scored(s, task.score(s, text), text) for s, text in zip(loaded, predictions, strict=True)]
    result = task.aggregate(scored)
    assert set(result) == {"CIDEr", "BLEU_1", "BLEU_2", "BLEU_3", "BLEU_4", "ROUGE_L"}
    perfect = [Scored(s, task.score(s, s.answers[0]), s.answers[0]) for s in loaded]
    assert task.aggregate(perfect)["CIDEr"] > result["CIDEr"] > 0
    assert task.aggregate(perfect)["BLEU_4"] == pytest.approx(1)


# --------------------------------------------------------------------------------------------------------------------
# Audio


def mmau_item(number: int, category: str, **changes: object) -> dict:
    base = {"id": f"q{number}", "audio_path": ["data/a.wav"], "question": "What is heard?", "category": category}
    return {**base, "answer": "a dog", "choices": ["a cat", "a dog", "rain"], "length_type": "short", **changes}


def test_mmau_pro(tmp_path: Path):
    save_recording(tmp_path / "data" / "a.wav")
    items = [
        mmau_item(0, "sound"),
        mmau_item(1, "instruction following", question="", choices=None, answer=None, task_identifier="All Lowercase"),
        mmau_item(2, "open", choices=None, answer="a barking dog"),
        mmau_item(3, "sound", answer="a cow"),
        mmau_item(4, "sound", choices=["a dog"]),
        mmau_item(5, "sound", audio_path=["data/a.wav", "data/a.wav"]),
        mmau_item(6, "sound", audio_path=["data/gone.wav"]),
        mmau_item(7, "instruction following", task_identifier="Rhyme"),
    ]
    source = write(tmp_path / "test.json", items)
    task = get_task("mmau-pro")
    loaded = task.load(source)
    assert loaded.skipped_by_kind() == {
        "wrong choices": 2,
        "several recordings": 1,
        "missing audio": 1,
        "unknown instruction": 1,
    }
    closed, rule, open_ended = loaded.samples
    assert closed.question == (
        "What is heard?\nA. a cat\nB. a dog\nC. rain\nAnswer with the option's letter from the given choices directly."
    )
    assert len(closed.load_audio()) == 8000 and rule.answers == () and open_ended.question == "What is heard?"
    assert answered(task, [open_ended], ["A dog barks"]) == {"not_scored": 1}  # nothing was scored, which is not 0
    result = answered(task, loaded.samples, ["(B)", "Loud", "A dog barks"])
    assert result == {
        "accuracy": 0.5,
        "not_scored": 1,
        "accuracy/closed": 1,
        "accuracy/instruction following": 0,
        "accuracy/sound": 1,
    }
    asked = []

    def judge(question: str, reference: str, prediction: str) -> float:
        asked.append((question, reference, prediction))
        return 0.8

    result = answered(get_task("mmau-pro", judge=judge), loaded.samples, ["A", "quiet", "A dog barks"])
    assert asked == [("What is heard?", "a barking dog", "A dog barks")]
    assert result["accuracy"] == pytest.approx((0 + 1 + 0.8) / 3) and result["not_scored"] == 0
    with pytest.raises(KVMMError, match=r"judge returned 5.0: it must return a number from 0 to 1"):
        get_task("mmau-pro", judge=lambda *_: 5).score(open_ended, "x")


def test_mmau_choices_as_text(tmp_path: Path):
    save_recording(tmp_path / "test-mini-audios" / "b.wav")
    item = {
        "id": "1",
        "audio_id": "./test-mini-audios/b.wav",
        "question": "What?",
        "choices": '["a cat", "a dog"]',
        "answer": "a cat",
        "task": "sound",
        "category": "Reasoning",
    }
    task = get_task("mmau")
    loaded = task.load(write(tmp_path / "mmau-test-mini.json", [item, {**item, "id": "2", "choices": "a cat, a dog"}]))
    assert loaded.skipped == (("2", "wrong choices: not a list"),)
    assert answered(task, loaded.samples, ["A. a cat"])["accuracy/sound"] == 1


def test_spoken_questions(tmp_path: Path):
    save_recording(tmp_path / "audio" / "q.wav")
    save_image(tmp_path / "documents" / "p.png")
    head = {"audio": "audio/q.wav", "question_types": ["speech"], "answers": ["12.50"]}
    items = [
        {"questionId": 1, "question": "", "images": ["documents/p.png"], **head},
        {"questionId": 2, "question": "Which sum?", **head},
        {"questionId": 3, "question": "", **head, "audio": "audio/gone.wav"},
    ]
    task = get_task("audio-qa")
    loaded = task.load(write(tmp_path / "val.json", {"data": items}))
    assert [sample.question[:10] for sample in loaded] == ["", "Which sum?"]
    assert len(loaded.samples[0].load_images()) == 1 and len(loaded.samples[1].images) == 0
    assert dict(loaded.skipped) == {"3": "missing audio: audio/gone.wav"}
    result = answered(task, loaded.samples, ["12.50", "none"])
    assert (result["anls/spoken question"], result["anls/written question"], result["anls"]) == (1, 0, 0.5)


# --------------------------------------------------------------------------------------------------------------------
# Several pages


def test_mp_docvqa_official_json(tmp_path: Path):
    for page in "abc":
        save_image(tmp_path / "images" / f"doc_{page}.jpg")
    item = {"questionId": 5, "question": "What?", "doc_id": "doc", "answers": ["yes"], "answer_page_idx": 1}
    items = [
        {**item, "page_ids": ["doc_a", "doc_b"]},
        {**item, "questionId": 6, "page_ids": ["doc_c"], "answers": "['one', 'two']", "answer_page_idx": "0"},
        {**item, "questionId": 7, "page_ids": ["doc_a", "doc_x"]},
        {**item, "questionId": 8, "page_ids": []},
    ]
    task = get_task("mp-docvqa")
    loaded = task.load(write(tmp_path / "val.json", {"data": items}))
    assert [len(sample.load_images()) for sample in loaded] == [2, 1]
    assert loaded.samples[0].metadata["answer_page"] == 2 and loaded.samples[1].answers == ("one", "two")
    assert loaded.skipped_by_kind() == {"missing image": 2}
    assert answered(task, loaded.samples, ["yes", "no"])["anls/pages=02"] == 1


# --------------------------------------------------------------------------------------------------------------------
# Needles


def test_needles_in_text_are_where_they_should_be():
    task = get_task("niah", lengths=(300, 900), depths=(0.0, 0.5, 1.0), repeats=1, seed=3)
    samples, again = task.load().samples, task.load().samples
    assert [sample.question for sample in samples] == [sample.question for sample in again]
    assert len({sample.question for sample in samples}) == len({sample.doc_id for sample in samples}) == 6
    other = get_task("niah", lengths=(300,), depths=(0.0,), repeats=1, seed=4).load().samples[0]
    assert other.question != samples[0].question
    for sample in samples:
        text, _, question = sample.question.rpartition("\n\n")
        needle, length = sample.metadata["needle"], sample.metadata["length"]
        assert length - 60 < len(sample.question) / 4 <= length
        assert text.count(needle) == 1 and sample.answers[0] in needle and sample.answers[0] not in question
        place = text.index(needle) / (len(text) - len(needle))
        assert place == pytest.approx(sample.metadata["depth"], abs=0.06)


def test_needles_are_scored_by_containment():
    task = get_task("niah", lengths=(300, 900), depths=(0.0, 1.0), repeats=1)
    samples = task.load().samples
    right = [sample.answers[0] for sample in samples]
    assert task.score(samples[0], f"It is {right[0][:2]},{right[0][2:]}.") == {"accuracy": 1}
    assert task.score(samples[0], f"{right[0]}7") == {"accuracy": 0}
    result = answered(task, samples, [right[0], "none", right[2], right[2]])
    assert result["accuracy/tokens=300"] == 0.5 and result["accuracy/depth=0.00"] == 1
    assert result["accuracy/tokens=900,depth=1.00"] == 0 and result["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("12345 5 digits", 1),
        ("5 12345", 1),
        ("12345, 12345.", 1),
        ("The 12 345 it is", 1),
        ("1 2 3 4 5", 1),
        ("1-2-3-4-5", 1),
        ("1234 5", 1),
        ("In 2 of 3 rooms: 12345.0", 1),
        ("12345 or 67890", 0),
        ("67890", 0),
        ("12,345,678", 0),
        ("12 345 678", 0),
        ("112345", 0),
        ("123456", 0),
        ("1234", 0),
        ("", 0),
    ],
)
def test_an_answer_names_the_needles_number_and_no_other_of_its_length(prediction: str, right: int):
    sample = Sample("a", "", ("12345",))
    assert get_task("niah").score(sample, prediction) == {"accuracy": right}


def test_needles_in_a_given_text(tmp_path: Path):
    (tmp_path / "a.txt").write_text("Alpha one. Beta two! " * 3, encoding="utf-8")
    (tmp_path / "b.txt").write_text("gamma " * 150, encoding="utf-8")  # no sentence ends
    task = get_task("niah", lengths=(500,), depths=(0.5,), repeats=1)
    text = task.load(tmp_path).samples[0].question
    assert "Alpha one." in text and "Beta two!" in text and "gamma" in text
    (tmp_path / "c.txt").write_bytes(b"\xff\xff")
    for source, message in ((tmp_path / "c.txt", "not UTF-8"), (tmp_path / "d.txt", "no text to hide")):
        with pytest.raises(KVMMError, match=message):
            task.load(source)
    (tmp_path / "e.txt").write_text(" ")
    with pytest.raises(KVMMError, match="is empty"):
        task.load(tmp_path / "e.txt")
    with pytest.raises(KVMMError, match="depths from 0 to 1"):
        get_task("niah", depths=(2.0,))


def test_needles_in_pages():
    task = get_task("niah-pages", lengths=(1, 3), depths=(0.0, 0.5, 1.0), repeats=1)
    samples = task.load().samples
    assert [(len(sample.images), sample.metadata["page"]) for sample in samples] == [
        (1, 1), (1, 1), (1, 1), (3, 1), (3, 2), (3, 3),
    ]  # fmt: skip
    for sample in samples:
        needle = sample.metadata["needle"]
        assert [needle in page.text for page in sample.images].index(True) == sample.metadata["page"] - 1
        assert needle not in sample.question
    page = np.asarray(samples[4].load_images()[1].convert("L"))
    ink = np.flatnonzero((page < 128).any(1))
    text = ink[ink < page.shape[0] - 60]
    assert page.shape == (784, 560) and 400 < text[-1] < 720  # nearly full, and nothing runs into the page's number
    assert (page[:, -30:] > 128).all()  # no line runs over the edge


# --------------------------------------------------------------------------------------------------------------------
# LongBench-E


def longbench_item(dataset: str, length: int, number: int, **changes: object) -> dict:
    base = {"input": "Who {context}?", "context": "A {input} text.", "answers": ["Ann"], "length": length}
    return {**base, "dataset": dataset, "language": "en", "all_classes": None, "_id": f"{number:04x}", **changes}


def test_longbench_official_files(tmp_path: Path):
    files = {
        "hotpotqa_e.jsonl": [longbench_item("hotpotqa", 3999, 1), longbench_item("hotpotqa", 4000, 2)],
        "trec_e.jsonl": [
            longbench_item("trec_e", 8000, 1, all_classes=["Ann", "Bob"]),
            longbench_item("vcsum", 10, 2),
            longbench_item("trec", 10, 3, answers=[]),
            longbench_item("trec", "long", 4),
        ],
    }
    for name, items in files.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    task = get_task("longbench-e")
    loaded = task.load(tmp_path)
    assert loaded.skipped_by_kind() == {"not in LongBench-E": 1, "no answers": 1, "no length": 1}
    assert [sample.doc_id for sample in loaded] == ["hotpotqa-0001", "hotpotqa-0002", "trec_e-0001"]
    first = loaded.samples[0]
    assert "A {input} text." in first.question and first.question.endswith("Question: Who {context}?\nAnswer:")
    one = get_task("longbench-e@tasks=hotpotqa")
    assert one.max_new_tokens == 32 and task.max_new_tokens == 512
    assert [sample.doc_id for sample in one.load(tmp_path)] == ["hotpotqa-0001", "hotpotqa-0002"]
    with pytest.raises(KVMMError, match="no task squad: choose of qasper"):
        get_task("longbench-e@tasks=squad")
    result = answered(task, loaded.samples, ["Ann", "Bob", "\nAnn or Bob\nBob"])
    assert result["longbench/hotpotqa"] == 0.5 and result["longbench/trec"] == 0.5 and result["longbench"] == 0.5
    assert (result["longbench/0-4k"], result["longbench/4-8k"], result["longbench/8k+"]) == (1, 0, 0.5)
    assert result["longbench/hotpotqa/0-4k"] == 1


def test_longbench_prompts_hold_both_fields():
    from kvmm.eval.metrics.longbench import METRICS

    assert PROMPTS.keys() == METRICS.keys()
    for name, (prompt, tokens) in PROMPTS.items():
        assert prompt.count("{context}") == 1 and prompt.count("{input}") <= 1 and tokens in (32, 64, 128, 512), name
