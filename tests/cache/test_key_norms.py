"""Key norms on the way: those of a second pass, for all tokens, at next to no time."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from kvmm import KVMMCache
from kvmm.analysis import record_norms
from kvmm.cache.key_norms import KeyNormRecorder, KeyNorms
from tests.tiny_models import build, inputs


def test_norms_are_those_of_a_pass_of_its_own():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    cache, recorder = KVMMCache.for_model(model, "kivi2"), KeyNormRecorder()
    with torch.no_grad():
        model(**given, past_key_values=cache)
    found = recorder.collect(cache)
    want = record_norms(model, given)
    assert found.layers == want.layers and found.answer == 0
    np.testing.assert_array_equal(found.modality, want.modality)
    np.testing.assert_allclose(found.key, want.by_token("key"), rtol=2e-3)
    assert recorder.collect(cache) is found, "nothing new, nothing made"

    # packed by the next step: what was looked at stays, and new tokens come from the residual
    next_token = torch.full((1, 1), 5)
    for _ in range(3):
        with torch.no_grad():
            model(input_ids=next_token, past_key_values=cache)
    assert cache.is_packed
    later = recorder.collect(cache, answering=True)
    assert len(later) == len(found) + 3 and later.answer == 3
    np.testing.assert_array_equal(later.key[:, : len(found)], found.key)
    ids = torch.cat([given["input_ids"], next_token.expand(1, 3)], 1)
    mask = torch.ones_like(ids)
    want = record_norms(model, {**given, "input_ids": ids, "attention_mask": mask}).by_token("key")[:, -3:]
    assert np.isfinite(later.key).all()
    np.testing.assert_allclose(later.key[:1, -3:], want[:1], rtol=0.02)  # layer 0 has seen no packed token

    recorder.crop(10)
    assert len(recorder.norms) == 10 and recorder.norms.answer == 0 and len(later) == len(found) + 3


def test_tokens_that_were_packed_unseen_have_no_norm():
    model, given = build("llama"), {"input_ids": torch.randint(3, 110, (1, 200))}
    cache, recorder = KVMMCache.for_model(model, "kivi2"), KeyNormRecorder()
    with torch.no_grad():
        model(**given, past_key_values=cache)
        cache.pack()
    found = recorder.collect(cache)
    exact = sorted(cache.table.dense[0].tolist())
    assert np.flatnonzero(np.isfinite(found.key[0])).tolist() == exact and 0 < len(exact) < 200


@pytest.mark.parametrize("other", [KeyNorms((0,), np.ones((1, 4), np.float16), np.zeros(4, np.int8))])
def test_another_threads_norms_do_not_change(other):
    recorder = KeyNormRecorder()
    recorder.norms = other
    recorder.crop(2)
    assert len(other) == 4 and len(recorder.norms) == 2


def test_a_look_at_a_long_prompt_takes_milliseconds():
    """A prompt of 4096 tokens takes seconds on a CPU; looking at its keys must not take a hundredth of one."""
    model = build("llama")
    given = {"input_ids": torch.randint(3, 110, (1, 4096))}
    cache = KVMMCache.for_model(model, "kivi2")
    begin = time.perf_counter()
    with torch.no_grad():
        model(**given, past_key_values=cache, logits_to_keep=1)
    reading = time.perf_counter() - begin
    spent = []
    for _ in range(5):
        recorder, begin = KeyNormRecorder(), time.perf_counter()
        recorder.collect(cache)
        spent.append(time.perf_counter() - begin)
    assert min(spent) < 0.02 * reading, (min(spent), reading)
