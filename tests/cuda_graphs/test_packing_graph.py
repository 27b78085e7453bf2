"""Pages of text that fill between replayed steps: the same bits as packed as usual, by work that reads no number of the
host's. Without CUDA that work runs uncaptured; what would be captured is imitated by going on with old numbers.
"""

from __future__ import annotations

import copy
import json
from contextlib import contextmanager

import pytest
import torch

from kvmm import KVMMCache
from kvmm.calibration import Calibration, model_fingerprint, site_name
from kvmm.codecs import codec_class
from kvmm.cuda_graphs import packing as packing_graph
from kvmm.cuda_graphs.decode import StepGraph
from kvmm.cuda_graphs.packing import PackingGraph
from kvmm.modality import TEXT
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.cache.harness import uniform
from tests.tiny_models import PAD, VOCAB, build, generate, inputs

FIELDS = {"residual_length": 16, "flush_length": 32, "num_sink_tokens": 2}
TOKENS = 130  # several pages of 32
MIXED = KVPolicy(
    "mixed",
    text=KVSpec(spec("kitty", 2, 32), spec("oscar", 2, 128)),
    image=KVSpec(spec("quarot", 2, 32), spec("calibquant", 1)),
)
POLICIES = {
    "rd2": "rd2",
    "rd1.5": "rd1.5",
    "oscar2": "oscar2",
    "oscar2-g32": "oscar2-g32",
    "kivi2": "kivi2",
    "kitty": "kitty",
    "calibquant": uniform(spec("calibquant", 2)),
    "calibquant-mean": uniform(spec("calibquant", 1, levels="mean")),
    "bf16": "bf16",
    "mixed": MIXED,
}


def make(model, policy="oscar2", usual=False, **options):
    """A cache with graphs; ``usual`` packs without them."""
    cache = KVMMCache.for_model(model, policy, max_length=700, graph=True, **{**FIELDS, **options})
    if usual:
        cache.graph.packing._off = "for comparison"
    return cache


def prompts(family, batch):
    """As :func:`inputs`, also of three sequences of different lengths."""
    if batch < 3:
        return inputs(family, batch)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, VOCAB - 8, (batch, 30), generator=generator)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 7, 11)):
        ids[row, :padding], mask[row, :padding] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


def stores(cache):
    return [s for i in cache.packed_layers for s in cache.layers[i].segments.allocated_stores]


def assert_same(cache, other):
    """All that two caches hold, and what they know of it."""
    assert torch.equal(cache.table.slots(), other.table.slots())
    for mine, theirs in zip(stores(cache), stores(other), strict=True):
        assert mine.packed.tensors.keys() == theirs.packed.tensors.keys()
        assert mine.sizes == theirs.sizes
        for name, tensor in theirs.packed.tensors.items():
            assert torch.equal(mine.packed[name], tensor), name
        assert (mine.page_group is None) == (theirs.page_group is None)
        assert mine.page_group is None or torch.equal(mine.page_group, theirs.page_group)
        assert mine.packed.shared_group == theirs.packed.shared_group
        assert (mine.num_groups, mine._past) == (theirs.num_groups, theirs._past)
    for index in cache.packed_layers:
        mine, theirs = cache.layers[index], other.layers[index]
        width = theirs.num_dense
        assert mine.num_dense == width
        assert torch.equal(mine.dense_key[:, :, :width], theirs.dense_key[:, :, :width])
        assert torch.equal(mine.dense_value[:, :, :width], theirs.dense_value[:, :, :width])
    counters, others = (list(c.table.static.lengths.values()) for c in (cache, other))
    assert [int(c.num_pages) for c in counters] == [int(c.num_pages) for c in others]
    assert cache.memory() == other.memory()


