"""What the page shows of one token: a part of a recording that can be played, escaped text, an error for no token."""

from __future__ import annotations

import base64
import io
import re
import wave
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from kvmm.analysis import NormReport
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Frames, Media
from kvmm.modality import AUDIO, TEXT, VIDEO
from kvmm.ui.parts import token_view
from kvmm.ui.parts.token_view import token_html


@pytest.fixture
def report() -> NormReport:
    modality = np.array([TEXT, TEXT, *[AUDIO] * 8, TEXT], dtype=np.int8)
    norms = np.arange(1, 12, dtype=np.float32)[None, None]
    return NormReport((3,), norms, norms, norms, modality, ("<b>", " due", *["<|AUDIO|>"] * 8, "?"))


@pytest.fixture
def session() -> SimpleNamespace:
    """Four seconds, of which every half second has a loudness of its own."""
    steps = np.repeat(np.arange(1, 9) / 10, SAMPLE_RATE // 2).astype(np.float32)
    return SimpleNamespace(talk=SimpleNamespace(media=[Media("audio", steps, "memo <1>.wav")]))


def test_an_audio_token_is_a_part_of_the_recording(session, report):
    page = token_html(session, report, "key", 0, 5)
    assert "memo &lt;1&gt;.wav: 1.50 to 2.00 s of 4.0 s" in page and "<b>6.00</b>" in page and "layer 3" in page
    data = base64.b64decode(re.search(r"data:audio/wav;base64,([^\"]+)", page)[1])
    with wave.open(io.BytesIO(data)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    assert len(samples) == 1.5 * SAMPLE_RATE  # half a second before and after
    assert samples[len(samples) // 2] == pytest.approx(0.4, abs=1e-3)


def test_text_is_escaped(session, report):
    page = token_html(session, report, "value", 0, 0)
    assert "<mark>&lt;b&gt;</mark> due" in page


def test_no_such_token(session, report):
    with pytest.raises(KVMMError, match="There is no token 11: this prompt has 11"):
        token_html(session, report, "key", 0, 11)


def test_a_video_token_is_a_patch_of_its_frame(monkeypatch):
    """Three grids of two frames each, 2 x 3 tokens a grid, a time stamp before each; the last has a red corner."""
    frames = np.zeros((6, 40, 60, 3), np.uint8)
    frames[4:, 20:, 40:, 0] = 255
    asked = []
    clip = Frames(frames, tuple(range(6)), 6, 2.0)
    monkeypatch.setattr(token_view, "load_video", lambda path, **sampling: asked.append((path, sampling)) or clip)
    modality = np.array([*[TEXT, *[VIDEO] * 6] * 3, TEXT], dtype=np.int8)
    norms = np.ones((1, 1, 22), dtype=np.float32)
    report = NormReport((0,), norms, norms, norms, modality, ("x",) * 22)
    session = SimpleNamespace(
        talk=SimpleNamespace(media=[Media("video", "clip.mp4", "clip.mp4", sampling={"max_frames": 6})]),
        processor=None,
        prompt_inputs=lambda: {"video_grid_thw": torch.tensor([[3, 4, 6]])},
        report=lambda name, make: make(),
    )

    def crop(position: int) -> np.ndarray:
        page = token_html(session, report, "key", 0, position)
        assert "frame 3 of 3, row 2 of 2, column 3 of 3" in page or position != 20
        data = re.search(r'class="patch" alt="the patch" src="data:image/png;base64,([^"]+)', page)[1]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))

    assert crop(20)[-20, -20].tolist() == [255, 0, 0]  # the last token of the last frame
    assert crop(13)[-20, -20].tolist() == [0, 0, 0]  # the same place, a frame earlier
    assert asked[0] == ("clip.mp4", {"max_frames": 6})
