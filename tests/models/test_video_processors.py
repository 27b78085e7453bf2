"""Frames as tensors: what is recorded of transformers' own video processors and qwen-vl-utils, without torchvision."""

from __future__ import annotations

import json

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.models.video import QwenVideoProcessor, VideoProcessor, smart_resize, video_processor
from tests.models.make_video_vectors import PATH, SETTINGS, clip, clips, sampled

RECORDED = json.loads(PATH.read_text())["vectors"]
CASES = [(name, title) for name in SETTINGS for title in clips(name)]


@pytest.mark.parametrize(("name", "title"), CASES, ids=lambda part: part)
def test_pixels_and_grids_are_transformers(name: str, title: str):
    wanted = RECORDED[f"{name}: {title}"]
    made = video_processor(name.split(",")[0], SETTINGS[name])([clip(*clips(name)[title])])
    assert list(made["pixel_values_videos"].shape) == wanted["shape"]
    assert (made["video_grid_thw"].tolist() if "video_grid_thw" in made else None) == wanted["grid"]
    got, expected = torch.tensor(sampled(made["pixel_values_videos"])), torch.tensor(wanted["values"])
    one_step = 1 / 255 / 0.26  # of a pixel, in units of the standard deviation
    assert (got - expected).abs().max() <= 1.01 * one_step  # a second rounding where the reference resizes twice
    assert ((got - expected).abs() < 1e-3).float().mean() > 0.98


def test_several_videos_are_put_end_to_end():
    processor = QwenVideoProcessor({"patch_size": 4, "size": {"shortest_edge": 512, "longest_edge": 2048}})
    one, other = clip(4, 40, 60), clip(6, 60, 40)
    both = processor([one, other])
    alone = [processor([video]) for video in (one, other)]
    assert torch.equal(both["pixel_values_videos"], torch.cat([each["pixel_values_videos"] for each in alone]))
    assert both["video_grid_thw"].tolist() == [each["video_grid_thw"].tolist()[0] for each in alone]


def test_videos_of_one_size_need_one_number_of_frames():
    processor = VideoProcessor({"size": {"height": 28, "width": 28}})
    assert processor([clip(4, 30, 30), clip(4, 50, 30)])["pixel_values_videos"].shape == (2, 4, 3, 28, 28)
    with pytest.raises(KVMMError, match="as many frames each"):
        processor([clip(4, 30, 30), clip(5, 30, 30)])


def test_a_video_keeps_within_the_tokens_of_qwen_vl_utils():
    """1280 x 720: up to 768 tokens a pair of frames while all of them have room, then an even share."""
    processor = QwenVideoProcessor({"patch_size": 14})
    for frames, tokens in ((8, 768), (300, 768), (600, 115_200 * 2 // 600)):
        height, width = processor.frame_size(frames, 720, 1280)
        assert 0.9 * tokens < height * width / 28**2 <= tokens


def test_frames_that_are_too_narrow_are_refused():
    with pytest.raises(KVMMError, match="4 x 1000 pixels is too narrow"):
        smart_resize(1000, 4, 28, 100, 10_000)
