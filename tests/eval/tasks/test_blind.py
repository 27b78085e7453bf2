"""The set of ordinary documents: well formed, extractive where it says so, unknown to the training; its scores."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pypdfium2
import pytest
from PIL import Image

from kvmm.eval.metrics import is_refusal
from kvmm.eval.run.evaluate import higher_is_better
from kvmm.eval.tasks import Scored, get_task

ROOT = Path(__file__).parents[3]
BLIND = ROOT / "tests" / "blind"
KINDS = {  # least number of questions
    "prose": 100,
    "column lookup": 60,
    "labelled value": 50,
    "unlabelled name": 40,
    "chart": 40,
    "receipt": 35,
    "form": 20,
    "unanswerable": 60,
    "transcription": 6,
    "memo": 30,
    "memo transcript": 12,
    "unanswerable memo": 5,
}


def plain(text: str) -> str:
    """Lower case, white space collapsed."""
    return " ".join(text.lower().split())


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return json.loads((BLIND / "blind.json").read_text(encoding="utf-8"))["data"]


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """What is written on each page, by document."""
    return json.loads((BLIND / "make" / "texts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def memos() -> dict[str, dict]:
    listed = json.loads((BLIND / "make" / "memos.json").read_text(encoding="utf-8"))
    return {f"memos/{memo['id']}.opus": memo for memo in listed}


def document_of(row: dict) -> str:
    """The document's name: that of its PDF or image, of several images what their names share."""
    name = Path(row["files"][0]).stem
    return name if len(row["files"]) == 1 else name.removesuffix("-1")


def test_counts_and_ids(rows, texts, memos):
    found = get_task("blind").load(BLIND)
    assert not found.skipped and len(found) == len(rows) == len({row["questionId"] for row in rows})
    kinds = Counter(row["kind"] for row in rows)
    assert set(kinds) == set(KINDS)
    assert {kind: count for kind, count in kinds.items() if count < KINDS[kind]} == {}
    documents = {document_of(row) for row in rows if "files" in row}
    assert documents == set(texts) and len(documents) >= 70
    assert sum(map(len, texts.values())) >= 80  # pages
    assert len([pages for pages in texts.values() if 2 <= len(pages) <= 4]) >= 7
    assert {row["audio"] for row in rows if "audio" in row} == set(memos) and len(memos) >= 12
    assert len({(row.get("audio") or row["files"][0], row["question"]) for row in rows}) == len(rows)
    conditions = Counter(name for row in rows for name in row["condition"])
    assert {"photographed", "scanned", "turned", "low contrast", "copied", "stamped", "noisy"} < set(conditions)


def test_extractive_answers_stand_on_their_pages(rows, texts, memos):
    missing = []
    for row in rows:
        if row["kind"].startswith("unanswerable") or row.get("derived"):
            continue
        text = memos[row["audio"]]["text"] if "audio" in row else " ".join(texts[document_of(row)])
        if not any(plain(answer) in plain(text) for answer in row["answers"]):
            missing.append(row["questionId"])
    assert missing == []
    derived = [row for row in rows if row.get("derived")]
    assert 10 <= len(derived) <= 40 and {row["kind"] for row in derived} <= {"chart", "column lookup"}


def test_transcriptions_are_the_whole_page(rows, texts, memos):
    for row in rows:
        if row["kind"] == "transcription":
            assert row["answers"] == [" ".join(" ".join(texts[document_of(row)]).split())]
            assert 300 < len(row["answers"][0]) < 2000
        elif row["kind"] == "memo transcript":
            assert row["answers"][0] == memos[row["audio"]]["text"]


def test_only_unanswerable_questions_want_a_refusal(rows):
    for row in rows:
        assert row["answers"] and all(answer.strip() == answer != "" for answer in row["answers"])
        assert all(is_refusal(answer) is row["kind"].startswith("unanswerable") for answer in row["answers"]), row


def test_text_layers_are_what_the_pages_say(rows, texts):
    pdfs = {file for row in rows for file in row.get("files", ()) if file.endswith(".pdf")}
    assert len(pdfs) >= 15
    for file in pdfs:
        with pypdfium2.PdfDocument(BLIND / file) as document:
            layers = [plain(page.get_textpage().get_text_range()) for page in document]
        assert layers == [plain(text) for text in texts[Path(file).stem]]


def test_every_file_is_used_readable_and_small(rows):
    used = {file for row in rows for file in row.get("files", [row.get("audio")])}
    on_disk = {str(p.relative_to(BLIND)) for part in ("documents", "memos") for p in (BLIND / part).iterdir()}
    assert on_disk == used
    for file in used:
        if not file.endswith((".pdf", ".opus")):
            with Image.open(BLIND / file) as picture:
                picture.load()
                assert min(picture.size) >= 250 and max(picture.size) >= 600, file
    assert sum(path.stat().st_size for path in BLIND.rglob("*") if path.is_file()) <= 6_000_000


