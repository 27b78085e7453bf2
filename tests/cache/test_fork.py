"""Forks share the packed past and never see each other's tokens."""

import copy
import gc

import pytest
import torch

from kvmm import KVMMCache, policies
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT
from kvmm.policy import RetentionSettings, spec
from tests.cache.harness import Harness, layout, uniform
from tests.tiny_models import build, generate, inputs

FIELDS = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 2}


def buffers(cache):
    """Every page buffer of a cache, by place."""
    return {
        (i, modality, side, name): buffer
        for i in cache.packed_layers
        for modality, part in cache.layers[i].parts.items()
        for side, store in enumerate(part.stores)
        for name, buffer in store.buffers.items()
    }


def pointers(cache, modality=None):
    return {k: b.data_ptr() for k, b in buffers(cache).items() if modality is None or k[1] == modality}


def state(cache):
    """A copy of everything that tells what a cache holds."""
    return [[x.clone() for x in cache.layers[i].dense()] for i in cache.packed_layers], cache.table.slots().clone()


def same(a, b):
    return torch.equal(a[1], b[1]) and all(
        torch.equal(x, y) for p, q in zip(a[0], b[0], strict=True) for x, y in zip(p, q, strict=True)
    )


def fed():
    h = Harness(uniform(spec("kivi", 2, 32), **FIELDS))
    h.feed([layout((TEXT, 40), (IMAGE, 64), (TEXT, 50)), layout((PADDING, 20), (TEXT, 20), (IMAGE, 64), (TEXT, 50))])
    h.cache.pack()
    return h


def with_cache(h, cache):
    twin = copy.copy(h)
    twin.cache, twin.layer = cache, cache.layers[0]
    return twin


def test_bytes_are_shared_until_written():
    h = fed()
    parent, fork = h.cache, h.cache.fork()
    assert pointers(parent) == pointers(fork) and pointers(parent)
    report = fork.memory()
    assert report.shared_nbytes == sum(b.nbytes for b in buffers(fork).values()) > 0
    assert report.nbytes == parent.memory().nbytes and parent.memory().shared_nbytes == report.shared_nbytes
    before = pointers(parent)
    twin = with_cache(h, fork)
    for _ in range(70):  # enough for pages of text, none of images
        twin.feed([[TEXT], [TEXT]])
    assert pointers(fork, IMAGE) == pointers(parent, IMAGE)
    assert not set(pointers(fork, TEXT).values()) & set(pointers(parent, TEXT).values())
    assert pointers(parent) == before
    assert 0 < parent.memory().shared_nbytes < report.shared_nbytes
    del fork, twin
    gc.collect()
    assert parent.memory().shared_nbytes == 0


def spare(tensor, used):
    """Whether a buffer has room behind what is used, where two forks would meet."""
    return tensor.shape[2] > used


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_neither_changes_the_other(order):
    """Three caches take turns, first in the room that their buffers have, then beyond it."""
    h = Harness(uniform(spec("kivi", 2, 32), **FIELDS))
    h.feed([[TEXT] * 577])
    h.cache.pack()
    h.feed([[TEXT] * 10])
    h.cache.pack()
    h.feed([[TEXT]])
    forks = [with_cache(h, cache) for cache in (h.cache, h.cache.fork(), h.cache.fork().fork())]
    store, layer, table = h.layer.parts[TEXT].key, h.layer, h.cache.table
    assert spare(store.buffers["codes"], store.sizes["codes"])
    assert spare(layer.dense_key, layer.num_dense) and table.modality.shape[1] > table.length
    start = state(h.cache)
    for count in (1, 1, 35, 40, 1):
        for number in order:
            others = {i: state(forks[i].cache) for i in range(3) if i != number}
            one = forks[number]
            one.generator = torch.Generator().manual_seed(100 * number + count)
            one.feed([[(TEXT, IMAGE, AUDIO)[number]] + [TEXT] * (count - 1)])
            if count > 1:
                one.cache.pack()
            assert one.compare(1) < 1e-4
            for i, expected in others.items():
                assert same(state(forks[i].cache), expected)
    for number, one in enumerate(forks):
        torch.testing.assert_close(one.layer.dense()[0][:, :, :577], start[0][0][0][:, :, :577])
        expected = {TEXT: 588 + 73, IMAGE: 0, AUDIO: 0}
        expected[(TEXT, IMAGE, AUDIO)[number]] += 5
        codes = one.cache.table.modality[0, : one.cache.table.length].tolist()
        assert {m: codes.count(m) for m in expected} == expected
        tail = one.cache.table.dense[0] >= 577 + 11  # what is not packed is exact
        exact = one.keys[:, :, one.cache.table.dense[0][tail].long()]
        assert torch.equal(one.layer.dense_key[:, :, : one.layer.num_dense][:, :, tail], exact.to(torch.bfloat16))


