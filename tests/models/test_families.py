"""Every family from a checkpoint folder: processor without torchvision, three turns, new media in the third."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedTokenizerBase

from kvmm.media import Media
from kvmm.models import FAMILIES, Conversation, load_model
from kvmm.policy import get_policy
from tests import tiny_models as tiny
from tests.models import checkpoints

LENGTH = 10
EXACT = replace(get_policy("bf16"), exact_dtype="model")


def picture(seed: int, size: tuple[int, int]) -> Media:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Media("image", Image.fromarray(pixels), f"{seed}.png")


def sound(seed: int, samples: int = 16_000) -> Media:
    return Media("audio", np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32), f"{seed}.wav")


def answer_from_scratch(model, processor, ids, media):
    """Greedy tokens after ``ids`` when all media are given at once and transformers computes the positions."""
    images = [item.data for item in media if item.kind == "image"]
    audio = [item.data for item in media if item.kind == "audio"]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if media:
        blocks = [{"type": item.kind} for item in media]
        text = processor.apply_chat_template([{"role": "user", "content": blocks}], tokenize=False)
        given = {"images": images} if images else {}
        given |= {"audio": audio, "sampling_rate": 16_000} if audio else {}
        encoded = processor(text=[text], return_tensors="pt", **given)
        for name, value in encoded.items():
            if name not in inputs:
                is_type = value.shape == encoded["input_ids"].shape
                inputs[name] = (ids == tiny.IMAGE).long() if is_type else value
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    out = model.generate(**inputs, past_key_values=cache, max_new_tokens=LENGTH, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_three_turns_equal_the_conversation_from_scratch(family, tmp_path):
    model, processor = load_model(checkpoints.save(family, tmp_path), device="cpu", dtype=torch.float32)
    input_modalities = FAMILIES[model.config.model_type].modalities
    first = [picture(0, (40, 24))] if "image" in input_modalities else []
    first += [sound(1)] if "audio" in input_modalities else []
    third = [picture(2, (24, 32))] if "image" in input_modalities else first[:1]
    turns = [("What is it?", first), ("And why?", []), ("And now?", third)]
    for policy in (EXACT, "dynamic"):
        talk = Conversation(model, processor, policy)
        media: list[Media] = []
        for question, new in turns:
            past = 0 if talk.cache is None else talk.cache.get_seq_length()
            *_, final = talk.ask(question, new, max_new_tokens=LENGTH)
            media += new
            assert final.tokens == LENGTH and (past == 0) == (len(media) == len(first) and question == "What is it?")
            ids = talk._ids[:, :-LENGTH]
            assert talk._ids[0, -LENGTH:].tolist() == answer_from_scratch(model, processor, ids, media), (
                policy,
                question,
            )


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_5_omni", "internvl"])
def test_processors_can_be_saved_and_loaded_again(family, tmp_path):
    model, processor = load_model(checkpoints.save(family, tmp_path / "a"), device="cpu")
    processor.save_pretrained(tmp_path / "b")
    model.save_pretrained(tmp_path / "b")
    _, again = load_model(tmp_path / "b", device="cpu")
    text = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Why?"}]}], tokenize=False
    )
    image = picture(0, (40, 24)).data
    one, two = (p(text=[text], images=[image], return_tensors="pt") for p in (processor, again))
    assert type(processor).__name__ == type(again).__name__
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_text_models_come_with_their_tokenizer(tmp_path):
    _, processor = load_model(checkpoints.save("llama", tmp_path), device="cpu")
    assert isinstance(processor, PreTrainedTokenizerBase)
