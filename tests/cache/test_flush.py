"""When text is packed: 128 tokens at a time in prompts and answers alike, and tokens of all modalities together."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from kvmm import KVMMError, get_policy, policies
from kvmm.analysis.cost.model import split_tokens
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.cache.harness import Harness, layout, uniform

PAPERS = [name for name in policies() if name.startswith("paper-")]
MIXED = [name for name in PAPERS if get_policy(name).mixed_modalities]


def decoded(policy, prompt: int, length: int, **shape) -> Harness:
    """A prompt of text, then one token at a time."""
    h = Harness(policy, ratio=1, **shape)
    h.feed([[TEXT] * prompt])
    while h.keys.shape[2] < length:
        h.feed([[TEXT]])
    return h


def key_bits(h: Harness) -> float:
    """Measured bits per value of the packed keys of text."""
    packed = h.layer.parts[TEXT].key.packed
    return sum(x.nbytes for x in packed.tensors.values()) * 8 / (packed.slots * h.heads * h.dim)


@pytest.mark.parametrize(("policy", "bits"), [("oscar2", 2 + 48 / 128), ("kitty", 2.51)])
def test_a_short_prompt_does_not_shorten_the_groups_of_its_answer(policy, bits):
    """After 960 tokens the keys take the same bits behind 60 tokens as behind 956."""
    found = [decoded(get_policy(policy), prompt, 960, heads=1, dim=128) for prompt in (60, 956)]
    assert {h.cache.table.page_sizes[TEXT] for h in found} == {128}
    assert key_bits(found[0]) == key_bits(found[1]) == pytest.approx(bits, abs=0.01)
    pages = found[0].layer.parts[TEXT].key.packed["codes"].shape[2]
    assert found[0].layer.parts[TEXT].key.packed["scale"].shape[2] == pages  # one group, one ranking of channels
    assert found[0].cache.memory().held_nbytes == found[1].cache.memory().held_nbytes


@pytest.mark.parametrize("flush", [32, 64, 128])
def test_text_is_packed_so_many_tokens_at_a_time(flush):
    h = Harness(uniform(spec("kivi", 4, 32), num_sink_tokens=2, residual_length=10, flush_length=flush), ratio=1)
    h.feed([[TEXT] * 50])
    widths = []
    while len(set(widths)) < 2 or h.keys.shape[2] < 400:
        h.feed([[TEXT]])
        widths.append(h.cache.table.dense.shape[1])
    assert max(widths) == 2 + 10 + flush and min(widths[flush:]) == 2 + 10 + 1
    steps = [i for i, (a, b) in enumerate(itertools.pairwise(widths)) if b < a]
    assert {b - a for a, b in itertools.pairwise(steps)} == {flush}
    assert h.compare(1) < 1e-4


def test_pages_of_an_earlier_version_fill_four_at_a_time():
    """A file may hold text in pages of 32; what comes behind it has groups of 128 all the same."""
    h = decoded(uniform(spec("oscar", 2, 128), residual_length=0, num_sink_tokens=0, flush_length=32), 40, 60)
    assert h.cache.table.page_sizes[TEXT] == 32
    before = h.layer.parts[TEXT].key.packed["scale"].shape[2]
    h.cache.table.policy = replace(h.cache.policy, flush_length=128)
    h.cache.table._next_check = 0
    while h.keys.shape[2] < 330:
        h.feed([[TEXT]])
    packed = h.layer.parts[TEXT].key.packed
    assert h.cache.table.appends[TEXT] == [32, 160, 288]
    assert packed["scale"].shape[2] == before + 2 and packed.page_group.tolist() == [0, *[1] * 4, *[2] * 4]
    assert h.compare(1) < 1e-4


# -- tokens of all modalities together ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["oscar", "kivi", "bf16"])
def test_mixed_modalities_are_stored_like_text(codec):
    """The same codes, sinks and residual as in a cache that takes all tokens for text; modalities are only counted."""
    one = spec("bf16") if codec == "bf16" else spec(codec, 2, 128)
    policy = uniform(one, mixed_modalities=True, flush_length=128, num_sink_tokens=3, residual_length=20)
    row = layout((TEXT, 6), (IMAGE, 300), (TEXT, 20), (AUDIO, 90), (TEXT, 4))
    mixed, plain = Harness(policy), Harness(replace(policy, mixed_modalities=False))
    key, value = mixed.random(1, 2, len(row), 64), mixed.random(1, 2, len(row), 64)
    for h, codes in ((mixed, row), (plain, [TEXT] * len(row))):
        h.feed([codes], key.clone(), value.clone())
        h.generator.manual_seed(5)
        h.feed([[TEXT]])
    assert list(mixed.layer.parts) == [TEXT] and mixed.cache.table.dense.shape[1] > 20
    for mine, other in zip(mixed.layer.parts[TEXT].stores, plain.layer.parts[TEXT].stores, strict=True):
        assert mine.packed.tensors.keys() == other.packed.tensors.keys()
        assert all(torch.equal(x, other.packed[name]) for name, x in mine.packed.tensors.items())
    assert mixed.compare(1) < 1e-4
    report, expected = mixed.cache.memory(), plain.cache.memory()
    assert {name: m["tokens"] for name, m in report.by_modality.items()} == {"text": 31, "image": 300, "audio": 90}
    assert sum(m["nbytes"] for m in report.by_modality.values()) == report.held_nbytes == expected.held_nbytes
    packed = sum(m["packed_tokens"] for m in report.by_modality.values())
    assert packed == report.packed_tokens == expected.packed_tokens
    assert report.packed_bits_per_value == pytest.approx(expected.packed_bits_per_value)
    split = split_tokens(policy, {"text": 30, "image": 300, "audio": 90})
    assert split.packed == {TEXT: (packed, 128)}


@pytest.mark.parametrize("policy", MIXED)
def test_mixed_modalities_in_a_padded_batch(policy):
    h = Harness(get_policy(policy), heads=4, ratio=1)
    rows = [
        layout((TEXT, 5), (IMAGE, 170), (TEXT, 30), (IMAGE, 60), (TEXT, 60)),
        layout((PADDING, 90), (TEXT, 4), (AUDIO, 141), (IMAGE, 37), (TEXT, 53)),
    ]
    h.feed(rows)
    for _ in range(3):
        h.feed([[TEXT], [TEXT]])
    assert list(h.layer.parts) == [TEXT]
    assert h.compare(1) < 1e-4
    h.feed([layout((TEXT, 4), (IMAGE, 140), (TEXT, 6)), layout((PADDING, 30), (TEXT, 120))])
    h.feed([[TEXT], [TEXT]])
    assert h.compare(1) < 1e-4


def test_mixed_modalities_need_one_spec():
    kivi = KVSpec(spec("kivi", 2, 32), spec("kivi", 2, 32))
    with pytest.raises(KVMMError, match="same codec, bits and options"):
        get_policy(KVPolicy("mine", text=kivi, mixed_modalities=True))
    with pytest.raises(KVMMError, match="leave mixed_modalities out"):
        get_policy("paper-kivi2", budget=10**6)
    with pytest.raises(KVMMError, match="true or false"):
        KVPolicy.from_dict({"base": "kivi2", "mixed_modalities": "yes"})
    for wrong in (48, 256, 0, True, "128"):
        with pytest.raises(KVMMError, match="flush_length"):
            KVPolicy.from_dict({"base": "kivi2", "flush_length": wrong})
    assert get_policy("paper-kivi2", key_bits=4).mixed_modalities


# -- presets that follow their papers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", MIXED)
def test_the_residual_of_papers_is_a_buffer_of_128_tokens(policy):
    """Packed as a whole when it is full, as in KIVI's keys, OScaR and Kitty; sinks only where the paper has them."""
    preset = get_policy(policy)
    sinks = 32 if policy.startswith("paper-kitty") else 0
    assert preset.num_sink_tokens == sinks
    h = Harness(preset, heads=4, ratio=1)
    h.feed([layout((TEXT, 70), (IMAGE, 200))])
    exact = []
    for _ in range(280):
        h.feed([[TEXT]])
        exact.append(h.cache.table.dense.shape[1] - sinks)
    assert set(exact) == set(range(1, 129))  # a full buffer is packed with the next token
    assert all(b == a % 128 + 1 for a, b in itertools.pairwise(exact))


@pytest.mark.parametrize("policy", ["paper-oscar2", "paper-quarot2", "paper-rotatekv2"])
def test_zero_points_of_papers_are_whole_numbers_of_steps(policy):
    h = Harness(get_policy(policy), heads=4, ratio=1)
    h.feed([[TEXT] * 270])
    h.cache.pack()
    for store in h.layer.parts[TEXT].stores:
        steps = store.packed["zero_point"].float() / store.packed["scale"].float()
        assert float((steps - steps.round()).abs().max()) < 2e-3  # of half precision


def test_norms_of_oscar_are_over_all_heads():
    h = Harness(get_policy("paper-oscar2"), heads=4, ratio=1)
    h.feed([[TEXT] * 256])
    h.cache.pack()
    norm = h.layer.parts[TEXT].key.packed["norm"]
    assert norm.shape == (1, 1, 2, 128)
    torch.testing.assert_close(norm.float().flatten(), h.keys.norm(dim=(1, 3)).flatten(), rtol=1e-3, atol=0)
