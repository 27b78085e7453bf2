"""Tasks: what they read from the official formats, and what becomes of bad data."""

from __future__ import annotations

import json
import operator
import pickle
import sys
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kvmm.errors import KVMMError
from kvmm.eval.tasks import Scored, get_task, task_names

VECTORS = Path(__file__).parents[2] / "data" / "vectors"


def png(colour: str = "white") -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (60, 40), colour).save(buffer, "PNG")
    return buffer.getvalue()


def docvqa_item(number: int, image: str = "a", **changes: object) -> dict:
    item = {
        "questionId": number,
        "question": f"What is {number}?",
        "question_types": ["form"],
        "image": f"documents/{image}.png",
        "docId": 7,
        "ucsf_document_id": "abcd0001",
        "ucsf_document_page_no": "1",
        "answers": [f"answer {number}", "other"],
        "data_split": "val",
    }
    return {**item, **changes}


def write_docvqa(folder: Path, items: list, name: str = "val_v1.0_withQT.json") -> Path:
    (folder / "documents").mkdir(exist_ok=True)
    for page in "ab":
        (folder / "documents" / f"{page}.png").write_bytes(png())
    head = {"dataset_name": "docvqa", "dataset_version": "1.0", "dataset_split": "val"}
    (folder / name).write_text(json.dumps({**head, "data": items}), encoding="utf-8")
    return folder


