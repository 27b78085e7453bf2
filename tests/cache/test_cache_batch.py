"""Steps of several caches as one call: the logits of each alone, for every kind of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache.batch import CacheBatch
from kvmm.errors import KVMMError
from kvmm.models.caches import new_cache
from kvmm.models.positions import all_position_ids, extended_position_ids
from tests.tiny_models.families import build

LENGTHS = (24, 70, 45)
# A product of three rows rounds the last bit of float32 differently from that of one; where tokens are kept in bfloat16
# or in codes, that bit decides now and then which way a value is rounded.
TOLERANCES = {"dynamic": 1e-4, "bf16": 0.02, "oscar4-2": 0.1, "kivi2": 0.1}
STEPS = 40  # enough for pages of text to be packed on the way, at different steps


def read(model: Any, policy: str, length: int) -> tuple[Any, torch.Tensor]:
    """A cache that has read a prompt, and the positions of that and of what follows."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(40, 60, (1, length), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    cache = new_cache(model, policy)
    positions = extended_position_ids(all_position_ids(model, inputs), STEPS)
    with torch.no_grad():
        model(**inputs, position_ids=positions[..., :length], past_key_values=cache, use_cache=True)
    return cache, positions


def step(model: Any, cache: Any, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens, position_ids=places, past_key_values=cache, use_cache=True).logits[:, -1]


@pytest.mark.parametrize("policy", ["oscar4-2", "kivi2", "bf16", "dynamic"])
@pytest.mark.parametrize("family", ["llama", "qwen2_vl", "qwen3_vl", "gemma3", "qwen2_5_omni"])
def test_a_batch_computes_what_each_of_its_caches_would(family: str, policy: str) -> None:
    model = build(family)
    alone, together = ([read(model, policy, length) for length in LENGTHS] for _ in range(2))
    tokens = torch.tensor([[41], [42], [43]])
    for k in range(STEPS):
        at = [length + k for length in LENGTHS]
        places = [positions[..., i : i + 1] for (_, positions), i in zip(alone, at, strict=True)]
        expected = [step(model, one, tokens[b : b + 1], places[b]) for b, (one, _) in enumerate(alone)]
        # sequences leave and join again: the second one takes its step by itself now and then
        members = [0, 1, 2] if k % 5 else [2, 0]
        batch = CacheBatch([together[b][0] for b in members])
        found = step(model, batch, tokens[members], torch.cat([places[b] for b in members], -2))
        assert batch.batch_size == len(members)
        for row, b in zip(found, members, strict=True):
            # logits lie within 6; another sequence's pages would change them by more than 1
            torch.testing.assert_close(row, expected[b][0], atol=TOLERANCES[policy], rtol=0)
        if 1 not in members:
            step(model, CacheBatch([together[1][0]]), tokens[1:2], places[1])
        tokens = torch.cat([row.argmax(-1)[None] for row in expected])
    for (one, _), (other, _) in zip(alone, together, strict=True):
        assert one.get_seq_length() == other.get_seq_length()
        if isinstance(one, KVMMCache):
            assert one.memory().nbytes == other.memory().nbytes
            assert one.table.dense.tolist() == other.table.dense.tolist()


@pytest.mark.parametrize("policy", ["oscar4-2", "bf16"])
def test_a_batch_of_one_is_exactly_its_cache(policy: str) -> None:
    model = build("llama")
    (alone, places), (together, _) = (read(model, policy, 45) for _ in range(2))
    token = torch.tensor([[41]])
    for k in range(STEPS):
        place = places[..., 45 + k : 46 + k]
        expected = step(model, alone, token, place)
        assert torch.equal(step(model, CacheBatch([together]), token, place), expected)
        token = expected.argmax(-1)[None]


def test_what_is_no_batch_is_one_line() -> None:
    model = build("llama")
    cache, positions = read(model, "bf16", 24)
    with pytest.raises(KVMMError, match="at least one"):
        CacheBatch([])
    pair, _ = read(model, "bf16", 24)
    pair.batch_repeat_interleave(2)
    with pytest.raises(KVMMError, match="one sequence"):
        CacheBatch([cache, pair])
    other = KVMMCache.for_model(model, "bf16")
    other.layers = other.layers[:1]
    with pytest.raises(KVMMError, match="numbers of layers"):
        CacheBatch([cache, other])
    for tokens in ([[41], [42]], [[41, 42]]):
        ids = torch.tensor(tokens)
        with pytest.raises(KVMMError, match="takes one token of each"):
            step(model, CacheBatch([cache]), ids, positions[..., : ids.shape[1]].expand(ids.shape))
