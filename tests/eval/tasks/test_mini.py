"""The bundled mini sets: official formats, every file there and readable, nothing too large."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from kvmm.eval.tasks import get_task
from kvmm.models.loading import assets_folder
from training.mini import documents
from training.mini.files import Folder

# task: (folder, least number of questions, of documents)
SETS = {
    "docvqa": ("docvqa", 300),
    "ocrbench": ("ocrbench", 200),
    "audio-qa": ("audio", 150),
    "mp-docvqa": ("multipage", 60),
}
TYPES = {
    "Regular Text Recognition", "Irregular Text Recognition", "Artistic Text Recognition", "Handwriting Recognition",
    "Digit String Recognition", "Non-Semantic Text Recognition", "Scene Text-centric VQA", "Doc-oriented VQA",
    "Key Information Extraction", "Handwritten Mathematical Expression Recognition",
}  # fmt: skip
MINI = assets_folder() / "mini"


@pytest.fixture(scope="module")
def loaded():
    return {task: get_task(task).load("mini") for task in SETS}


@pytest.mark.parametrize("task", SETS)
def test_the_task_loads_every_question(loaded, task):
    found = loaded[task]
    folder, least = SETS[task]
    (file,) = (MINI / folder).glob("*.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    rows = data if isinstance(data, list) else data["data"]
    assert not found.skipped
    assert len(found) == len(rows) >= least
    assert len({sample.doc_id for sample in found}) == len(found)
    for sample in found:
        assert sample.answers and all(answer.strip() for answer in sample.answers)
        assert sample.question.strip() or sample.audio is not None


@pytest.mark.parametrize("task", SETS)
def test_every_file_opens_and_none_is_left_over(loaded, task):
    used = {}
    for sample in loaded[task]:
        used.update(dict.fromkeys(map(str, sample.images), "image"))
        if sample.audio is not None:
            if str(sample.audio) not in used:
                assert 0.5 < len(sample.load_audio()) / 16_000 < 30
            used[str(sample.audio)] = "audio"
    images = {path for path, kind in used.items() if kind == "image"}
    for sample in loaded[task]:
        if images & set(map(str, sample.images)):
            for picture in sample.load_images():
                assert min(picture.size) >= 300
            images -= set(map(str, sample.images))
    assert not images
    on_disk = {str(path) for path in (MINI / SETS[task][0]).rglob("*") if path.is_file() and path.suffix != ".json"}
    assert on_disk == set(used)


def test_several_questions_share_a_document(loaded):
    for task in ("docvqa", "mp-docvqa", "audio-qa"):
        groups = Counter(sample.group for sample in loaded[task])
        assert None not in groups
        assert max(groups.values()) >= 3
    assert {sample.metadata["pages"] for sample in loaded["mp-docvqa"]} == set(range(2, 9))


def test_ocrbench_has_all_ten_types_and_the_rule_for_formulas(loaded):
    types = Counter(sample.metadata["type"] for sample in loaded["ocrbench"])
    assert set(types) == TYPES
    assert min(types.values()) >= 16
    formulas = {s.metadata["dataset"] for s in loaded["ocrbench"] if "Mathematical" in s.metadata["type"]}
    assert formulas == {"HME100k"}


def test_spoken_questions_have_a_page_and_no_text(loaded):
    spoken = [sample for sample in loaded["audio-qa"] if not sample.question]
    assert len(spoken) >= 30
    assert all(sample.images and sample.audio is not None for sample in spoken)


def test_the_sets_are_small_and_documented():
    assert sum(path.stat().st_size for path in MINI.rglob("*") if path.is_file()) <= 8_000_000
    text = (MINI / "README.md").read_text(encoding="utf-8")
    for photograph in ("china.jpg", "coffee.png", "CC BY 2.0", "CC0"):
        assert photograph in text


def test_the_generator_writes_the_same_bytes_twice(tmp_path):
    # from the part of the held-out set that is kept with the tests; fonts and photographs are not needed for these
    source = Path(__file__).parents[2] / "data" / "heldout"
    lines = [json.loads(line) for line in (source / "sample.jsonl").read_text(encoding="utf-8").splitlines()]
    made = []
    for name in ("one", "two"):
        root = tmp_path / name
        rows, used = documents.docvqa(Folder(root / "docvqa"), source, lines, 1)
        rows += documents.audio(Folder(root / "audio"), source, lines, 2)
        rows += documents.multipage(Folder(root / "multipage"), source, lines, 3)
        assert len(used) == len(list((root / "docvqa" / "documents").iterdir()))
        made.append({str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()})
    assert made[0] == made[1]
    assert len(rows) > 30
    # a clean page loses nothing
    page = next(row for row in rows if "image" in row and row["image"].endswith(".webp"))
    original = next(
        line["images"][0] for line in lines if line["turns"][0]["question"] == page["question"] and line["images"]
    )
    with Image.open(tmp_path / "one" / "docvqa" / page["image"]) as stored, Image.open(source / original) as kept:
        assert stored.convert("RGB").tobytes() == kept.convert("RGB").tobytes()
