"""The evaluation's own arithmetic, its batches, and the app's samples."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training import evaluate
from training.heldout.layouts import check_layout, scan
from training.heldout.templates import TEMPLATES
from training.heldout.templates.markup import Ask, Layout
from training.heldout.writer import Writer, turn
from training.pages import Rng

ROOT = Path(__file__).parents[3]


def item(set_name: str, turns: list[dict], predictions: list[str], kind: str = "invoice") -> evaluate.Item:
    line = {"id": f"{set_name}-0", "set": set_name, "kind": kind, "images": [], "audio": None, "turns": turns}
    return evaluate.Item(line, predictions=predictions)


def test_report_by_set_kind_and_turn():
    rows = evaluate.score(
        [
            item("fonts", [turn("a?", "12.50", "total"), turn("b?", ["x", "Page"], "title")], ["12.50", "nothing"]),
            item("fonts", [turn("a?", "12.50", "total")], ["12.51"], kind="receipt"),
            item("transcription", [turn("OCR:", "abcd", "transcription", metric="cer")], ["abcx"]),
        ]
    )
    report = evaluate.report(rows)
    assert report["fonts"]["n"] == 3
    assert report["fonts"]["exact_match"] == pytest.approx(1 / 3, abs=1e-4)
    assert report["fonts"]["anls"] == pytest.approx((1 + 0 + 0.8) / 3, abs=1e-4)
    assert report["fonts"]["by_kind"]["receipt"] == {"n": 1, "exact_match": 0.0, "anls": 0.8}
    assert report["fonts"]["by_turn"]["2"]["n"] == 1
    assert report["transcription"] == {"n": 1, "cer_median": 0.25, "cer_mean": 0.25}


def test_batches_keep_the_budget_and_every_item():
    sized = [(n, i) for i, n in enumerate([50, 900, 60, 70, 300, 5000])]
    found = list(evaluate.batches(sized, 1000))
    assert sorted(i for batch in found for i in batch) == list(range(6))
    for batch in found:
        lengths = [sized[i][0] for i in batch]
        assert len(batch) == 1 or max(lengths) * len(batch) <= 1000


def test_writer_round_trip(tmp_path: Path):
    writer = Writer(tmp_path)
    clip = np.sin(np.arange(8000) / 7).astype(np.float32) * 0.8
    np.testing.assert_allclose(evaluate.read_wav(tmp_path / writer.recording("a", clip)), clip, atol=1e-4)
    grey, colour = np.full((28, 28, 3), 200, np.uint8), np.full((28, 28, 3), 200, np.uint8)
    colour[..., 0] = 10
    assert Image.open(tmp_path / writer.image("grey", grey)).mode == "L"
    assert Image.open(tmp_path / writer.image("colour", colour)).mode == "RGB"
    writer.add("s", "form", [], None, [turn("q", "a", "field")])
    writer.add("s", "form", [], None, [turn("q", "a", "field")])
    lines = [json.loads(line) for line in writer.save().read_text().splitlines()]
    assert [line["id"] for line in lines] == ["s-0000", "s-0001"]


def test_layout_rules():
    layout = Layout("x", 100, 100, "", "", (Ask("total", ("q",), ("42",)),))
    good = {"height": 100, "width": 100, "text": "it is 42", "small": []}
    check_layout(layout, good)
    for broken in ({"height": 101}, {"small": ["tiny"]}, {"text": "no number"}):
        with pytest.raises(ValueError):
            check_layout(layout, good | broken)


def test_templates_fit_the_image_budget():
    assert len(TEMPLATES) >= 10
    if not (Path(".train-assets") / "words.txt").exists():
        pytest.skip("needs the word list of training.assets")
    for template in TEMPLATES:
        layout = template(Rng(1))
        assert layout.height % 28 == 0 and layout.width % 28 == 0
        assert 256 * 784 <= layout.height * layout.width <= 640 * 784
        assert len(layout.asks) >= 4
        assert layout == template(Rng(1))


def test_scan_is_reproducible_and_of_the_right_size():
    picture = Image.fromarray(np.full((880, 660, 3), 250, np.uint8))
    (first, quality), (second, _) = (scan(Rng(4), picture, 280, 210) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert 40 <= quality <= 80
    assert 280 <= first.height <= 420 and abs(first.height / first.width - 4 / 3) < 0.02
    assert np.asarray(first, np.float32).std() > 1  # no longer clean


def test_samples_are_complete():
    folder = ROOT / "assets" / "samples"
    samples = json.loads((folder / "samples.json").read_text())
    assert {Path(name).suffix for sample in samples for name in sample["files"]} == {".png", ".pdf", ".wav"}
    for sample in samples:
        assert sample["title"] and all((folder / name).is_file() for name in sample["files"])
        assert sample["question"] or any(name.endswith(".wav") for name in sample["files"])
    for path in folder.glob("*.wav"):
        with wave.open(str(path)) as file:
            assert file.getframerate() == 16_000 and file.getnframes() / 16_000 < 30
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_200_000