def test_crop_then_append_leaves_the_fork_alone():
    h = fed()
    fork = h.cache.fork()
    expected = state(fork)
    h.cache.crop(-60)
    h.keys, h.values, h.valid = h.keys[:, :, :-60], h.values[:, :, :-60], h.valid[:, :-60]
    h.feed([[TEXT] * 80] * 2)
    h.cache.pack()
    h.feed([[TEXT], [TEXT]])
    assert h.compare(1) < 1e-4
    assert same(state(fork), expected)
    fork.crop(-40)
    fork.reorder_cache(torch.tensor([1, 0]))
    assert h.compare(1) < 1e-4


def test_fork_before_packing_and_empty():
    h = Harness(uniform(spec("kivi", 2, 32), **FIELDS))
    assert h.cache.fork().get_seq_length() == 0
    h.feed([layout((IMAGE, 64), (TEXT, 40))])
    fork = h.cache.fork()
    fork.pack()
    assert fork.is_packed and not h.cache.is_packed
    torch.testing.assert_close(h.layer.dense()[0], h.keys)
    assert h.cache.memory().shared_nbytes == 0


@pytest.mark.parametrize(
    ("family", "policy"),
    [("gemma3", "bf16"), ("gemma3", "balanced"), *(("qwen2_5_omni", policy) for policy in policies())],
)
def test_two_questions_about_one_document(family, policy):
    """Each fork answers as a deep copy does, in whichever order they are asked; the parent stays as it was."""
    model = build(family)
    document = inputs(family)
    ids = document["input_ids"]
    parent = KVMMCache.for_model(model, policy, **FIELDS)
    with torch.no_grad():
        model(**document, past_key_values=parent, use_cache=True)
    parent.pack()
    before = state(parent)
    questions = [torch.tensor([[5, 9, 11, 40]]), torch.tensor([[77, 3, 60, 12, 4]])]

    def ask(cache, question):
        both = torch.cat((ids, question), 1)
        arguments = {"input_ids": both, "attention_mask": torch.ones_like(both)}
        return generate(model, arguments, past_key_values=cache)

    expected = [ask(copy.deepcopy(parent), question) for question in questions]
    forks = [parent.fork() for _ in questions]
    answers = [ask(fork, question) for fork, question in zip(forks, questions, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(answers, expected, strict=True))
    assert same(state(parent), before)
    assert torch.equal(ask(parent, questions[0]), expected[0])


def test_forks_with_a_budget_decide_on_their_own():
    """Each goes on as a deep copy does, and what one lowers or drops stays in the other."""
    model = build("qwen3")
    ids = torch.randint(3, 110, (1, 610), generator=torch.Generator().manual_seed(0))

    def start(**budget):
        cache = KVMMCache.for_model(model, "balanced", **FIELDS, **budget)
        with torch.no_grad():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
        return cache.pack()

    budget = int(0.8 * start().memory().nbytes)
    retention = RetentionSettings(margin_gate=True, interval=2)
    parent = start(budget=budget, retention=retention)
    before = parent.retention_report()

    def ask(cache, question):
        both = torch.cat((ids, torch.tensor([question])), 1)
        arguments = {"input_ids": both, "attention_mask": torch.ones_like(both)}
        return generate(model, arguments, past_key_values=cache), cache.retention_report()

    questions = [[5, 9, 11, 40], [77, 3, 60, 12, 4]]
    expected = [ask(copy.deepcopy(parent), question) for question in questions]
    forks = [parent.fork() for _ in questions]
    answers = [ask(fork, question) for fork, question in zip(forks, questions, strict=True)]
    for (tokens, report), (tokens_expected, report_expected) in zip(answers, expected, strict=True):
        assert torch.equal(tokens, tokens_expected) and report == report_expected
        assert report["flips"] > before["flips"]
    assert parent.retention_report() == before
