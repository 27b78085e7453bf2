"""Answers of samples: shared reading, batches, failures, resuming. The embedded model in float32, on the mini set."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvmm.calibration import calibration_of
from kvmm.errors import KVMMError
from kvmm.eval.report.build import task_result
from kvmm.eval.report.compare import table
from kvmm.eval.run import runner
from kvmm.eval.run.batching import DocumentBatch, make_prompt
from kvmm.eval.run.evaluate import run
from kvmm.eval.run.records import RowWriter, RunFiles, read_run
from kvmm.eval.run.runner import Settings, answer_samples, documents, share_of, units
from kvmm.eval.tasks import Sample, get_task
from kvmm.eval.tasks.docvqa import DocVQA
from kvmm.models.caches import new_cache, resolve_policies
from kvmm.models.documents import Document, answer_tokens, greedy_settings
from kvmm.models.prompting import encode_question
from kvmm.policy import get_policy
from tests.decoding.hostile import deep_png
from tests.decoding.processes import held, parent
from tests.encoded_pages import load_embedded

POLICIES = ("bf16", "rd2", "kivi2")


@pytest.fixture(scope="module")
def loaded():
    return load_embedded()


@pytest.fixture(scope="module")
def task():
    return get_task("docvqa")


@pytest.fixture(scope="module")
def samples(task):
    """Five questions of three pages of different size; two pages have two questions."""
    found = documents(task.load("mini").samples)
    sizes: dict[tuple, list] = {}
    for document in found:
        if len(document) >= 2:
            sizes.setdefault(document[0].load_images()[0].size, document)
        if len(sizes) == 3:
            break
    first, second, third = sizes.values()
    return [*first[:2], *second[:2], third[0]]


@pytest.fixture(scope="module")
def alone(loaded, task, samples):
    """Rows of one question at a time."""
    model, processor = loaded
    rows = list(answer_samples(model, processor, task, samples, resolve_policies(POLICIES), batch_size=1))
    return {(row["policy"], row["doc_id"]): row for row in rows}


def test_units_keep_documents_together():
    samples = [Sample(str(i), "q", ("a",), group=group) for i, group in enumerate("aabcccccd")]
    samples.append(Sample("x", "q", ("a",)))
    samples.append(Sample("y", "q", ("a",)))
    shape = {size: [[len(d) for d in unit] for unit in units(samples, size)] for size in (1, 2, 4)}
    assert shape[1] == [[2], [1], [5], [1], [1], [1]]
    assert shape[2] == [[2], [1], [5], [1, 1], [1]]
    assert shape[4] == [[2, 1], [5], [1, 1, 1]]
    parts = [share_of(samples, rank, 3) for rank in range(3)]
    assert sorted(s.doc_id for part in parts for s in part) == sorted(s.doc_id for s in samples)
    assert all(len({rank for rank in range(3) if any(s.group == g for s in parts[rank])}) == 1 for g in "abcd")


def test_rows_say_what_an_answer_took(alone, loaded, task, samples):
    model, processor = loaded
    for policy in ("bf16", "rd2"):
        sample = samples[1]
        row = alone[policy, sample.doc_id]
        inputs = encode_question(model, processor, sample.question, sample.load_images())
        cache = Document(model, inputs).cache(policy)
        tokens = answer_tokens(model, inputs, cache, task.max_new_tokens)
        report = cache.memory()
        assert row["filtered_resps"] == processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
        assert row["token_counts"] == {"prompt": inputs["input_ids"].shape[1], "output": len(tokens)}
        assert row["kv_bytes"] == report.held_nbytes and row["kv_bytes_bf16"] == report.nbytes_dense
        assert row["packed_bits_per_value"] == report.packed_bits_per_value > 0
        assert row["bits_per_value"] == pytest.approx(report.bits_per_value)
        assert row["tokens_by_modality"] == {name: x["tokens"] for name, x in report.by_modality.items()}
        assert row["anls"] == task.score(sample, row["filtered_resps"])["anls"]
        assert 0 < row["tpot_s"] < row["ttft_s"] and row["error"] is None
    total = {policy: sum(alone[policy, s.doc_id]["anls"] for s in samples) for policy in POLICIES}
    assert total["bf16"] >= 3  # the set is one that the model can answer


def test_batches_answer_as_one_by_one(alone, loaded, task, samples):
    """Pages of different size, questions of different length, pages with two questions: all in one batch."""
    model, processor = loaded
    rows = list(answer_samples(model, processor, task, samples, resolve_policies(POLICIES), batch_size=8))
    assert [row["policy"] for row in rows] == [name for name in POLICIES for _ in samples]
    for row in rows:
        one = alone[row["policy"], row["doc_id"]]
        assert row["filtered_resps"] == one["filtered_resps"], row["policy"]
        assert row["tokens_by_modality"] == one["tokens_by_modality"]
        assert row["kv_bytes_bf16"] == one["kv_bytes_bf16"]
        assert row["confidence"] == pytest.approx(one["confidence"], abs=0.01)
        # padding is not counted: only the size of pages, and so of the last one, is that of the batch
        tolerance = 0.2 if row["doc_id"] == samples[4].doc_id else 0.03
        assert row["kv_bytes"] == pytest.approx(one["kv_bytes"], rel=tolerance)


def test_question_first_is_plain_generation(loaded, samples):
    """The shared reading leaves out two tokens; what comes of it is what ``generate`` makes of a new cache."""
    model, processor = loaded
    prompts = []
    for sample in (samples[0], samples[4]):
        inputs = encode_question(model, processor, sample.question, sample.load_images())
        prompts.append(make_prompt(model, inputs, pack_first=False))
    batch = DocumentBatch(model, prompts)
    found = [answer.tokens for answer in batch.answers("rd2", prompts, range(2), 8)]
    for prompt, tokens in zip(prompts, found, strict=True):
        plain = model.generate(
            **prompt.inputs,
            position_ids=prompt.positions,
            past_key_values=new_cache(model, "rd2"),
            max_new_tokens=8,
            **greedy_settings(model),
        )
        assert tokens == plain[0, prompt.length :].tolist()


def test_only_greedy_answers_say_how_sure_they_are(loaded, samples):
    model, processor = loaded
    inputs = encode_question(model, processor, "What is written on this page?", samples[0].load_images())
    prompt = make_prompt(model, inputs, pack_first=True)
    batch = DocumentBatch(model, [prompt])
    (greedy,) = batch.answers("bf16", [prompt], [0], 40)
    (drawn,) = batch.answers("bf16", [prompt], [0], 4, do_sample=True)
    assert len(greedy.tokens) > 8 and 0 < greedy.confidence.probability < 1, "a transcription, too"
    assert drawn.confidence is None


def test_a_text_without_media(loaded, task):
    sample = Sample("t", "Write the word cat.", ("cat",))
    rows = list(answer_samples(*loaded, task, [sample], resolve_policies(["rd2"]), max_new_tokens=4))
    assert [row["error"] for row in rows] == [None] and set(rows[0]["tokens_by_modality"]) == {"text"}


def test_what_is_wrong_with_a_sample_is_its_own(loaded, task, samples, tmp_path):
    """Missing and damaged files, a prompt beyond the window: recorded, counted, and the others are answered."""
    whole = samples[0].images[0]
    (tmp_path / "torn.png").write_bytes(Path(whole).read_bytes()[:3000])
    bad = [
        Sample("missing", "q?", ("a",), images=(tmp_path / "missing.png",)),
        Sample("torn", "q?", ("a",), images=(tmp_path / "torn.png",), group="g"),
        Sample("long", "word " * 9000, ("a",)),
    ]
    found = run(
        *loaded, task, [bad[0], samples[0], *bad[1:]], ("rd2", "bf16"), tmp_path, batch_size=4, max_new_tokens=4
    )
    for policy in ("rd2", "bf16"):
        rows = {row["doc_id"]: row for row in found.samples["docvqa"][policy]}
        assert list(rows) == ["missing", samples[0].doc_id, "torn", "long"]  # the data's order
        assert rows[samples[0].doc_id]["error"] is None
        assert "There is no file" in rows["missing"]["error"] and "damaged" in rows["torn"]["error"]
        assert "window holds 8192" in rows["long"]["error"] and all(
            "\n" not in (r["error"] or "") for r in rows.values()
        )
        assert found.results["n-samples"][f"docvqa_{policy}"]["failed"] == 3
        assert found.results["n-samples"][f"docvqa_{policy}"]["effective"] == 1
    columns, rows, caption = table(found, "docvqa")
    assert [row[columns.index("failed")] for row in rows] == ["3", "3"]
    assert "3 failed, such as missing: There is no file" in caption


def test_a_batch_that_does_not_fit_is_answered_one_by_one(loaded, task, samples, alone, monkeypatch):
    whole = DocumentBatch.answers

    def answers(self, policy, prompts, *arguments):
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("too much")
        if prompts[0].length > 500:
            raise torch.OutOfMemoryError("still too much")
        return whole(self, policy, prompts, *arguments)

    samples = samples[::2]
    lengths = [alone["bf16", sample.doc_id]["token_counts"]["prompt"] for sample in samples]
    monkeypatch.setattr(DocumentBatch, "answers", answers)
    rows = list(answer_samples(*loaded, task, samples, resolve_policies(["bf16"]), batch_size=8))
    assert sorted(row["doc_id"] for row in rows) == sorted(sample.doc_id for sample in samples)
    assert min(lengths) <= 500 < max(lengths)
    for row in rows:
        if alone["bf16", row["doc_id"]]["token_counts"]["prompt"] > 500:
            assert "memory ran out" in row["error"]
        else:
            assert row["filtered_resps"] == alone["bf16", row["doc_id"]]["filtered_resps"]


def test_what_one_policy_cannot_do_another_may(loaded, task, samples, alone, monkeypatch, tmp_path):
    """Any error is that of its sample and policy; asked again on demand only, an answer then takes its place."""
    whole, samples = DocumentBatch.answers, samples[3:]

    def answers(self, policy, prompts, *arguments):
        if policy.name == "rd2" and any(prompt.length == length for prompt in prompts):
            raise IndexError("beyond\nthe end")
        return whole(self, policy, prompts, *arguments)

    length = alone["rd2", samples[0].doc_id]["token_counts"]["prompt"]
    assert [s for s in samples if alone["rd2", s.doc_id]["token_counts"]["prompt"] == length] == [samples[0]]
    names = ("rd2", "kivi2")
    with monkeypatch.context() as patch:
        patch.setattr(DocumentBatch, "answers", answers)
        first = run(*loaded, task, samples, names, tmp_path, batch_size=8, max_new_tokens=6)
    failed = {name: [r["doc_id"] for r in rows if r["error"]] for name, rows in first.samples["docvqa"].items()}
    assert failed == {"rd2": [samples[0].doc_id], "kivi2": []}
    (row,) = [row for row in first.samples["docvqa"]["rd2"] if row["error"]]
    assert row["error"] == "IndexError: beyond the end" and first.results["complete"] is True
    seen: list[tuple] = []
    options = {"progress": lambda done, total, row: seen.append((row["policy"], row["doc_id"])), "max_new_tokens": 6}
    again = run(*loaded, task, samples, names, tmp_path, **options)
    assert seen == [] and again.results["n-samples"]["docvqa_rd2"]["failed"] == 1
    again = run(*loaded, task, samples, names, tmp_path, retry_failed=True, **options)
    assert seen == [("rd2", samples[0].doc_id)] and again.results["n-samples"]["docvqa_rd2"]["failed"] == 0
    rows = again.samples["docvqa"]["rd2"]
    assert [r["doc_id"] for r in rows] == [s.doc_id for s in samples]
    assert again.results["throughput"]["total_requests"] == 2 * len(samples) + 1
    for row in rows:
        assert alone["rd2", row["doc_id"]]["filtered_resps"].startswith(row["filtered_resps"]) and row["filtered_resps"]


def test_a_gpu_that_failed_ends_the_run(loaded, task, samples, monkeypatch):
    def answers(*_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(DocumentBatch, "answers", answers)
    with pytest.raises(KVMMError, match=r"The GPU failed: CUDA error.*the same command goes on"):
        list(answer_samples(*loaded, task, samples[:1], resolve_policies(["bf16"])))


def test_a_run_that_another_process_makes_is_left_alone(loaded, task, samples, tmp_path):
    files = RunFiles.open(tmp_path, "model")
    with files.locked():
        with pytest.raises(KVMMError, match="Another process is making the run"):
            run(*loaded, task, samples[:1], ("bf16",), files, max_new_tokens=4)
        assert not files.results_path.exists()
        rank = run(*loaded, task, samples[:1], ("bf16",), files, max_new_tokens=4, share=(0, 2), locked=True)
    assert rank.results["n-samples"]["docvqa_bf16"]["recorded"] == 1


def test_a_run_that_was_killed_counts_in_the_throughput(loaded, task, samples, tmp_path):
    class Killed(BaseException):
        """As the end of a process: nothing is written after it."""

    def kill(done: int, *_: object) -> None:
        if done == 3:
            raise Killed

    for _ in range(2):  # the second part answers three more, and is killed, too
        with pytest.raises(Killed):
            run(*loaded, task, samples, ("bf16", "rd2"), tmp_path, max_new_tokens=4, progress=kill)
        kill = (lambda old: lambda done, *rest: old(done - 3, *rest))(kill)
    whole = run(*loaded, task, samples, ("bf16", "rd2"), tmp_path, max_new_tokens=4)
    rows = [row for found in whole.samples["docvqa"].values() for row in found]
    throughput = whole.results["throughput"]
    assert {row["part"] for row in rows} == {1, 2, 3} and throughput["parts"] == [1, 2, 3]
    assert throughput["total_requests"] == len(rows) == 2 * len(samples)
    assert throughput["total_gen_tokens"] == sum(row["output_tokens"] for row in rows)
    earlier = sum(max(row["part_s"] for row in rows if row["part"] == part) for part in (1, 2))
    assert throughput["total_elapsed_time"] > earlier > 0
    assert float(whole.results["total_evaluation_time_seconds"]) == pytest.approx(throughput["total_elapsed_time"])
    again = run(*loaded, task, samples, ("bf16", "rd2"), tmp_path, max_new_tokens=4)
    assert again.results["throughput"] == throughput  # no part counts twice


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refusal_changes_nothing(loaded, task, samples, tmp_path, monkeypatch):
    """A complete run stays complete, and there is no file more, whatever the next call is refused for."""
    options = {"max_new_tokens": 2}
    whole = run(*loaded, task, samples[:2], ("bf16",), tmp_path, **options)
    assert whole.results["complete"] is True
    before = contents(tmp_path)
    changed = [replace(samples[0], question="Something else?"), samples[1]]
    with pytest.raises(KVMMError, match="the data has changed"):
        run(*loaded, task, changed, ("bf16",), tmp_path, **options)
    with pytest.raises(KVMMError, match="other settings"):
        run(*loaded, task, samples[:2], ("bf16",), tmp_path, max_new_tokens=3)

    def unfit(model, policy):
        raise KVMMError("This policy does not fit the model.")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "new_cache", unfit)
        with pytest.raises(KVMMError, match="does not fit"):
            run(*loaded, task, samples[:2], ("bf16", "rd2"), tmp_path, **options)
    assert contents(tmp_path) == before


class Asked(DocVQA):
    """A task with an option that no question shows."""

    def __init__(self, frames: int = 8):
        self.frames = frames


def test_other_options_of_the_task_are_other_settings(loaded, samples, tmp_path):
    whole = run(*loaded, Asked(), samples[:1], ("bf16",), tmp_path, max_new_tokens=2)
    assert whole.config("docvqa", "bf16")["task_options"] == {"frames": 8}
    assert run(*loaded, Asked(8), samples[:1], ("bf16",), tmp_path, max_new_tokens=2).date == whole.date
    with pytest.raises(
        KVMMError, match=r"other settings \(docvqa_bf16: task_options.frames is 8, not 16\): add --fresh"
    ):
        run(*loaded, Asked(16), samples[:1], ("bf16",), tmp_path, max_new_tokens=2)


def test_a_stopped_run_waits_for_no_picture(loaded, task, samples, tmp_path):
    """The picture that is being decoded then is no failure of its question, which is asked again later."""
    (tmp_path / "deep.png").write_bytes(deep_png())
    given = [replace(samples[0], images=(tmp_path / "deep.png",)), samples[1]]
    stop, ended = threading.Event(), []

    def answer() -> None:
        ended.append(run(*loaded, task, given, ("bf16",), tmp_path / "out", max_new_tokens=2, stop=stop))

    pid, thread = parent(), threading.Thread(target=answer)
    thread.start()
    with held(pid):  # it would never end
        stop.set()
        begin = time.monotonic()
        thread.join(20)
        assert not thread.is_alive() and time.monotonic() - begin < 1
    assert not any(ended[0].samples["docvqa"].values())
    assert ended[0].results["complete"] is False


def test_a_stopped_run_goes_on(loaded, task, samples, tmp_path):
    """Nothing is answered twice, a torn line is answered again, and a policy can be added later."""
    stop, samples = threading.Event(), samples[2:]

    def progress(done: int, total: int, row: dict) -> None:
        assert total == 6
        if done == 2:
            stop.set()

    part = run(*loaded, task, samples, ("bf16", "rd2"), tmp_path, max_new_tokens=6, progress=progress, stop=stop)
    assert part.results["complete"] is False
    kept = {name: [row["doc_id"] for row in rows] for name, rows in part.samples["docvqa"].items()}
    assert sum(map(len, kept.values())) == 2
    path = part.folder / part.results["configs"]["docvqa_rd2"]["samples_file"]
    with path.open("ab") as file:
        file.write(b'{"doc_id": "' + samples[-1].doc_id.encode() + b'", "error": nu')
    seen = []
    options = {"max_new_tokens": 6, "progress": lambda done, total, row: seen.append((row["policy"], row["doc_id"]))}
    whole = run(*loaded, task, samples, ("bf16", "rd2"), tmp_path, **options)
    assert len(seen) == len(set(seen)) == 4 and not any(doc_id in kept[policy] for policy, doc_id in seen)
    assert whole.results["complete"] is True
    for rows in whole.samples["docvqa"].values():
        assert [row["doc_id"] for row in rows] == [sample.doc_id for sample in samples]
    assert whole.results["throughput"]["total_requests"] == 6
    more = run(*loaded, task, samples, ("bf16", "dynamic"), tmp_path, **options)
    assert len(seen) == 7 and more.date == part.date
    read = read_run(tmp_path)
    assert read.policies("docvqa") == ["bf16", "rd2", "dynamic"]
    assert task_result(read, "docvqa").policy("dynamic").difference.mean == 0
    changed = [replace(samples[0], question="Something else?"), *samples[1:]]
    with pytest.raises(KVMMError, match="the data has changed"):
        run(*loaded, task, changed, ("bf16",), tmp_path, max_new_tokens=6)


def test_a_run_goes_on_only_with_its_own_calibration(loaded, task, samples, tmp_path):
    """A file that was fitted anew stores other codes under the same name; policies that read none do not mind."""
    fit = calibration_of(loaded[0])
    path, options = tmp_path / "fit.safetensors", {"max_new_tokens": 1}
    fit.save(path)
    policies = {"fitted": get_policy("rd2", calibration=str(path)), "kivi2": get_policy("kivi2")}
    first = run(*loaded, task, samples[:1], policies, tmp_path / "out", **options)
    assert first.config("docvqa", "fitted")["calibration"] == fit.digest
    assert first.config("docvqa", "kivi2")["calibration"] is None
    tensors = {name: tensor * 0.5 if name.endswith(".transform") else tensor for name, tensor in fit.tensors.items()}
    replace(fit, tensors=tensors).save(path)
    os.utime(path, ns=(0, 0))  # another time of change, however coarse the clock
    with pytest.raises(KVMMError, match="docvqa_fitted: calibration is"):
        run(*loaded, task, samples[:1], policies, tmp_path / "out", **options)
    run(*loaded, task, samples[:1], {"kivi2": policies["kivi2"]}, tmp_path / "out", **options)


def test_peers_where_their_packages_are(loaded, task, samples):
    names = []
    for name in ("hf-quanto", "hf-hqq4"):
        try:
            resolve_policies([name])
            names.append(name)
        except KVMMError as error:
            assert "pip install" in str(error)
    if not names:
        pytest.skip("neither optimum-quanto nor hqq is installed")
    rows = list(answer_samples(*loaded, task, samples, resolve_policies(names), batch_size=4, max_new_tokens=6))
    assert all(row["error"] is None and row["kv_bytes"] < row["kv_bytes_bf16"] / 2 for row in rows)


def test_policies_that_cannot_be_run(loaded, task):
    for names, match in [
        (["nothing"], "Unknown policy"),
        (["rd2", "rd2"], "Two policies are called 'rd2'"),
        ([], "no policy"),
    ]:
        with pytest.raises(KVMMError, match=match):
            resolve_policies(names)
    with pytest.raises(KVMMError):  # said at once, not as the failure of every sample
        next(answer_samples(*loaded, task, [Sample("a", "q", ("a",))], {"x": "hf-nothing"}))
    assert Settings(1, 2).pack_before_question


def test_rows_are_on_the_disk_when_they_are_told(loaded, task, samples, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(RowWriter, "write", lambda self, row: written.append(row["doc_id"]))
    told = []

    def progress(done: int, total: int, row: dict) -> None:
        told.append(row["doc_id"])
        assert written == told

    run(*loaded, task, samples[:2], ("bf16",), tmp_path, max_new_tokens=2, progress=progress)
    assert len(told) == 2