def calibrated(model, folder):
    """A file with transforms for ``rd``."""
    config, generator = model.config, torch.Generator().manual_seed(5)
    heads, dim = config.num_key_value_heads, getattr(config, "head_dim", None) or config.hidden_size // 4
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for side in ("key", "value"):
            basis = torch.linalg.qr(torch.randn(heads, dim, dim, generator=generator)).Q
            fitted = {
                "transform": basis.half(),
                "mean": 0.1 * torch.randn(heads, dim, generator=generator),
                "variance": torch.logspace(0, -2, dim).repeat(heads, 1),
                "norm": torch.tensor([layer % 2], dtype=torch.uint8),
            }
            tensors |= {site_name("rd", layer, side, TEXT) + name: t for name, t in fitted.items()}
    file = folder / "calibration.safetensors"
    Calibration(model_fingerprint(model), tensors, {"importance": "gradient"}).save(file)
    return str(file)


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_same_bits_over_several_flushes(policy, batch):
    model, arguments = build("qwen3"), prompts("qwen3", batch)
    usual, cache = make(model, POLICIES[policy], usual=True), make(model, POLICIES[policy])
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=TOKENS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert_same(cache, usual)
    assert usual.graph.packing.report()["eager"] == 0
    assert cache.graph.packing.report()["eager"] >= (2 if batch == 3 else 3)
    assert cache.graph.report()["eager"] == TOKENS - 1
    assert json.dumps(cache.graph.report())


@pytest.mark.parametrize("batch", [1, 3])
def test_same_bits_with_a_calibration(batch, tmp_path):
    model, arguments = build("qwen3"), prompts("qwen3", batch)
    options = {"calibration": calibrated(model, tmp_path)}
    usual, cache = make(model, "rd2", usual=True, **options), make(model, "rd2", **options)
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=TOKENS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert_same(cache, usual)
    assert cache.graph.packing.eager >= 2
    assert {codec.site.calibration is None for codec in cache.layers[0].codecs[TEXT]} == {False}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("policy", ["oscar2", "rd2", "mixed"])
def test_same_bits_behind_media(policy, batch):
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", batch)
    usual, cache = make(model, POLICIES[policy], usual=True), make(model, POLICIES[policy])
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=TOKENS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert_same(cache, usual)
    assert cache.graph.packing.eager >= 2


CHANGES = {
    "crop": lambda _, cache: cache.crop(-10),
    "crop-pages": lambda _, cache: cache.crop(-45),
    "reorder": lambda _, cache: cache.reorder_cache(torch.tensor([1, 0])),
    "repeat": lambda _, cache: cache.batch_repeat_interleave(2),
    "select": lambda _, cache: cache.batch_select_indices(torch.tensor([1])),
    "extend": lambda _, cache: cache.extend(900),
    "turn": lambda model, cache: step(model, cache, torch.arange(400).view(2, 200) % 100 + 1),  # levels of its own
    "fork": lambda _, cache: cache.fork(),
}


def step(model, cache, ids):
    with torch.no_grad():
        return model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)


def feed(model, caches, count, ids):
    """``count`` greedy steps of both caches, the first by itself."""
    for _ in range(count):
        found = [step(model, cache, ids) for cache in caches]
        assert torch.equal(*found)
        ids = found[0]
    return ids


@pytest.mark.parametrize("policy", ["oscar2", "rd2", "calibquant"])
@pytest.mark.parametrize("change", list(CHANGES))
def test_changes_between_flushes(change, policy, monkeypatch):
    """The graph that was captured before is used only where it still fits."""
    model, arguments = build("llama"), inputs("llama", 2)
    arguments["attention_mask"] = torch.ones_like(arguments["input_ids"])
    usual, cache = make(model, POLICIES[policy], usual=True), make(model, POLICIES[policy])
    imitate(monkeypatch)
    caches = [usual, cache]
    with torch.no_grad():
        for each in caches:
            model(**arguments, past_key_values=each)
    ids = feed(model, caches, 3, torch.full((2, 1), 5))
    if change == "turn":  # the first one makes the buffers larger, the next one only moves what pages count from
        for each in caches:
            step(model, each, torch.arange(432).view(2, -1) % 100 + 1)
    ids = feed(model, caches, 127, ids)
    addresses = [layer.addresses() for layer in cache.layers]
    assert cache.graph.packing.replays >= 1
    captures = cache.graph.packing.captures
    others = [CHANGES[change](model, each) for each in caches]
    rows = {"repeat": 4, "select": 1}.get(change, 2)
    assert_same(*caches)
    feed(model, caches, 110, ids[:1].expand(rows, 1))
    assert_same(*caches)
    moved = change in ("repeat", "select", "extend", "turn")
    assert (cache.graph.packing.captures > captures) == moved
    if change == "turn" and policy != "rd2":
        assert [layer.addresses() for layer in cache.layers] == addresses
    if change == "fork":
        others[0].graph.packing._off = "for comparison"
        feed(model, others, 80, torch.full((2, 1), 9))
        assert_same(*others)
        assert others[1].graph.packing is not cache.graph.packing
        assert others[1].graph.packing.replays >= 1


