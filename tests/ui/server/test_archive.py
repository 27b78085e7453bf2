"""Benchmarks that visitors send: what is unpacked, what is refused, and that nothing else of the server is read."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image

from kvmm.errors import KVMMError
from kvmm.eval.report.pictures import pictures_of
from kvmm.eval.tasks import Sample, get_task, rows
from kvmm.eval.tasks.rows import media_inside_folder
from kvmm.media import load_image, load_media
from kvmm.ui.server import archive
from kvmm.ui.server.archive import unpack_benchmark


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (60, 40), "white").save(stream, "PNG")
    return stream.getvalue()


def item(number: int, image: str) -> dict:
    return {"questionId": number, "question": "What?", "answers": ["a"], "image": image}


def data(*images: str) -> bytes:
    return json.dumps({"data": [item(i, image) for i, image in enumerate(images)]}).encode()


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def test_the_official_layout_is_loaded(tmp_path, folder):
    files = {
        "set/qas/val.json": data("documents/a.png"),
        "set/documents/a.png": picture(),
        "__MACOSX/set/._a.png": b"x",
        "set/run.sh": b"x",
    }
    top, said = unpack_benchmark(make_zip(tmp_path / "docvqa.zip", files), folder)
    assert said == "docvqa.zip: 1 data file, 1 picture."
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["a.png", "val.json"]
    with media_inside_folder():
        assert len(get_task("docvqa").load(top)) == 1


def test_a_data_file_cannot_name_other_files_of_the_server(tmp_path, folder):
    (tmp_path / "secret.png").write_bytes(picture())
    names = ("a.png", str(tmp_path / "secret.png"), "../secret.png")
    top, _ = unpack_benchmark(make_zip(tmp_path / "x.zip", {"q.json": data(*names), "a.png": picture()}), folder)
    task = get_task("docvqa")
    assert len(task.load(top)) == 3  # for somebody's own data all of these are paths
    with media_inside_folder():
        found = task.load(top)
    assert [sample.images for sample in found] == [(folder / "a.png",)]
    assert [reason.split(":")[0] for _, reason in found.skipped] == ["missing image"] * 2


@pytest.mark.parametrize("name", ["../out.json", "/out.json", "a\\..\\..\\out.json", "c:out.json"])
def test_names_that_lead_out_are_refused(tmp_path, folder, name):
    with pytest.raises(KVMMError, match="leads out of it"):
        unpack_benchmark(make_zip(tmp_path / "x.zip", {name: b"[]"}), folder)
    assert not list(folder.iterdir()) and not list(tmp_path.rglob("out.json"))


def test_what_unpacks_to_too_much_is_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1 << 20)
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    bomb = make_zip(tmp_path / "x.zip", {"a.json": b"[]", "a.png": bytes(2 << 20)})
    assert bomb.stat().st_size < 10_000
    with pytest.raises(KVMMError, match=r"x\.zip is too large.*1 MiB unpacked"):
        unpack_benchmark(bomb, folder)
    many = make_zip(tmp_path / "y.zip", {f"{i}.json": b"[]" for i in range(4)})
    with pytest.raises(KVMMError, match="more than 3 files"):
        unpack_benchmark(many, folder)
    monkeypatch.setattr(archive, "MAX_DATA_BYTES", 10)
    (tmp_path / "long.json").write_bytes(bytes(11))
    with pytest.raises(KVMMError, match="is too large"):
        unpack_benchmark(tmp_path / "long.json", folder)


@pytest.mark.parametrize(
    "values", [b"[" + b"{}," * 1_500_000 + b"{}]", b"[" * 1_100_000, b'{"data":[' + b"1," * 1_100_000]
)
def test_a_small_zip_of_many_values_is_refused_before_it_is_parsed(tmp_path, folder, values):
    path = make_zip(tmp_path / "x.zip", {"a.json": values})
    assert path.stat().st_size < 40_000
    with pytest.raises(KVMMError, match=r"x\.zip has more than 1,000,000 values"):
        unpack_benchmark(path, folder)
    (tmp_path / "x.json").write_bytes(values)
    with pytest.raises(KVMMError, match="more than 1,000,000 values"):
        unpack_benchmark(tmp_path / "x.json", folder)


def test_data_files_share_one_limit(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archive, "MAX_DATA_BYTES", 3_000)
    files = {f"{i}.json": b"[" + b" " * 998 + b"]" for i in range(4)}
    with pytest.raises(KVMMError, match=r"data files may have 0 MiB"):
        unpack_benchmark(make_zip(tmp_path / "x.zip", files), folder)
    lines = {"a.jsonl": b"\n" * 600, "b.jsonl": b"\n" * 600}
    monkeypatch.setattr(archive, "MAX_DATA_VALUES", 1_000)
    with pytest.raises(KVMMError, match="more than 1,000 values"):
        unpack_benchmark(make_zip(tmp_path / "y.zip", lines), folder)


def test_a_list_of_files_is_bounded_before_it_is_read(tmp_path, folder, monkeypatch):
    many = make_zip(tmp_path / "many.zip", {f"{i:0200}.txt": b"" for i in range(70_000)})  # needs the second record
    assert archive._directory_bytes(many) > archive.MAX_DIRECTORY_BYTES
    monkeypatch.setattr(zipfile.ZipFile, "__init__", lambda *_: pytest.fail("the list was read"))
    with pytest.raises(KVMMError, match=r"many\.zip has more than 10,000 files"):
        unpack_benchmark(many, folder)
    monkeypatch.undo()
    deep = make_zip(tmp_path / "deep.zip", {f"{i}/a.png": b"" for i in range(101)})
    with pytest.raises(KVMMError, match="more than 100 folders"):
        unpack_benchmark(deep, folder)


def test_what_others_sent_has_fewer_items_and_shorter_questions(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(rows, "MAX_ITEMS", 3)
    monkeypatch.setattr(rows, "MAX_TEXT", 20)
    (folder / "a.png").write_bytes(picture())
    long = {**item(9, "a.png"), "question": "What is it? " * 3}
    for name, text in (
        ("a.json", json.dumps([long, *(item(i, "a.png") for i in range(2))])),
        ("b.jsonl", "\n".join(json.dumps(item(i, "a.png")) for i in range(4))),
    ):
        (folder / name).write_text(text)
    task = get_task("docvqa")
    assert len(task.load(folder / "a.json")) == 3 and len(task.load(folder / "b.jsonl")) == 4  # one's own data
    with media_inside_folder():
        assert [reason for _, reason in task.load(folder / "a.json").skipped] == [
            "long question: more than 20 characters"
        ]
        with pytest.raises(KVMMError, match=r"b\.jsonl holds more than 3 items"):
            task.load(folder / "b.jsonl")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for Ghostscript")
def test_no_picture_starts_ghostscript(tmp_path, folder, monkeypatch):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 60 40\n%%EndComments\nshowpage\n"
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {folder}/started\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # not looked for yet
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (folder / "i.png").write_bytes(eps)
    with Image.open(folder / "i.png") as image, pytest.raises(OSError):  # so it is with all of Pillow's formats
        image.load()
    assert (folder / "started").exists()
    (folder / "started").unlink()
    for load in (load_image, load_media):
        with pytest.raises(KVMMError, match=r"i\.png is a text file"):
            load(folder / "i.png")
    (folder / "a.json").write_bytes(data("i.png"))
    with pytest.raises(KVMMError, match="damaged image"):
        get_task("docvqa").load(folder / "a.json")
    assert pictures_of(Sample("a", "q", ("a",), images=(folder / "i.png",))) == []
    assert not (folder / "started").exists()


def test_files_of_another_kind_are_one_line(tmp_path, folder):
    cut = make_zip(tmp_path / "cut.zip", {"a.json": b"[" + b" 1," * 9999 + b" 1]"})
    content = bytearray(cut.read_bytes())
    content[60:90] = bytes(30)
    cut.write_bytes(content)
    (tmp_path / "empty.zip").write_bytes(b"")
    (tmp_path / "page.png").write_bytes(picture())
    pictures = make_zip(tmp_path / "pictures.zip", {"a.png": picture()})
    for path, match in (
        (cut, "cut.zip is damaged"),
        (tmp_path / "empty.zip", "empty.zip is damaged"),
        (tmp_path / "page.png", "is not a .zip, .json or .jsonl file"),
        (pictures, "holds no .json or .jsonl file"),
    ):
        (folder / path.stem).mkdir()
        with pytest.raises(KVMMError, match=match) as error:
            unpack_benchmark(path, folder / path.stem)
        assert "\n" not in str(error.value)