def test_pdfs_stand_for_their_pages_and_memos_are_short():
    found = {sample.doc_id: sample for sample in get_task("blind").load(BLIND)}
    assert [image.mode for image in found["contract-rental-01"].load_images()] == ["RGB"] * 3
    assert len(found["contract-work-01"].load_images()) == 2
    assert found["chart-rain-01"].load_images()[0].width > found["chart-rain-01"].load_images()[0].height
    for sample in found.values():
        if sample.metadata["kind"] == "memo transcript":
            assert 8 < len(sample.load_audio()) / 16_000 < 30


def test_the_training_does_not_know_the_set(rows):
    sources = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "training").rglob("*.py"))
    assert not re.search(r"tests[/.]blind|[\"']blind[\"']", sources)
    long_questions = [row["question"] for row in rows if len(row["question"]) >= 40]
    assert len(long_questions) > 100
    assert [question for question in long_questions if question in sources] == []


# --------------------------------------------------------------------------------------------------------------------
# Scores


def test_scores_by_kind(tmp_path):
    Image.new("RGB", (40, 40), "white").save(tmp_path / "a.png")
    (tmp_path / "m.opus").write_bytes((BLIND / "memos" / "idea.opus").read_bytes())
    page, memo = {"files": ["a.png"], "document": "letter", "condition": ["turned"]}, {"audio": "m.opus"}
    asked = [  # kind, answers, prediction, file
        ("prose", ["12 May"], "12 May", page),
        ("prose", ["Petra"], "It does not say.", page),
        ("chart", ["60"], "41", page),
        ("unanswerable", ["It does not say."], "Not mentioned.", page),
        ("unanswerable", ["It does not say."], "£5", page),
        ("transcription", ["abcd"], "abxd", page),
        ("memo", ["Tom"], "Tom.", memo),
        ("memo transcript", ["Ask Tom how", "Ask Thom how"], "ask tom now", memo),
    ]
    data = [
        {"questionId": str(i), "question": f"q{i}", "answers": answers, "kind": kind} | file
        for i, (kind, answers, _, file) in enumerate(asked)
    ]
    (tmp_path / "set.json").write_text(json.dumps({"data": data}), encoding="utf-8")
    task = get_task("blind")
    samples = task.load(tmp_path)
    scored = [Scored(s, task.score(s, asked[int(s.doc_id)][2]), asked[int(s.doc_id)][2]) for s in samples]
    result = task.aggregate(scored)
    assert set(scored[5].scores) == {"cer"} and set(scored[7].scores) == {"wer"}
    assert result["anls"] == result["exact_match"] == 2 / 5
    assert result["answerable_anls"] == pytest.approx(1 / 3)
    assert result["anls/prose"] == 0.5 and result["anls/chart"] == 0 and result["anls/unanswerable"] == 0.5
    assert result["refusal_precision"] == 0.5 and result["refusal_recall"] == 0.5
    assert result["cer"] == result["cer_median"] == 0.25
    assert result["wer"] == pytest.approx(1 / 3)
    assert result["memo_exact_match"] == result["memo_exact_match/memo"] == 1
    assert result["document_anls/letter"] == result["condition_anls/turned"] == 2 / 5
    assert task.aggregate([])["anls"] == 0
    transcripts = task.aggregate([scored[5], scored[7]])
    assert not {"anls", "exact_match", "answerable_anls", "memo_anls"} & transcripts.keys()  # not one that is 0
    assert transcripts["cer"] == 0.25 and "wer" not in task.aggregate(scored[:7])
    better = higher_is_better(scored)
    assert [name for name, high in better.items() if not high] == ["cer", "wer"]
    assert better["anls"] and better["memo_exact_match"]


def test_what_cannot_be_used_is_left_out(tmp_path):
    good = {"question": "q", "answers": ["a"], "kind": "prose"}
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    rows = [
        good | {"questionId": "1", "files": ["a.png"]},
        good | {"questionId": "2", "files": ["b.png"]},
        good | {"questionId": "3", "files": ["c.pdf"]},
        good | {"questionId": "4"},
        {"questionId": "5", "question": "q", "answers": ["a"], "files": ["a.png"]},
    ]
    (tmp_path / "set.json").write_text(json.dumps(rows), encoding="utf-8")
    found = get_task("blind").load(tmp_path)
    assert [sample.doc_id for sample in found] == ["1"]
    reasons = [reason.split(":")[0] for _, reason in found.skipped]
    assert reasons == ["damaged image", "missing document", "missing document", "no kind"]
