"""What ``generate`` and conversations ask of a cache beyond test_generation.py: crop, copies, fallbacks, dtypes."""

import copy
import random

import pytest
import torch
from transformers import DynamicCache

from kvmm import KVMMCache, KVMMError, policies
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT
from kvmm.policy import get_policy, spec
from tests.cache.harness import Harness, layout, uniform, with_scores_as_decoded
from tests.tiny_models import NEW_TOKENS, build, generate, inputs

LOSSLESS = {"policy": "bf16", "residual_length": 0, "flush_length": 32, "num_sink_tokens": 2, "exact_dtype": "model"}


def lossless(model):
    return KVMMCache.for_model(model, **LOSSLESS)


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_audio"])
def test_two_turns_and_teacher_forcing(family):
    """A second turn of several tokens reads the packed past causally, as a dense cache does."""
    model = build(family)
    arguments = inputs(family, 1)
    logits = []
    for cache in (DynamicCache(config=model.config.get_text_config()), lossless(model)):
        first = generate(model, arguments, past_key_values=cache)
        more = torch.cat((first, torch.arange(3, 20)[None]), 1)
        mask = torch.ones_like(more)
        start = cache.get_seq_length()
        with torch.no_grad():
            out = model(input_ids=more[:, start:], attention_mask=mask, past_key_values=cache, use_cache=True)
        logits.append(out.logits)
    torch.testing.assert_close(logits[1], logits[0], atol=1e-3, rtol=1e-4)


def test_pack_before_the_question():
    model = build("llava")
    arguments = inputs("llava", 1)
    ids = arguments["input_ids"]
    cut = ids.shape[1] - 6
    expected = generate(model, arguments)
    cache = lossless(model)
    head = {**arguments, "input_ids": ids[:, :cut], "attention_mask": torch.ones(1, cut, dtype=torch.long)}
    with torch.no_grad():
        model(**head, past_key_values=cache, use_cache=True)
    cache.pack()
    assert cache.is_packed
    answer = generate(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, past_key_values=cache)
    assert torch.equal(answer, expected)