# -- fit to be captured -----------------------------------------------------------------------------------------------


@contextmanager
def _numbers(cache, known):
    """Inside, the host believes what it knew at another time."""
    table = cache.table
    now = [dict(vars(store)) for store in stores(cache)], table.stores, table.dense, table.length
    for store, old in zip(stores(cache), known[0], strict=True):
        vars(store).update(old)
    _, table.stores, table.dense, table.length = known
    try:
        yield
    finally:
        for store, new in zip(stores(cache), now[0], strict=True):
            vars(store).update(new)
        _, table.stores, table.dense, table.length = now


class _Imitation:
    """In place of a captured graph: does again what was captured, with the host's numbers of that time."""

    def __init__(self, cache, work):
        held = [
            {name: dict(v) if isinstance(v, dict) else list(v) if isinstance(v, list) else v for name, v in found}
            for found in (vars(store).items() for store in stores(cache))
        ]
        self.known = held, dict(cache.table.stores), cache.table.dense, cache.table.length
        self.cache, self.work = cache, work

    def replay(self):
        with _numbers(self.cache, self.known):
            self.work()


def imitate(monkeypatch, waits=(), fails=False):
    """Packing behaves as on a GPU. ``waits``: what watching the warm-ups finds; ``fails``: capturing does."""
    found, now = list(waits), []

    def beside(stream, work, watch):
        assert watch
        return work(), found.pop(0) if found else None

    def capture(stream, work):
        if fails:
            raise RuntimeError("operation not permitted\nwhen a stream is capturing")
        return _Imitation(now[-1], work), work_without_effect(now[-1], work)

    def on_device(graph, cache, layers):
        now.append(cache)
        graph._on_device(cache, layers)

    monkeypatch.setattr(packing_graph, "beside", beside)
    monkeypatch.setattr(packing_graph, "capture", capture)
    monkeypatch.setattr(PackingGraph, "_uncaptured", on_device)
    monkeypatch.setattr(PackingGraph, "_write_apart", PackingGraph._write)
    monkeypatch.setattr(StepGraph, "stream", lambda graph, device: None)


def work_without_effect(cache, work):
    """What capturing does: the work's Python runs, its kernels do not."""
    kept = [
        (s, {name: b.clone() for name, b in s.buffers.items()}, None if s.groups is None else s.groups.buffer)
        for s in stores(cache)
    ]
    groups = [None if g is None else g.clone() for *_, g in kept]
    columns = [[c.clone() for c in cache.layers[i].residual.tensors()] for i in cache.packed_layers]
    result = work()
    for (store, buffers, group), old in zip(kept, groups, strict=True):
        for name, buffer in buffers.items():
            store.buffers[name].copy_(buffer)
        if old is not None:
            group.copy_(old)
    for i, old in zip(cache.packed_layers, columns, strict=True):
        for mine, before in zip(cache.layers[i].residual.tensors(), old, strict=True):
            mine.copy_(before)
    return result


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_captured_work_serves_every_page(policy, batch, monkeypatch):
    model, arguments = build("qwen3"), prompts("qwen3", batch)
    usual, cache = make(model, POLICIES[policy], usual=True), make(model, POLICIES[policy])
    imitate(monkeypatch)
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=TOKENS + 40)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS + 40), tokens)
    assert_same(cache, usual)
    report = cache.graph.packing.report()
    assert (report["captures"], report["eager"], report["reason"]) == (1, 1, None)
    assert report["replays"] >= 3


def test_captured_work_serves_pages_of_128(monkeypatch):
    """By default a page has 128 tokens however short the prompt was: one group, and one ranking of channels."""
    model, arguments, tokens = build("qwen3"), inputs("qwen3"), 420
    usual, cache = (make(model, "kitty", usual=usual, flush_length=128) for usual in (True, False))
    assert KVMMCache.for_model(model, "kitty").policy.flush_length == 128
    imitate(monkeypatch)
    expected = generate(model, arguments, past_key_values=usual, max_new_tokens=tokens)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=tokens), expected)
    assert_same(cache, usual)
    report = cache.graph.packing.report()
    assert (report["captures"], report["reason"]) == (1, None) and report["replays"] >= 1
    packed = cache.layers[0].parts[TEXT].key.packed
    assert cache.table.page_sizes[TEXT] == 128 and packed["scale"].shape[2] == packed["codes"].shape[2]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_no_question_to_the_device(policy, monkeypatch, tmp_path):
    model, arguments = build("qwen3"), inputs("qwen3")
    options = {"calibration": calibrated(model, tmp_path)} if policy.startswith("rd") else {}
    cache = make(model, POLICIES[policy], **options)
    asked, runs = [], []
    write = PackingGraph._write

    def watched(*args):
        runs.append(True)
        with monkeypatch.context() as patch:
            for name in ("item", "__bool__", "__int__", "__float__", "nonzero", "numpy", "cpu"):
                patch.setattr(torch.Tensor, name, lambda *a, name=name, **k: asked.append(name))
            return write(*args)

    monkeypatch.setattr(PackingGraph, "_write", watched)
    generate(model, arguments, past_key_values=cache, max_new_tokens=100)
    assert len(runs) >= 2
    assert not asked