def write_parquet(path: Path, rows: list[dict], row_group_size: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return path


def hub_row(number: int, image: bytes | None, **changes: object) -> dict:
    cell = None if image is None else {"bytes": image, "path": None}
    return {**docvqa_item(number), "questionId": str(number), "image": cell, **changes}


# --------------------------------------------------------------------------------------------------------------------
# Registry


def test_registry_knows_its_tasks_and_names_them():
    assert {"docvqa", "ocrbench", "coco-caption", "mmau-pro", "niah", "longbench-e"} <= set(task_names())
    assert get_task("coco_caption").name == "coco-caption"
    with pytest.raises(KVMMError, match=r"no task docvq: choose one of .*docvqa.*ocrbench"):
        get_task("docvq")
    for name in task_names():
        task = pickle.loads(pickle.dumps(get_task(name)))
        assert task.aggregate([])[task.metric] == 0 and task.max_new_tokens > 0


def test_options_in_the_name():
    task = get_task("niah@lengths=300+600,depths=0.5,repeats=1,seed=7")
    samples = task.load("generated").samples
    assert [sample.doc_id for sample in samples] == ["300-0.50-0", "600-0.50-0"]
    again = get_task(task.name)
    assert again.name == task.name and again.load("generated").samples[1].question == samples[1].question
    plain = get_task("niah", lengths=(300, 600), depths=(0.5,), repeats=1, seed=7)
    assert plain.option_values() == task.option_values() == {
        **{"lengths": [300, 600], "depths": [0.5], "repeats": 1, "seed": 7},
        "count_tokens": "kvmm.eval.tasks.niah.about_tokens",
    }  # fmt: skip
    for name in task_names():  # each option by its own name, in what JSON holds
        made = get_task(name)
        values = made.option_values()
        assert made.options.keys() <= values.keys() and json.loads(json.dumps(values)) == values
    assert plain.name == "niah" and plain.load().samples[0].question == samples[0].question
    assert get_task("mmau-pro@judge=operator.countOf").judge is operator.countOf
    for name, message in {
        "niah@length=3": "niah has no option 'length': lengths, depths, repeats, seed",
        "niah@lengths=three": "lengths=three of niah is wrong",
        "docvqa@seed=1": "it has none",
        "mmau-pro@judge=operator.nothing": "cannot be imported",
        "mmau-pro@judge=nothing": "cannot be imported",
    }.items():
        with pytest.raises(KVMMError, match=message):
            get_task(name)


# --------------------------------------------------------------------------------------------------------------------
# DocVQA's JSON


def test_docvqa_official_json(tmp_path: Path):
    items = [docvqa_item(3, "a"), docvqa_item(1, "b", question_types=["form", "layout"]), docvqa_item(2, "a")]
    task = get_task("docvqa")
    samples = task.load(write_docvqa(tmp_path, items)).samples
    assert [sample.doc_id for sample in samples] == ["3", "2", "1"]  # questions of a page are neighbours
    assert samples[0].group == samples[1].group != samples[2].group
    assert samples[0].question == "What is 3?\nAnswer the question using a single word or phrase."
    assert samples[0].answers == ("answer 3", "other")
    assert samples[0].load_images()[0].size == (60, 40) and samples[0].load_audio() is None
    assert json.loads(json.dumps(dict(samples[0].metadata)))["page"] == "1"
    assert [s.doc_id for s in task.load(tmp_path / "val_v1.0_withQT.json", limit=2)] == ["3", "1"]

    scored = [
        Scored(s, task.score(s, text), text) for s, text in zip(samples, ["answer 3", "no", "answr 1"], strict=True)
    ]
    assert task.aggregate(scored) == pytest.approx(
        {
            "anls": (1 + 0 + 7 / 8) / 3,
            "exact_match": 1 / 3,
            "anls/form": (1 + 0 + 7 / 8) / 3,
            "anls/layout": 7 / 8,
        }
    )


def test_docvqa_scores_are_those_of_the_rows(tmp_path: Path):
    task = get_task("docvqa")
    sample = task.load(write_docvqa(tmp_path, [docvqa_item(1)])).samples[0]
    for row in json.loads((VECTORS / "anls.json").read_text(encoding="utf-8")):
        asked = type(sample)(sample.doc_id, sample.question, tuple(row["answers"]))
        assert task.score(asked, row["prediction"])["anls"] == pytest.approx(row["anls"], abs=1e-12)


def test_splits_and_loose_folders(tmp_path: Path):
    write_docvqa(tmp_path, [docvqa_item(1)])
    write_docvqa(tmp_path, [docvqa_item(2)], "train_v1.0_withQT.json")
    (tmp_path / "documents").rename(tmp_path / "spdocvqa_images")  # the archive's name
    task = get_task("docvqa")
    assert [s.doc_id for s in task.load(tmp_path)] == ["1"]
    assert [s.doc_id for s in task.load(tmp_path, split="train")] == ["2"]
    assert [s.doc_id for s in task.load(tmp_path, split="validation")] == ["1"]
    with pytest.raises(KVMMError, match="no split test: choose one of train, val"):
        task.load(tmp_path, split="test")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (docvqa_item(9, "gone"), "missing image: documents/gone.png"),
        ({**docvqa_item(9), "image": None}, "missing image"),
        (docvqa_item(9, "broken"), "damaged image: broken.png"),
        (docvqa_item(9, "x" * 400), "missing image"),
        (docvqa_item(9, answers=[]), "no answers"),
        (docvqa_item(9, answers=[" "]), "no answers"),
        (docvqa_item(9, answers=None), "no answers"),
        (docvqa_item(9, question=""), "empty question"),
        (docvqa_item(9, question=["?"]), "question is not a text"),
        (docvqa_item(9, question_types=4), "question_types is not a list"),
        (docvqa_item(1), "duplicate id"),
        ("a text", "wrong JSON"),
    ],
)
def test_bad_items_are_left_out_with_a_reason(tmp_path: Path, item: object, reason: str):
    write_docvqa(tmp_path, [docvqa_item(1), item, docvqa_item(2)])
    (tmp_path / "documents" / "broken.png").write_bytes(b"not a picture")
    loaded = get_task("docvqa").load(tmp_path)
    assert [sample.doc_id for sample in loaded] == ["1", "2"]
    [(_, why)] = loaded.skipped
    assert why.startswith(reason)
    assert loaded.summary() == f"docvqa: 2 questions from {tmp_path}; 1 left out (1 {why.split(':')[0]})"