def test_one_model_serves_many_caches():
    model = build("qwen2_5_vl")
    arguments = inputs("qwen2_5_vl", 1)
    expected = generate(model, arguments)
    caches = [lossless(model), KVMMCache.for_model(model, "kivi2")]
    for cache in caches:
        generate(model, inputs("qwen2_5_vl", 1, seed=5), past_key_values=cache)
    assert torch.equal(generate(model, arguments, past_key_values=lossless(model)), expected)
    assert torch.equal(generate(model, arguments, past_key_values=DynamicCache(config=model.config)), expected)
    assert torch.equal(generate(model, arguments, cache_implementation="static"), expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_other_attention_implementations_still_work(implementation):
    model = build("llama")
    arguments = inputs("llama", 2)
    cache = lossless(model)
    model.set_attn_implementation(implementation)
    expected = generate(model, arguments)
    assert torch.equal(generate(model, arguments, past_key_values=cache), expected)
    assert cache.is_packed


def test_deepcopy_is_independent():
    model = build("llama")
    arguments = inputs("llama", 1)
    cache = KVMMCache.for_model(model, "kivi2", residual_length=0, flush_length=32)
    ids = arguments["input_ids"]
    with torch.no_grad():
        model(**arguments, past_key_values=cache, use_cache=True)
    cache.pack()
    before = cache.memory()
    twin = copy.deepcopy(cache)
    assert twin.layers[0].table is twin.table is not cache.table
    longer = {"input_ids": torch.cat((ids, ids[:, :5]), 1), "attention_mask": torch.ones(1, ids.shape[1] + 5).long()}
    first = generate(model, longer, past_key_values=twin)
    assert cache.memory() == before
    assert torch.equal(generate(model, longer, past_key_values=cache), first)


def fed(**fields):
    h = Harness(uniform(spec("kivi", 4, 32), **fields))
    h.feed([layout((TEXT, 40), (IMAGE, 64), (TEXT, 50)), layout((PADDING, 20), (TEXT, 20), (IMAGE, 64), (TEXT, 50))])
    h.feed([[TEXT], [TEXT]])
    return h


def test_batch_operations():
    index = torch.tensor([1, 0, 1])
    h = fed()
    keys, values = h.layer.dense()
    h.cache.reorder_cache(index)
    torch.testing.assert_close(h.layer.dense()[0], keys[index])
    h.cache.batch_select_indices(torch.tensor([0, 1]))
    torch.testing.assert_close(h.layer.dense()[1], values[index[:2]])
    h.cache.batch_repeat_interleave(2)
    torch.testing.assert_close(h.layer.dense()[0], keys[[1, 1, 0, 0]])
    assert h.cache.batch_size == 4
    assert h.layer.keys.shape == (4, 2, 155, 64)


def cropped(h, length):
    """Crop a harness to ``length``, and what it expects too."""
    h.cache.crop(length - h.cache.get_seq_length())
    h.keys, h.values, h.valid = h.keys[:, :, :length], h.values[:, :, :length], h.valid[:, :length]


def test_crop_in_the_residual():
    h = fed(residual_length=16, flush_length=32)
    keys, _ = h.layer.dense()
    h.cache.crop(-5)
    assert h.cache.get_seq_length() == 150
    torch.testing.assert_close(h.layer.dense()[0], keys[:, :, :150])
    cropped(h, 148)
    h.feed([[TEXT] * 3, [TEXT] * 3])
    assert h.compare(3, "full") < 1e-4


@pytest.mark.parametrize("residual_length", [0, 16])
@pytest.mark.parametrize("length", [130, 104, 70, 30, 3])
def test_crop_inside_pages(length, residual_length):
    """What is left is what was there before, and goes on: slots without a token stay out of everything."""
    h = fed(residual_length=residual_length)
    keys, values = h.layer.dense()
    before = h.cache.memory()
    cropped(h, length)
    assert h.cache.get_seq_length() == length
    assert h.layer.dense()[0].shape[2] == length
    torch.testing.assert_close(h.layer.dense()[0], keys[:, :, :length])
    torch.testing.assert_close(h.layer.dense()[1], values[:, :, :length])
    after = h.cache.memory()
    assert after.tokens == int(h.valid.sum()) and after.nbytes <= before.nbytes
    h.feed([layout((TEXT, 4), (IMAGE, 40), (TEXT, 60)), layout((PADDING, 30), (TEXT, 74))])
    assert h.compare(104, "full") < 1e-4
    for _ in range(3):
        h.feed([[TEXT], [TEXT]])
    assert h.compare(1) < 1e-4


def test_crop_frees_what_was_packed_last():
    h = Harness(uniform(spec("kivi", 4, 32), residual_length=0, flush_length=32))
    h.feed([[IMAGE] * 256])
    h.cache.pack()
    before = h.cache.memory()
    h.feed([[IMAGE] * 128])
    h.cache.pack()
    assert h.cache.memory().by_component["codes"] == 1.5 * before.by_component["codes"]
    cropped(h, 260)  # the second image keeps four tokens, so its page stays
    assert h.cache.memory().by_component["codes"] == 1.5 * before.by_component["codes"]
    cropped(h, 250)
    after = h.cache.memory()
    assert after.by_component["codes"] == before.by_component["codes"] and after.tokens == 250
    cropped(h, 3)  # only sinks
    assert "codes" not in h.cache.memory().by_component and not h.layer.parts
    h.feed([[IMAGE] * 40])
    h.feed([[TEXT]])
    assert h.compare(1) < 1e-4


def test_drafts_are_packed_too():
    """With a draft in every step there is never a step of one token; a long prompt stays dense only until then."""
    h = Harness(uniform(spec("kivi", 4, 32), residual_length=32, flush_length=32))
    h.feed([[IMAGE] * 60])
    h.feed([[TEXT] * 20])  # a prompt in pieces is not packed
    assert not h.cache.is_packed
    for _ in range(40):
        cropped(h, h.cache.get_seq_length())
        h.feed([[TEXT] * 4])
        cropped(h, h.cache.get_seq_length() - 1)
        assert h.cache.is_packed and h.layer.num_dense < 4 + 32 + 32 + 4
    h.feed([[TEXT] * 4])
    assert h.compare(4) < 1e-4


def test_a_budget_holds_while_drafting():
    h = Harness(
        uniform(spec("kivi", 4, 32), residual_length=0, flush_length=32, num_sink_tokens=0, budget=60_000), ratio=1
    )
    h.feed([[IMAGE] * 512])
    for _ in range(10):
        cropped(h, h.cache.get_seq_length() - 1)
        h.feed([[TEXT] * 3])
        assert h.cache.memory().nbytes <= 60_000
    assert h.cache.retention_report()["steps"] == 10


def test_crop_with_a_budget():
    h = Harness(uniform(spec("kivi", 4, 32), residual_length=0, flush_length=32, budget=60_000), ratio=1)
    h.feed([[IMAGE] * 512])
    h.feed([[TEXT]])
    flips = h.cache.retention_report()["flips"]
    assert flips and h.cache.memory().nbytes <= 60_000
    cropped(h, 200)
    for _ in range(70):
        h.feed([[TEXT]])
    assert h.cache.memory().tokens == 270
    assert torch.isfinite(h.layer.attend(h.random(1, 2, 1, 64), None, 0.125)).all()
    h.cache.reset()
    assert h.cache.retention_report()["num_entries"] == 0


def test_crop_to_nothing_is_a_new_cache():
    h = fed()
    h.cache.crop(-h.cache.get_seq_length())
    assert h.cache.get_seq_length() == 0 and not h.cache.is_packed and h.cache.memory().nbytes == 0


@pytest.mark.parametrize("way", ["reset", "crop"])
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_sliding_windows_forget_too(family, way):
    model = build(family)
    cache = KVMMCache.for_model(model, "kivi2", residual_length=0, flush_length=32)
    expected = generate(model, inputs(family, 1), past_key_values=cache)
    cache.reset() if way == "reset" else cache.crop(-cache.get_seq_length())
    assert cache.get_seq_length() == 0 and all(keys is None for keys, *_ in cache)
    assert torch.equal(generate(model, inputs(family, 1), past_key_values=cache), expected)


def test_crop_before_packing():
    h = Harness(get_policy("kivi2"))
    h.feed([[TEXT] * 30])
    h.cache.crop(-10)
    assert h.layer.keys.shape[2] == h.cache.get_seq_length() == 20
    torch.testing.assert_close(h.layer.keys, h.keys[:, :, :20])
    h.feed([layout((PADDING, 4), (TEXT, 6))])
    h.cache.crop(-8)  # what is left ends with padding, which is a column until it is packed
    assert h.layer.keys.shape[2] == h.cache.get_seq_length() == 22


def test_reset_starts_again():
    h = fed()
    h.cache.reset()
    assert h.cache.get_seq_length() == 0
    assert h.cache.memory().nbytes == 0
    h.keys = h.values = h.valid = None
    h.feed([[IMAGE] * 40])
    h.feed([[TEXT]])
    assert h.compare(1) < 1e-4


def test_residual_is_flushed_while_decoding():
    h = Harness(uniform(spec("kivi", 4, 32), residual_length=32, flush_length=32, num_sink_tokens=4))
    h.feed([layout((IMAGE, 50), (TEXT, 10))])
    for _ in range(150):
        h.feed([[TEXT]])
    assert h.compare(1) < 1e-4
    assert h.layer.num_dense <= 4 + 32 + 32 + 1
    assert h.cache.table.stores[TEXT].shape[1] % 32 == 0


def test_mask_of_the_wrong_length():
    h = fed()
    with pytest.raises(KVMMError, match="mask covers"):
        h.layer.attend(torch.randn(2, 6, 1, 64), torch.ones(2, 9, dtype=torch.bool), 0.125)


def test_half_precision_models():
    model = build("qwen3")
    arguments = inputs("qwen3", 2)
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(model).to(dtype)
        cache = KVMMCache.for_model(half, "bf16", residual_length=0, flush_length=32)
        tokens = generate(half, arguments, past_key_values=cache)
        assert tokens.shape[1] == arguments["input_ids"].shape[1] + NEW_TOKENS
        assert cache.layers[0].parts[TEXT].key.packed["values"].dtype == dtype


@pytest.mark.parametrize("policy", policies())
def test_degenerate_batches(policy):
    """Rows without images, of one token, of equal tokens, with constant channels: finite, and equal to the decode."""
    preset = with_scores_as_decoded(get_policy(policy, residual_length=0, flush_length=32, num_sink_tokens=2))
    h = Harness(preset)
    rows = [
        layout((TEXT, 30), (IMAGE, 90), (TEXT, 60)),
        layout((PADDING, 20), (TEXT, 160)),
        layout((PADDING, 179), (TEXT, 1)),
        layout((PADDING, 60), (AUDIO, 70), (TEXT, 50)),
    ]
    key, value = h.random(4, 2, 180, 64), h.random(4, 2, 180, 64)
    for x in (key, value):
        x[0, :, :, 3] = 5.0
        x[0, :, 40:80] = 0.0
        x[1, :, 20:150] = x[1, :, 20:21]
        x[3, :, 60:130] = 1.25
    h.feed(rows, key, value)
    for _ in range(40):  # pages of text while decoding, of which the short row fills one late
        h.feed([[TEXT]] * 4)
    assert h.cache.is_packed and h.layer.parts
    assert h.compare(1) < 1e-4
    assert all(torch.isfinite(x).all() for x in h.layer.dense())
    h.feed([[TEXT, IMAGE]] * 4)
    assert h.compare(2, "full") < 1e-4


@pytest.mark.parametrize("policy", policies())
def test_prompt_of_one_token(policy):
    model = build("llama")
    ids = torch.tensor([[1]])
    cache = KVMMCache.for_model(model, policy, residual_length=0, flush_length=32, num_sink_tokens=0)
    tokens = generate(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, past_key_values=cache)
    assert tokens.shape[1] == 1 + NEW_TOKENS and TEXT in cache.layers[0].parts
    assert all(torch.isfinite(x).all() for layer in cache.layers for x in layer.dense())


class History:
    """A random life of a cache, beside plain tensors of what it must hold."""

    def __init__(self, codec, seed):
        self.random = random.Random(seed)
        kv = {"bf16": spec("bf16"), "rd": spec("rd", 2)}.get(codec, spec(codec, 2, 32))
        sizes = {"residual_length": self.random.choice((0, 5, 40)), "num_sink_tokens": self.random.choice((0, 1, 4))}
        self.h = Harness(uniform(kv, **sizes), ratio=2, dim=16, seed=seed)
        self.lossless = codec == "bf16"
        self.kept = []  # forks that went no further, and what they held
        self.feed()

    def feed(self):
        batch = 2 if self.h.valid is None else self.h.valid.shape[0]
        count = self.random.choice((1, 1, 1, 2, 7, 40, 130))
        rows = []
        for _ in range(batch):
            padding = self.random.randrange(count) if count > 1 and self.random.random() < 0.4 else 0
            row = [PADDING] * padding
            while len(row) < count:
                row += [self.random.choice((TEXT, TEXT, IMAGE, AUDIO))] * self.random.randint(1, 60)
            rows.append(row[:count])
        self.h.feed(rows)

    def pack(self):
        self.h.cache.pack()

    def crop(self):
        length = self.h.cache.get_seq_length()
        if length > 1:
            cropped(self.h, max(1, length - self.random.choice((0, 1, 3, 30, 100))))

    def batch(self):
        batch = self.h.valid.shape[0]
        index = [self.random.randrange(batch) for _ in range(self.random.randint(1, 3))]
        name = "reorder_cache" if len(index) == batch else "batch_select_indices"
        getattr(self.h.cache, name)(torch.tensor(index))
        self.h.keys, self.h.values, self.h.valid = (x[index] for x in (self.h.keys, self.h.values, self.h.valid))

    def fork(self):
        fork = self.h.cache.fork() if self.random.random() < 0.7 else copy.deepcopy(self.h.cache)
        one, other = self.random.sample((self.h.cache, fork), 2)
        self.kept.append((other, [x.clone() for x in other.layers[0].dense()]))
        self.h.cache, self.h.layer = one, one.layers[0]

    def check(self):
        h = self.h
        assert h.cache.get_seq_length() == h.valid.shape[1] == h.layer.get_seq_length()
        assert h.cache.memory().tokens == int(h.valid.sum())
        if h.valid[:, -1].any():
            assert h.compare(1) < 1e-4
        held = sorted(h.cache.table.slots()[0].tolist())
        assert [p for p in held if p >= 0] == h.valid[0].nonzero().flatten().tolist()  # every token once
        if self.lossless:
            for found, exact in zip(h.layer.dense(), (h.keys, h.values), strict=True):
                valid = h.valid[:, None, :, None].expand_as(exact)
                kept = exact.to(torch.bfloat16).float() if h.cache.is_packed else exact
                assert torch.equal(found[valid], kept[valid])
        for other, before in self.kept:
            assert all(map(torch.equal, other.layers[0].dense(), before))


@pytest.mark.parametrize("codec", ["bf16", "kivi", "oscar", "rd"])
@pytest.mark.parametrize("seed", range(6))
def test_random_histories(codec, seed):
    life = History(codec, seed)
    steps = (life.feed, life.feed, life.feed, life.pack, life.crop, life.batch, life.fork)
    for _ in range(30):
        life.random.choice(steps)()
        life.check()