def test_what_cannot_be_captured_is_packed_as_usual(monkeypatch):
    model, arguments = build("qwen3"), inputs("qwen3")
    usual, cache = make(model, usual=True), make(model)
    imitate(monkeypatch, fails=True)
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=TOKENS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert_same(cache, usual)
    report = cache.graph.packing.report()
    assert report["reason"] == "capturing failed: operation not permitted"
    assert (report["eager"], report["captures"], report["replays"]) == (1, 0, 0)
    assert cache.graph.reason is None


@pytest.mark.parametrize(("waits", "captures"), [(["a.py:1"], 1), (["a.py:1", "b.py:2"], 0)])
def test_work_that_waits_for_the_device_is_not_captured(waits, captures, monkeypatch):
    model, arguments = build("qwen3"), inputs("qwen3")
    usual, cache = make(model, usual=True), make(model)
    imitate(monkeypatch, waits)
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=TOKENS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert_same(cache, usual)
    report = cache.graph.packing.report()
    assert (report["eager"], report["captures"]) == (2, captures)
    assert report["reason"] == (None if captures else "packing waits for the device (b.py:2)")


def test_reset_drops_the_graph(monkeypatch):
    model, arguments = build("qwen3"), inputs("qwen3")
    cache = make(model)
    imitate(monkeypatch)
    first = generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS)
    assert cache.graph.packing.captures == 1
    cache.reset()
    assert cache.graph.packing._graph is None
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), first)
    assert cache.graph.packing.captures == 2


# -- what is packed as usual ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["quarot2", "ott2", "turboquant2", "rotatekv2", "spherical-low"])
def test_codecs_that_look_at_what_they_encode(policy):
    model, arguments = build("qwen3"), inputs("qwen3")
    usual, cache = make(model, policy, usual=True), make(model, policy)
    tokens = generate(model, arguments, past_key_values=usual, max_new_tokens=80)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=80), tokens)
    assert cache.graph.packing.eager == 0
    assert "codec" in cache.graph.packing.reason
    text = cache.policy.text
    assert not all(codec_class(s.codec).static_encode for s in (text.key, text.value))


def test_sequences_out_of_step_are_packed_as_usual():
    """The shorter ones first give what they have."""
    model, arguments = build("qwen3"), prompts("qwen3", 3)
    cache = make(model)
    generate(model, arguments, past_key_values=cache, max_new_tokens=40)
    assert cache.graph.packing.eager == 0
    assert cache.graph.packing.plain
    assert cache.table.stores[TEXT].shape[1]


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_captured_on_a_gpu(policy, batch, tmp_path):
    """Every packing against one as usual, of a fork."""
    model = copy.deepcopy(build("qwen3")).cuda()
    options = {"calibration": calibrated(model, tmp_path)} if policy.startswith("rd") else {}
    arguments = {name: x.cuda() for name, x in prompts("qwen3", batch).items()}
    cache = make(model, POLICIES[policy], **options)
    generate(model, arguments, past_key_values=cache, max_new_tokens=40)
    ids = torch.full((batch, 1), 5, device="cuda")
    packed = 0
    for _ in range(TOKENS + 40):
        if cache.table.dense.shape[1] >= cache.table._next_check:
            usual = cache.fork()
            usual.graph.packing._off = "for comparison"
            usual._pack()
            cache._pack()
            assert_same(cache, usual)
            packed += 1
        ids = step(model, cache, ids)
    report = cache.graph.packing.report()
    assert packed >= 4
    assert (report["captures"], report["reason"]) == (1, None)
    assert report["replays"] >= 2
    assert cache.graph.report()["reason"] is None
