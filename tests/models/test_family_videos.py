"""A video in a conversation, from the file to the answer, in every family that sees videos."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from kvmm.media import load_media, load_video
from kvmm.models import FAMILIES, Conversation, load_model
from kvmm.models.prompting import encode_question, video_arguments, with_seconds
from kvmm.policy import get_policy
from tests import tiny_models as tiny
from tests.media.files import mp4
from tests.models import checkpoints
from tests.models.test_families import EXACT

LENGTH = 6
SHARED = ("internvl",)  # its frames have the placeholder of images


def families() -> list[str]:
    return [name for name in tiny.FAMILIES if "video" in getattr(FAMILIES.get(name), "modalities", ())]


def from_scratch(model, processor, ids: torch.Tensor, clip) -> list[int]:
    """Greedy tokens after ``ids`` when transformers has the frames at once and computes the positions."""
    text = processor.apply_chat_template([{"role": "user", "content": [{"type": "video"}]}], tokenize=False)
    given = video_arguments([clip])
    encoded = with_seconds(dict(processor(text=[text], return_tensors="pt", **given)), given)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name, value in encoded.items():
        if name not in inputs:
            is_type = value.shape == encoded["input_ids"].shape
            inputs[name] = 2 * (ids == tiny.VIDEO).long() if is_type else value
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    out = model.generate(**inputs, past_key_values=cache, max_new_tokens=LENGTH, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("family", families())
def test_a_video_is_read_and_its_tokens_are_video(family: str, tmp_path: Path):
    model, processor = load_model(checkpoints.save(family, tmp_path / "m"), device="cpu", dtype=torch.float32)
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4(12))
    (item,) = load_media(path)
    item.sampling = {"max_frames": 4}
    clip = load_video(path, max_frames=4)
    talk = Conversation(model, processor, EXACT)
    for question, media in (("What moves?", [item]), ("And why?", [])):
        *_, final = talk.ask(question, media, max_new_tokens=LENGTH)
        ids = talk._ids[:, :-LENGTH]
        assert final.tokens == LENGTH
        assert talk._ids[0, -LENGTH:].tolist() == from_scratch(model, processor, ids, clip)
    placeholders = int((talk._ids == (tiny.IMAGE if family in SHARED else tiny.VIDEO)).sum())
    kind = "image" if family in SHARED else "video"
    counted = talk.cache.memory().by_modality
    assert placeholders > 0 and counted[kind]["tokens"] == placeholders


def test_a_video_has_its_own_seconds(tmp_path: Path):
    """Frames of a slow clip are further apart in time; the model's dtype does not round the seconds."""
    model, processor = load_model(checkpoints.save("qwen2_5_vl", tmp_path / "m"), device="cpu", dtype=torch.bfloat16)
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4(12))
    few, many = (load_video(path, fps=100, max_frames=count) for count in (4, 12))
    assert [clip.fps for clip in (few, many)] == [4, 4]
    seconds = [encode_question(model, processor, "?", video=clip)["second_per_grid_ts"] for clip in (few, many)]
    assert [value.dtype for value in seconds] == [torch.float32] * 2
    assert [round(value.item(), 4) for value in seconds] == [1.5, 0.5]  # 2 of 4 and of 12 frames in three seconds


def test_videos_have_a_policy_of_their_own(tmp_path: Path):
    """``video`` in a policy is the key of their tokens alone."""
    model, processor = load_model(checkpoints.save("qwen2_vl", tmp_path / "m"), device="cpu", dtype=torch.float32)
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4(12))
    items = load_media(path)
    base = get_policy("bf16")
    mixed = type(base)("mixed", "", video=get_policy("kivi2").video, num_sink_tokens=0)
    talk = Conversation(model, processor, mixed)
    list(talk.ask("What moves?", items, max_new_tokens=4))
    counted = talk.cache.memory().by_modality
    assert counted["video"]["packed_tokens"] > 0 and counted["video"]["packed_bits_per_value"] < 8
