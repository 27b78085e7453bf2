"""Videos and books through the whole run, with the embedded model: rows, bytes by modality, likelihoods."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kvmm.eval.run.evaluate import run
from kvmm.eval.run.perplexity import TextReader
from kvmm.eval.tasks import get_task
from kvmm.eval.tasks.haystack import made_sentences
from kvmm.models import load_model
from tests.eval.tasks.test_video_tasks import worldsense


@pytest.fixture(scope="module")
def loaded():
    return load_model(None, dtype="float32")


def test_questions_about_a_video_are_answered_and_its_tokens_are_video(loaded, tmp_path: Path):
    task = get_task("worldsense@frames=2")
    samples = task.load(worldsense(tmp_path))
    done = run(*loaded, task, samples, ("bf16", "rd2"), tmp_path / "out", max_new_tokens=2, batch_size=2)
    assert done.results["complete"] is True
    for policy, bits in (("bf16", 16.0), ("rd2", 2.6)):
        rows = done.samples[task.name][policy]
        assert len(rows) == 2 and all(row["error"] is None for row in rows)
        assert all(
            row["tokens_by_modality"]["video"] == 256 and "image" not in row["tokens_by_modality"] for row in rows
        )
        assert rows[0]["packed_bits_per_value"] <= bits


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    sentences = made_sentences(7)
    (folder / "1.txt").write_text(" ".join(next(sentences) for _ in range(60)), encoding="utf-8")
    (folder / "2.txt").write_text("short", encoding="utf-8")
    (folder / "3.txt").write_bytes(b"\xff\xfe\xff")
    return folder


def test_the_likelihood_of_a_text_is_the_models_where_nothing_is_lost(loaded, book: Path):
    """Read in pieces over a cache that packs nothing, a text has the likelihood of one plain forward pass."""
    model, processor = loaded
    text = (book / "1.txt").read_text()
    reader = TextReader(model, processor.tokenizer, text, 96, 32, 8192)
    with torch.no_grad():
        log = model(input_ids=reader.ids).logits[0].float().log_softmax(-1)
    plain = log[96:-1].gather(1, reader.ids[0, 97:, None]).mean().item()
    whole, pieces = reader.read("dynamic", 1000), reader.read("dynamic", 7)
    assert whole["tokens"] == pieces["tokens"] == 31 and whole["words"] > 5
    assert whole["log_likelihood"] == pytest.approx(plain, abs=1e-4)
    assert pieces["log_likelihood"] == pytest.approx(plain, abs=1e-4)
    assert whole["inverse_perplexity"] == pytest.approx(math.exp(plain), rel=1e-3)
    kivi = run_policy("kivi2")
    longer = TextReader(model, processor.tokenizer, text, 64, 160, 8192)
    stepped, at_once = longer.read(kivi, 16), longer.read(kivi, 1000)
    assert stepped["kv_bytes"] < 0.6 * longer.read("dynamic", 1000)["kv_bytes"]
    assert abs(stepped["log_likelihood"] - at_once["log_likelihood"]) > 1e-3  # what was read is packed on the way


def run_policy(name: str):
    from kvmm.models.caches import resolve_policies

    return resolve_policies([name])[name]


def test_books_make_rows_and_a_perplexity(loaded, book: Path, tmp_path: Path):
    task = get_task("pg19@context=64,tokens=24,stride=8,windows=2")
    samples = task.load(book)
    assert [sample.doc_id for sample in samples] == ["1-0", "1-1"]
    assert samples.skipped_by_kind() == {"short text": 2, "unreadable": 1}
    assert samples.samples[0].question != samples.samples[1].question
    done = run(*loaded, task, samples, ("bf16", "rd2"), tmp_path, batch_size=1)
    assert done.results["complete"] is True
    scores = done.scores(task.name, "bf16")
    rows = done.samples[task.name]["bf16"]
    mean = sum(row["log_likelihood"] * row["tokens"] for row in rows) / sum(row["tokens"] for row in rows)
    assert scores["perplexity"] == pytest.approx(math.exp(-mean)) == pytest.approx(1 / scores["inverse_perplexity"])
    assert scores["word_perplexity"] > scores["perplexity"] > 1  # a word has a token or more
    assert rows[0]["tokens_by_modality"] == {"text": 87} and rows[0]["bits_per_value"] > 15
    long = get_task("pg19@context=9000,tokens=64")
    (row,) = run(*loaded, long, [samples.samples[0]], ("bf16",), tmp_path / "b").samples[long.name]["bf16"]
    assert "are to be read: use less" in row["error"]
