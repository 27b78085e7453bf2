"""Steps of several caches as one call, and reads of their prompts: the logits of each alone, whatever the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache.batch import CacheBatch, able_to_read_together
from kvmm.errors import KVMMError
from kvmm.models.caches import new_cache
from kvmm.models.positions import all_position_ids, extended_position_ids
from tests.tiny_models.families import build, gemma4

LENGTHS = (24, 70, 45)
# A product of three rows rounds the last bit of float32 differently from that of one; where tokens are kept in bfloat16
# or in codes, that bit decides now and then which way a value is rounded.
TOLERANCES = {"dynamic": 1e-4, "bf16": 0.02, "oscar4-2": 0.1, "kivi2": 0.1}
STEPS = 40  # enough for pages of text to be packed on the way, at different steps


def read(model: Any, policy: str, length: int, **options: Any) -> tuple[Any, torch.Tensor]:
    """A cache that has read a prompt, and the positions of that and of what follows."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(40, 60, (1, length), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    cache = KVMMCache.for_model(model, policy, **options) if options else new_cache(model, policy)
    positions = extended_position_ids(all_position_ids(model, inputs), STEPS)
    with torch.no_grad():
        model(**inputs, position_ids=positions[..., :length], past_key_values=cache, use_cache=True)
    return cache, positions


def forward(model: Any, cache: Any, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens, position_ids=places, past_key_values=cache, use_cache=True).logits


def step(model: Any, cache: Any, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return forward(model, cache, tokens, places)[:, -1]


@pytest.mark.parametrize("policy", ["oscar4-2", "kivi2", "bf16", "dynamic"])
@pytest.mark.parametrize("family", ["llama", "qwen2_vl", "qwen3_vl", "gemma3", "qwen2_5_omni", "gemma4"])
def test_a_batch_computes_what_each_of_its_caches_would(family: str, policy: str) -> None:
    model = gemma4(shared_layers=2) if family == "gemma4" else build(family)
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


READ = (300, 420, 45)  # tokens, of the first two enough for pages
COUNTS = (7, 30, 12, 19)


def prompts(model: Any, policy: Any, **options: Any) -> list[tuple[Any, torch.Tensor]]:
    """Caches of one prompt each, the first two of which are packed and the last one is empty, and positions."""
    read_so_far = [read(model, policy, length, **options) for length in READ]
    for cache, _ in read_so_far[:2]:
        assert cache.pack().layers[0].parts
    empty = KVMMCache.for_model(model, policy, **options)
    return [*read_so_far, (empty, read_so_far[1][1])]  # of text, positions are the same for every prompt


@pytest.mark.parametrize("policy", ["oscar4-2", "kivi2", "bf16", "balanced", "kitty", "in place", "with a budget"])
@pytest.mark.parametrize("family", ["llama", "qwen2_vl", "qwen3_vl", "qwen2_5_omni"])
def test_prompts_are_read_together_as_each_would_be(family: str, policy: str) -> None:
    model, options, name = build(family), {}, policy
    if policy == "in place":  # as on a GPU
        name, options = "oscar4-2", {"max_length": 600}
    if policy == "with a budget":
        name, options = "oscar4-2", {"budget": 39_000}
    alone, together = (prompts(model, name, **options) for _ in range(2))
    starts = [cache.get_seq_length() for cache, _ in alone]
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(40, 60, (1, count), generator=generator) for count in COUNTS]
    places = [
        positions[..., start : start + count]
        for (_, positions), start, count in zip(alone, starts, COUNTS, strict=True)
    ]
    pairs = zip(alone, ids, places, strict=True)
    expected = [forward(model, cache, row, place) for (cache, _), row, place in pairs]
    batch = CacheBatch([cache for cache, _ in together], counts=COUNTS)
    logits = forward(model, batch, torch.cat(ids, 1), torch.cat(places, -1))
    atol = TOLERANCES.get(name, 0.1)
    torch.testing.assert_close(logits, torch.cat(expected, 1), atol=atol, rtol=0)
    # and go on in the same way
    for (cache, positions), (other, _), start, count in zip(alone, together, starts, COUNTS, strict=True):
        assert cache.get_seq_length() == other.get_seq_length() == start + count
        for k in range(2):
            place = positions[..., start + count + k : start + count + k + 1]
            rows = [step(model, one, torch.tensor([[41 + k]]), place) for one in (cache, other)]
            torch.testing.assert_close(*rows, atol=atol, rtol=0)
        assert cache.table.dense.tolist() == other.table.dense.tolist()
        assert cache.memory().nbytes == other.memory().nbytes


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_prompts_are_read_together_whatever_reads_one_alone(attention: str) -> None:
    model = build("llama")
    model.set_attn_implementation(attention)
    (alone, positions), (together, _), (beside, _) = (read(model, "oscar4-2", 300) for _ in range(3))
    for cache in (alone, together, beside):
        assert cache.pack().layers[0].parts
    ids = torch.randint(40, 60, (1, 12), generator=torch.Generator().manual_seed(1))
    places = positions[..., 300:312]
    expected = step(model, alone, ids, places)
    batch = CacheBatch([beside, together], counts=[12, 12])
    found = step(model, batch, torch.cat([ids, ids], 1), torch.cat([places, places], -1))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_what_is_not_read_together_is_one_line() -> None:
    model = build("llama")
    caches = [read(model, "bf16", 24)[0] for _ in range(2)]
    for counts in ([3], [3, 1], [3, 3, 3]):
        with pytest.raises(KVMMError, match="at least two tokens of each"):
            CacheBatch(caches, counts=counts)
    for family in ("llama", "qwen2_vl"):  # the second one's tokens are told apart before its layers run
        other, ids, positions = build(family), torch.full((1, 5), 41), torch.arange(5)[None]
        others = [read(other, "bf16", 24)[0] for _ in range(2)]
        with pytest.raises(KVMMError, match="takes 6 tokens in one row, not 5 of 1"):
            step(other, CacheBatch(others, counts=[3, 3]), ids, positions)
    sliding = build("gemma3")  # whose layers of a window know of one sequence
    windows = [read(sliding, "bf16", 24)[0] for _ in range(2)]
    assert able_to_read_together(caches[0]) and not able_to_read_together(windows[0])
    assert not able_to_read_together(new_cache(model, "dynamic"))
    with pytest.raises(KVMMError, match="every layer"):
        CacheBatch(windows, counts=[3, 3])


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
