"""Every video a user may send, good and bad. The bad ones end in one line that says what to do."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path

import numpy as np
import pytest

from kvmm import decoding, media
from kvmm.decoding import limits, video
from kvmm.media import load_media
from tests.media.files import mp4, refused


def test_video_is_recognised_by_its_content(tmp_path: Path):
    path = tmp_path / "clip.bin"
    path.write_bytes(mp4())
    (item,) = load_media(path)
    assert (item.kind, item.data) == ("video", str(path))
    refused(load_media, mp4(), match="save it and give its path")


@pytest.mark.parametrize("form", ["mp4", "matroska"])  # which says how many frames it has, and which does not
def test_a_video_of_too_many_pixels_is_refused_before_its_reader_sees_it(tmp_path: Path, monkeypatch, form):
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4(8, form))
    monkeypatch.setattr(limits, "VIDEO_PIXELS", 8 * 64 * 64)
    assert load_media(path)[0].kind == "video"
    monkeypatch.setattr(limits, "VIDEO_PIXELS", 8 * 64 * 64 - 1)
    refused(load_media, path, match=r"clip.mp4 has 8 frames or more, of 4,096 pixels each, and a video may have")


def test_a_damaged_video_is_refused_and_a_short_one_is_not(tmp_path: Path):
    path, whole = tmp_path / "clip.mkv", mp4(40, "matroska")
    path.write_bytes(whole[: len(whole) * 3 // 4])
    assert load_media(path)[0].kind == "video"
    start = whole.index(b"\x1f\x43\xb6\x75")  # the first cluster: the frames
    path.write_bytes(whole[:start])
    refused(load_media, path, match="damaged or cut off|no frames that can be decoded")


@pytest.mark.parametrize("form", ["mp4", "matroska"])
@pytest.mark.parametrize("in_process", [False, True])
def test_frames_are_spread_over_the_whole_length(tmp_path: Path, form: str, in_process: bool):
    """Frame ``i`` of the clip is a grey of 30 i; it has four a second."""
    path = tmp_path / "clip"
    path.write_bytes(mp4(8, form))
    with decoding.in_process() if in_process else contextlib.nullcontext():
        frames = media.load_video(path, fps=2)
        few = media.load_video(path.read_bytes(), fps=100, max_frames=5)
    assert (frames.total, frames.indices) == (8, (0, 2, 5, 7)) and frames.fps == pytest.approx(4, rel=0.02)
    assert frames.pixels.shape == (4, 64, 64, 3) and frames.pixels.dtype == np.uint8
    assert np.allclose(frames.pixels.mean((1, 2, 3)), [30 * index for index in frames.indices], atol=4)
    assert few.indices == (0, 2, 5, 7)  # an even number
    assert frames.sampled_fps == pytest.approx(2, rel=0.02)
    assert frames.metadata()["duration"] == pytest.approx(2, rel=0.02)


def test_sampling_is_that_of_qwen_vl_utils():
    """``smart_nframes`` and its ``linspace``, for a video of 30 frames a second."""
    assert video.sample_indices(300, 30.0, 2, 768) == np.round(np.linspace(0, 299, 20)).astype(int).tolist()
    assert len(video.sample_indices(3000, 30.0, 2, 32)) == 32 and len(video.sample_indices(30, 30.0, 2, 32)) == 4
    assert len(video.sample_indices(330, 30.0, 1.9, 32)) == 20  # 20.9, down to an even number
    assert video.sample_indices(1, 30.0) == [0] and video.sample_indices(3, 30.0) == [0, 2]


def test_large_frames_are_shrunk_and_sideways_ones_turned(tmp_path: Path, monkeypatch):
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4(8))
    monkeypatch.setattr(video, "TOTAL_PIXELS", 4 * 32 * 32)
    with decoding.in_process():
        assert media.load_video(path).pixels.shape == (4, 32, 32, 3)
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[0] = 255
    turned = types.SimpleNamespace(width=6, height=4, rotation=-90, to_ndarray=lambda format: picture)
    upright = video._upright(turned, 1000)
    assert upright.shape == (6, 4, 3) and upright[:, -1].min() == 255 and upright[:, :-1].max() == 0


def test_a_video_that_cannot_be_read_is_one_line(tmp_path: Path):
    path = tmp_path / "clip.mkv"
    whole = mp4(40, "matroska")
    path.write_bytes(whole[: len(whole) * 3 // 4])
    frames = media.load_video(path, max_frames=8)  # those before the damage
    assert 1 <= len(frames.indices) == len(frames.pixels) <= 8
    path.write_bytes(b"no video at all")
    refused(media.load_video, path, match="clip.mkv .* not a video: give an MP4")
    path.write_bytes(mp4())
    refused(lambda: media.load_video(path, fps=0), match="cannot be read at 0 frames a second")
    refused(lambda: media.load_video(path, max_frames=1), match="at most 1")