def test_an_image_cut_off_is_an_error_when_it_is_opened(tmp_path: Path):
    write_docvqa(tmp_path, [docvqa_item(1)])
    image = tmp_path / "documents" / "a.png"
    image.write_bytes(image.read_bytes()[:60])
    with pytest.raises(KVMMError, match="cut off"):
        get_task("docvqa").load(tmp_path).samples[0].load_images()


def test_a_repaired_file_is_seen(tmp_path: Path):
    write_docvqa(tmp_path, [docvqa_item(1), docvqa_item(2, "late")])
    assert len(get_task("docvqa").load(tmp_path)) == 1
    (tmp_path / "documents" / "late.png").write_bytes(png())
    assert len(get_task("docvqa").load(tmp_path)) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("val.json", b'{"data": [{"questionId": 1,', "val.json is not JSON"),
        ("val.json", '{"data": ["Straße"]}'.encode("latin-1"), "val.json is not UTF-8"),
        ("val.json", b"", "val.json is not JSON"),
        ("val.json", b'{"data": []}', "no usable item for docvqa .it is empty"),
        ("val.json", b'{"version": 1}', "holds no list of items"),
        ("val.json", b'{"data": [{"questionId": 1}]}', "1 left out, the first: no question"),
        ("val.txt", b"[]", "not JSON, JSON lines, a table or parquet"),
        ("val.parquet", b"PAR1 nothing", "val.parquet is not parquet"),
    ],
)
def test_files_that_cannot_be_read_say_what_to_do(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KVMMError, match=message) as caught:
        get_task("docvqa").load(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_sources_that_are_not_there(tmp_path: Path):
    task = get_task("docvqa")
    with pytest.raises(KVMMError, match="does not exist"):
        task.load(tmp_path / "nothing.json")
    with pytest.raises(KVMMError, match=r"no \.json, \.jsonl, \.tsv or \.parquet"):
        task.load(tmp_path)
    with pytest.raises(KVMMError, match="no mini set for this task"):
        get_task("longbench-e").load("mini")
    with pytest.raises(KVMMError, match="at least 1"):
        task.load(write_docvqa(tmp_path, [docvqa_item(1)]), limit=0)


def test_json_lines_lose_only_the_bad_lines(tmp_path: Path):
    write_docvqa(tmp_path, [])
    (tmp_path / "val_v1.0_withQT.json").unlink()
    lines = [json.dumps(docvqa_item(n)).encode() for n in (1, 2)]
    lines[1:1] = [b"{broken", '{"question": "Straße"}'.encode("latin-1"), b""]
    (tmp_path / "val.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    loaded = get_task("docvqa").load(tmp_path)
    assert [sample.doc_id for sample in loaded] == ["1", "2"]
    assert loaded.skipped_by_kind() == {"wrong JSON": 1, "wrong encoding": 1}


# --------------------------------------------------------------------------------------------------------------------
# Parquet and data set ids


def test_hub_parquet_in_shards(tmp_path: Path):
    rows = [hub_row(n, png("white" if n % 2 else "black")) for n in range(5)]
    write_parquet(tmp_path / "DocVQA" / "validation-00000-of-00002.parquet", rows[:3])
    write_parquet(tmp_path / "DocVQA" / "validation-00001-of-00002.parquet", rows[3:])
    write_parquet(tmp_path / "DocVQA" / "test-00000-of-00001.parquet", [hub_row(99, png())])
    (tmp_path / "dataset_infos.json").write_text("{}")
    samples = get_task("docvqa").load(tmp_path).samples
    assert [sample.doc_id for sample in samples] == ["0", "2", "4", "1", "3"]
    assert samples[0].question.startswith("What is 0?")
    for sample in pickle.loads(pickle.dumps(samples)):
        assert sample.load_images()[0].size == (60, 40)


def test_images_are_not_opened_by_a_decoder_before_they_are_asked_about(tmp_path: Path, monkeypatch):
    write_docvqa(tmp_path, [docvqa_item(1)])
    cells = write_parquet(tmp_path / "val.parquet", [hub_row(1, png())])

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a decoder meets what a visitor sent")

    monkeypatch.setattr(Image, "open", opened)
    for data in (tmp_path, cells):
        assert [sample.doc_id for sample in get_task("docvqa").load(data)] == ["1"]


def test_parquet_cells_that_hold_no_image(tmp_path: Path):
    rows = [hub_row(1, png()), hub_row(2, b"no picture"), hub_row(3, None), hub_row(4, b""), hub_row(5, png())]
    loaded = get_task("docvqa").load(write_parquet(tmp_path / "val.parquet", rows))
    assert [sample.doc_id for sample in loaded] == ["1", "5"]
    assert dict(loaded.skipped) == {"2": "damaged image", "3": "missing image", "4": "missing image"}


def test_ocrbench_hub_parquet(tmp_path: Path):
    row = {
        "dataset": "HME100k",
        "question": "Which?",
        "question_type": "Handwritten Mathematical Expression Recognition",
    }
    cell = {"bytes": png(), "path": "0.png"}
    rows = [
        {**row, "answer": ["x ^ 2"], "image": cell},
        {**row, "question_type": "Poetry", "answer": ["y"], "image": cell},
    ]
    task = get_task("ocrbench")
    loaded = task.load(write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows).parents[1])
    assert dict(loaded.skipped) == {"1": "unknown type: Poetry"}
    [sample] = loaded
    assert sample.doc_id == "0" and sample.load_images()[0].size == (60, 40)
    assert task.score(sample, "it is x^2") == {"ocrbench_accuracy": 1}
    assert task.score(sample, "it is X^2") == {"ocrbench_accuracy": 0}


def test_parquet_without_a_column(tmp_path: Path):
    rows = [{k: v for k, v in hub_row(1, png()).items() if k not in ("answers", "image")}]
    with pytest.raises(KVMMError, match=r"no column answers or answer .it has questionId, question"):
        get_task("docvqa").load(write_parquet(tmp_path / "val.parquet", rows))


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_parquet(tmp_path / "val.parquet", [hub_row(1, png())])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(KVMMError, match=r"needs pyarrow: pip install \"kvmm\[eval\]\""):
        get_task("docvqa").load(path)


def test_data_set_id(monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    rows = [hub_row(1, png()), hub_row(2, b"no picture"), hub_row(3, None)]
    data = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    asked = []

    def load_dataset(name: str, config: str | None):
        asked.append((name, config))
        return datasets.DatasetDict({"test": data.select([0]), "validation": data})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = get_task("docvqa").load("lmms-lab/DocVQA:DocVQA")
    assert asked == [("lmms-lab/DocVQA", "DocVQA")]
    assert [sample.doc_id for sample in loaded] == ["1"]
    assert loaded.samples[0].load_images()[0].size == (60, 40)
    assert loaded.skipped_by_kind() == {"damaged image": 1, "missing image": 1}
    with pytest.raises(KVMMError, match="no split train: choose one of test, validation"):
        get_task("docvqa").load("lmms-lab/DocVQA", split="train")

    def no_network(*_: object):
        raise ConnectionError("Couldn't reach the hub\nTraceback ...")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(KVMMError, match=r"cannot be loaded .Couldn't reach the hub.: check the id") as caught:
        get_task("docvqa").load("lmms-lab/DocVQA")
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(KVMMError, match=r"needs the datasets package: pip install \"kvmm\[eval\]\""):
        get_task("docvqa").load("lmms-lab/DocVQA")


# --------------------------------------------------------------------------------------------------------------------
# The bundled sets


@pytest.mark.parametrize(("task", "least"), [("docvqa", 300), ("ocrbench", 200), ("audio-qa", 150), ("mp-docvqa", 60)])
def test_mini_sets(task: str, least: int):
    loaded = get_task(task).load("mini")
    assert len(loaded) >= least and not loaded.skipped
    sample = loaded.samples[-1]
    assert all(min(image.size) > 20 for image in sample.load_images())
    if task == "audio-qa":
        assert len(sample.load_audio()) > 1000
        assert any(not sample.question for sample in loaded) and any(sample.question for sample in loaded)
