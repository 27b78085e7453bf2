"""A video from its file to the answer on the command line, with the embedded model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kvmm.cli import main

SAMPLES = Path(__file__).parents[1] / "assets" / "samples"


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["kvmm", "ask", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return (exit_.value.code, *capsys.readouterr())


@pytest.fixture
def filmed_invoice(tmp_path: Path) -> Path:
    """Two seconds of the sample invoice, five frames a second."""
    import av

    path = tmp_path / "invoice.mp4"
    page = np.asarray(Image.open(SAMPLES / "invoice.png").convert("RGB").resize((560, 784)))
    with av.open(str(path), "w") as container:
        track = container.add_stream("mpeg4", rate=5)
        track.width, track.height, track.pix_fmt, track.bit_rate = 560, 784, "yuv420p", 8_000_000
        for _ in range(10):
            container.mux(track.encode(av.VideoFrame.from_ndarray(page, format="rgb24")))
        container.mux(track.encode(None))
    return path


def test_the_total_is_read_in_a_film_of_the_invoice(filmed_invoice, monkeypatch, capsys):
    arguments = ("--video", filmed_invoice, "--max-frames", 2, "What is the total?", "--max-new-tokens", 16, "--json")
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 0, err
    found = json.loads(out)
    assert found["answer"].strip() == "$364.08"
    assert found["memory"]["by_modality"]["video"]["tokens"] == 560  # 20 x 28 of one pair of frames
    assert found["memory"]["by_modality"]["video"]["packed_bits_per_value"] < 3
    assert "image" not in found["memory"]["by_modality"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--video", SAMPLES / "invoice.png"), "invoice.png is no video: give it with --image"),
        (("--video", SAMPLES / "nothing.mp4"), "nothing.mp4"),
        (("--video", SAMPLES / "samples.json"), "samples.json is a text file"),
        (("--video", SAMPLES / "invoice.png", "--max-frames", 1), "--max-frames"),
    ],
)
def test_what_is_no_video_is_one_line(arguments, message, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, *arguments, "What is it?")
    assert code == 2 and message in " ".join(err.split()) and "Traceback" not in err
