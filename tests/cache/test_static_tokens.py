"""Caches with ``max_length`` give the tokens of caches that grow, however they are generated."""

from __future__ import annotations

import copy

import pytest
import torch

from kvmm import policies
from kvmm.modality import TEXT
from tests.cache.static import FAMILIES, TOKENS, dynamic, make
from tests.cache.test_generation import MODES
from tests.tiny_models import VOCAB, build, generate, inputs


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_over_page_flushes(family, batch, graph):
    """Left-padded batches too; the same pages hold the same codes."""
    model, arguments = build(family), inputs(family, batch)
    expected = dynamic(model)
    tokens = generate(model, arguments, past_key_values=expected, max_new_tokens=TOKENS)
    cache = make(model, graph=graph)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert cache.table.stores[TEXT].shape[1] >= 3 * 32
    assert torch.equal(cache.table.slots(), expected.table.slots())
    for mine, theirs in zip(cache.layers, expected.layers, strict=True):
        for modality, part in theirs.parts.items():
            for one, other in zip(mine.parts[modality].stores, part.stores, strict=True):
                assert one.packed.tensors.keys() == other.packed.tensors.keys()
                assert torch.equal(one.packed["codes"], other.packed["codes"])
        torch.testing.assert_close(mine.keys, theirs.keys, atol=1e-3, rtol=1e-3)
    if graph:
        assert cache.graph.report()["eager"] == TOKENS - 1
        assert cache.graph.reason is None


@pytest.mark.parametrize("policy", list(policies()))
def test_every_policy(policy):
    """Two sequences with media, a flush of text among them."""
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", 2)
    tokens = generate(model, arguments, past_key_values=dynamic(model, policy), max_new_tokens=70)
    cache = make(model, policy)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=70), tokens)
    assert cache.graph.report()["eager"] == 69


@pytest.mark.parametrize("family", ["llama", "qwen2_5_omni"])
@pytest.mark.parametrize("mode", ["one-sequence", "bare-row", "sampling", "beam", "prompt-lookup", "turns"])
def test_every_way_to_generate(mode, family):
    """As :mod:`tests.cache.test_generation`, with a cache of each kind."""
    fields = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 2}
    model = build(family)
    if mode == "prompt-lookup" and family == "qwen2_5_omni":
        pytest.skip("the family's drafts are tested with llama")
    tokens, _ = MODES[mode].run(model, family, lambda: dynamic(model, **fields))
    for graph in (False, True):
        found, cache = MODES[mode].run(model, family, lambda graph=graph: make(model, graph=graph, **fields))
        assert torch.equal(found, tokens)
        if graph and mode != "prompt-lookup":
            assert cache.graph.report()["eager"] > 5


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_sliding_windows_run_as_usual(family):
    model, arguments = build(family), inputs(family)
    tokens = generate(model, arguments, past_key_values=dynamic(model))
    cache = make(model)
    assert torch.equal(generate(model, arguments, past_key_values=cache), tokens)
    assert "sliding window" in cache.graph.reason
    assert cache.graph.report()["plain"] == tokens.shape[1] - arguments["input_ids"].shape[1] - 1


def test_crop_and_go_on():
    """Into the last page of text, which stays with empty slots."""
    model, arguments = build("qwen3"), inputs("qwen3")
    results = []
    for cache in (dynamic(model), make(model), make(model, graph=False)):
        ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
        cache.crop(-25)
        ids = ids[:, : cache.get_seq_length() + 1]
        mask = torch.ones_like(ids)
        results.append(
            generate(model, {"input_ids": ids, "attention_mask": mask}, past_key_values=cache, max_new_tokens=80)
        )
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_crop_to_before_the_text_pages():
    model, arguments = build("qwen3"), inputs("qwen3")
    results = []
    for cache in (dynamic(model), make(model)):
        ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
        cache.crop(2)  # the sinks
        assert not cache.table.stores
        ids = ids[:, : cache.get_seq_length() + 1]
        results.append(generate(model, {"input_ids": ids}, past_key_values=cache, max_new_tokens=80))
    assert torch.equal(*results)


def test_reset():
    model, arguments = build("qwen2_vl"), inputs("qwen2_vl", 2)
    cache = make(model)
    first = generate(model, arguments, past_key_values=cache, max_new_tokens=50)
    cache.reset()
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=50), first)


@pytest.mark.parametrize("how", ["fork", "deepcopy"])
def test_copies_go_on_by_themselves(how):
    model, arguments = build("llava"), inputs("llava")
    cache = make(model)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    twin = cache.fork() if how == "fork" else copy.deepcopy(cache)
    assert twin.graph is not cache.graph
    written = {t.data_ptr() for layer in cache.layers for t in layer.residual.tensors()}
    written |= {b.data_ptr() for layer in cache.layers for s in layer.parts[TEXT].stores for b in s.buffers.values()}
    written |= {c.position.data_ptr() for c in cache.table.static.lengths.values()}
    theirs = {t.data_ptr() for layer in twin.layers for t in layer.residual.tensors()}
    theirs |= {b.data_ptr() for layer in twin.layers for s in layer.parts[TEXT].stores for b in s.buffers.values()}
    assert not written & theirs
    addresses = [layer.addresses() for layer in cache.layers]
    rest = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    other = generate(model, rest, past_key_values=twin, max_new_tokens=50, suppress_tokens=[*range(1, 60)])
    mine = generate(model, rest, past_key_values=cache, max_new_tokens=50)
    assert [layer.addresses() for layer in cache.layers] == addresses
    assert not torch.equal(other, mine)
    whole = generate(model, arguments, past_key_values=make(model), max_new_tokens=110)
    assert torch.equal(mine, whole)
    assert twin.graph.report()["eager"] >= 48


@pytest.mark.parametrize(("family", "batch"), [("qwen2_5_vl", 1), ("llama", 2)])
def test_a_fork_reads_a_turn_that_its_residual_has_no_space_for(family, batch):
    """Empty slots, of an image's last page or of padding, make the fork's first step need a bias."""
    model, arguments = build(family), inputs(family, batch)
    results = []
    for cache in (dynamic(model), make(model)):
        ids = generate(model, arguments, past_key_values=cache, max_new_tokens=10)
        fork = cache.fork()
        turn = torch.arange(200).expand(batch, -1) % (VOCAB // 2) + 1
        ids, given = torch.cat((ids, turn), 1), arguments["attention_mask"]
        mask = torch.nn.functional.pad(given, (0, ids.shape[1] - given.shape[1]), value=1)
        rest = {"input_ids": ids, "attention_mask": mask}
        results.append(generate(model, rest, past_key_values=fork, max_new_tokens=20))
    assert torch.equal(*results)
