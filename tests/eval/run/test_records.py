"""The files of a run: whole lines only, one row a sample, settings that cannot be mixed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.eval.run.records import RowWriter, RunFiles, count_failed, read_rows, read_run, repetition_rate, safe_name

CONFIG = {
    "task": "t",
    "policy": "p",
    "metric": "m",
    "generation_kwargs": {"max_new_tokens": 8},
    "policy_config": {"a": (1,)},
}
MODEL = {"model": "owner/name", "model_fingerprint": "f", "dtype": "float32"}


def row(doc_id: str, **fields) -> dict:
    return {"doc_id": doc_id, "error": None, "m": 1.0, **fields}


def test_a_torn_line_is_cut_off_and_the_rest_goes_on(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    with RowWriter(path) as writer:
        writer.write(row("a", text="Zürich\n\ud800"))
        writer.write(row("b"))
    whole = path.read_bytes()
    for torn in (b'{"doc_id": "c", "err', b'{"doc_id": "c", "error": null}', b"\xff\xfe", b""):
        path.write_bytes(whole + torn)
        assert [r["doc_id"] for r in read_rows(path)] == ["a", "b"]  # readers leave it alone
        with RowWriter(path) as writer:
            writer.write(row("c"))
        assert [r["doc_id"] for r in read_rows(path)] == ["a", "b", "c"]
        assert path.read_bytes().startswith(whole)
    path.write_bytes(b'{"doc_id": "only')
    with RowWriter(path):
        pass
    assert path.read_bytes() == b"" and list(read_rows(tmp_path / "missing")) == []


def test_rows_of_several_processes_are_merged_once(tmp_path: Path):
    files = RunFiles.open(tmp_path, "owner/name")
    assert files.folder.name == "owner__name"
    files.begin(MODEL, {"t_p": CONFIG})
    for rank, ids in ((0, "ac"), (1, "bd")):
        with RowWriter(files.samples_path("t", "p", rank)) as writer:
            for doc_id in ids:
                writer.write(row(doc_id, rank=rank))
    with RowWriter(files.samples_path("t", "p")) as writer:
        writer.write(row("a", rank="earlier"))  # as after a crash between merging and removing
    assert list(files.merge("t", "p", "abcd")) == list("abcd")
    (path,) = files.folder.glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["doc_id"], line["rank"]) for line in lines] == [("a", "earlier"), ("b", 1), ("c", 0), ("d", 1)]
    before = path.stat().st_mtime_ns
    files.merge("t", "p", "abcd")
    assert path.stat().st_mtime_ns == before
    run = read_run(tmp_path)
    assert run.policies("t") == ["p"] and run.metric("t") == "m" and run.scores("t", "p") == {}
    assert [r["doc_id"] for r in run.samples["t"]["p"]] == list("abcd") and count_failed(run.samples["t"]["p"]) == 0


def test_an_answer_takes_the_place_of_a_failure(tmp_path: Path):
    files = RunFiles.open(tmp_path, "model")
    lines = [(None, "a", "old"), (None, "b", None), (0, "a", "new"), (1, "a", None), (1, "b", "late"), (1, "c", "bad")]
    for rank, doc_id, error in lines:
        with RowWriter(files.samples_path("t", "p", rank)) as writer:
            writer.write(row(doc_id, rank=rank, error=error))
    found = files.merge("t", "p", "abc")
    assert [(r["doc_id"], r["error"], r["rank"]) for r in found.values()] == [
        *[("a", None, 1), ("b", None, None), ("c", "bad", 1)]
    ]
    assert files.rows("t", "p") == found


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch):
    files = RunFiles.open(tmp_path, "model")
    with RowWriter(files.samples_path("t", "p")) as writer:
        writer.write(row("a"))

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        for write in (lambda: writer.write(row("b")), lambda: files.write_results({})):
            with pytest.raises(KVMMError, match=r"cannot be written \(No space left on device\): make room"):
                write()
    assert "a" in files.rows("t", "p")
    (tmp_path / "model" / "folder.jsonl").mkdir()
    with pytest.raises(KVMMError, match="cannot be written"):
        RowWriter(tmp_path / "model" / "folder.jsonl")


def test_a_run_goes_on_only_with_its_own_settings(tmp_path: Path):
    files = RunFiles.open(tmp_path, "model")
    files.begin(MODEL, {"t_p": CONFIG})
    again = RunFiles.open(tmp_path, "model")
    assert again == files
    again.begin(MODEL, {"t_p": {**CONFIG, "limit": 5}, "t_q": {**CONFIG, "policy": "q"}})  # what may change, and more
    assert list(read_run(tmp_path).results["configs"]) == ["t_p", "t_q"]
    other = {**CONFIG, "generation_kwargs": {"max_new_tokens": 9}}
    with pytest.raises(KVMMError, match=r"generation_kwargs.max_new_tokens is 8, not 9.*--fresh"):
        again.begin(MODEL, {"t_p": other})
    with pytest.raises(KVMMError, match="dtype is float32, not bfloat16"):
        again.begin({**MODEL, "dtype": "bfloat16"}, {"t_p": CONFIG})
    fresh = RunFiles.open(tmp_path, "model", fresh=True)
    assert fresh.date > files.date
    fresh.begin(MODEL, {"t_p": other})
    assert read_run(tmp_path).date == fresh.date
    assert read_run(files.results_path).config("t", "p")["generation_kwargs"]["max_new_tokens"] == 8


def test_a_setting_that_was_none_may_not_change_either(tmp_path: Path):
    """Neither at the top nor inside, where a None that changed hid all later differences."""
    retention = {"tiers": None, "window": 1}
    config = {**CONFIG, "split": None, "policy_config": {"name": "p", "retention": retention}}
    RunFiles.open(tmp_path, "model").begin({**MODEL, "image_processor": None}, {"t_p": config})
    changes = [
        ({"split": "test"}, "split is None, not test"),
        ({"policy_config": {"name": "p", "retention": {**retention, "tiers": ["high"]}}}, "retention.tiers is None"),
        ({"policy_config": {"name": "p", "retention": {"tiers": ["high"], "window": 2}}}, "retention.tiers is None"),
    ]
    for change, match in changes:
        with pytest.raises(KVMMError, match=match):
            RunFiles.open(tmp_path, "model").begin(MODEL, {"t_p": {**config, **change}})
    older = {key: value for key, value in config.items() if key != "split"}  # a run of a version that kept no split
    RunFiles.open(tmp_path, "older").begin(MODEL, {"t_p": older})
    RunFiles.open(tmp_path, "older").begin(MODEL, {"t_p": {**config, "split": "test"}})


@pytest.mark.parametrize(("one", "other"), [("k2 v4", "k2+v4"), ("策略甲", "策略乙"), ("svd", "svd.rank8")])
def test_policies_that_would_share_a_file_of_answers_are_refused(tmp_path: Path, one: str, other: str):
    files = RunFiles.open(tmp_path, "model")
    with pytest.raises(KVMMError, match=r"'.*' and '.*' would share the file"):
        files.begin(MODEL, {f"t_{name}": {**CONFIG, "policy": name} for name in (one, other)})
    files.begin(MODEL, {f"t_{one}": {**CONFIG, "policy": one}})
    with pytest.raises(KVMMError, match="would share the file"):  # one that comes later
        files.begin(MODEL, {f"t_{other}": {**CONFIG, "policy": other}})
    assert list(read_run(tmp_path).results["configs"]) == [f"t_{one}"]


def test_one_process_at_a_time_makes_a_run(tmp_path: Path):
    """The second one is told, another run and another model are free, and a process that is killed holds nothing."""
    files = RunFiles.open(tmp_path, "model")
    files.begin(MODEL, {"t_p": CONFIG})
    code = (
        "import sys, time; from kvmm.eval.run.records import RunFiles\n"
        "with RunFiles.open(sys.argv[1], 'model').locked(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(KVMMError, match=r"Another process is making the run .*--fresh.*--out"), files.locked():
                pytest.fail("two processes hold one run")
            for free in (RunFiles.open(tmp_path, "model", fresh=True), RunFiles.open(tmp_path, "other")):
                with free.locked():
                    pass
        finally:
            other.send_signal(signal.SIGKILL)
    with files.locked():
        assert RunFiles.open(tmp_path, "model") == files and list(read_run(tmp_path / "model").samples) == ["t"]
    with files.locked():
        pass


def test_what_cannot_be_read(tmp_path: Path):
    with pytest.raises(KVMMError, match="There are no results"):
        read_run(tmp_path)
    for name in ("one", "two"):
        RunFiles.open(tmp_path, name).begin(MODEL, {"t_p": CONFIG})
    with pytest.raises(KVMMError, match=r"several models.*one, two"):
        read_run(tmp_path)
    with pytest.raises(KVMMError, match="There is no run 1999"):
        read_run(tmp_path / "one", "1999")
    path = RunFiles.open(tmp_path, "one").results_path
    path.write_text("{")
    with pytest.raises(KVMMError, match=r"cannot be read.*--fresh"):
        read_run(tmp_path / "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(KVMMError, match="--out"):
        RunFiles.open(tmp_path / "file", "model")


def test_repetition_rate():
    assert repetition_rate([]) == repetition_rate([1, 1, 1, 1]) == 0.0
    assert repetition_rate([7] * 13) == pytest.approx(0.9)  # ten 4-grams, one of them new
    assert repetition_rate(list(range(50))) == 0.0
    assert repetition_rate([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)


def test_names_of_folders():
    assert safe_name("Qwen/Qwen2.5-VL-7B-Instruct") == "Qwen__Qwen2.5-VL-7B-Instruct"
    assert safe_name("../..") == "__" and safe_name("...") == "model"
