"""Every video a user may send, good and bad. The bad ones end in one line that says what to do."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from kvmm import media
from kvmm.decoding import limits
from kvmm.media import load_media
from tests.media.files import mp4, refused


def test_video_is_recognised_and_names_what_it_needs(tmp_path: Path, monkeypatch):
    path = tmp_path / "clip.bin"
    path.write_bytes(mp4())
    (item,) = load_media(path)
    assert (item.kind, item.data) == ("video", str(path))
    refused(load_media, mp4(), match="save it and give its path")
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", None)  # as when torchvision is missing
    refused(media.load_video, path, match=r'pip install "kvmm\[video\]"')


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


def test_video_goes_through_qwen_vl_utils(tmp_path: Path, monkeypatch):
    asked = []
    fake = types.SimpleNamespace(fetch_video=lambda request: asked.append(request) or "frames")
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", fake)
    assert media.load_video(tmp_path / "clip.mp4") == "frames"
    assert asked == [{"type": "video", "video": str(tmp_path / "clip.mp4")}]
    fake.fetch_video = lambda request: 1 / 0
    refused(media.load_video, tmp_path / "clip.mp4", match="cannot be decoded as a video")
