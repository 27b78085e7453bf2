"""Caches with ``max_length``: buffers that never move, steps that read every changing number from the device, and the
dispatcher that replays them. Without CUDA the step runs uncaptured, but through the same static buffers.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import weakref

import pytest
import torch

from kvmm import KVMMCache, attention, policies
from kvmm.cache import capacity, support
from kvmm.cache.token_table import TokenTable
from kvmm.cuda_graphs import decode as graphs
from kvmm.cuda_graphs.decode import StepGraph, install_dispatcher
from kvmm.errors import KVMMError
from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.modality import AUDIO, IMAGE, TEXT, install_hook
from tests.cache.harness import Harness, layout
from tests.cache.test_generation import MODES
from tests.cache.test_memory import storages
from tests.tiny_models import build, generate, inputs

FIELDS = {"residual_length": 16, "num_sink_tokens": 2}
TOKENS = 120  # several pages of 32
FAMILIES = ("llama", "qwen3", "qwen2_vl", "qwen2_5_omni")


def make(model, policy="oscar2", graph=True, max_length=600, **fields):
    return KVMMCache.for_model(model, policy, max_length=max_length, graph=graph, **{**FIELDS, **fields})


def static(model, policy="oscar2", **fields):
    """Buffers in place without a graph or a hint, as on a GPU."""
    config = {**FIELDS, **fields}
    cache = KVMMCache(model.config, policy, static=True, **config)
    install_hook(model)
    return cache


def dynamic(model, policy="oscar2", **fields):
    return KVMMCache.for_model(model, policy, **{**FIELDS, **fields})


# -- the same tokens --------------------------------------------------------------------------------------------------


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
    fields = {"residual_length": 0, "num_sink_tokens": 2}
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


# -- the step is fit to be captured -----------------------------------------------------------------------------------


class Recorder(StepGraph):
    """Keeps the callable of the first step and calls that one ever after, as a captured graph would: what a step
    computes may depend on buffers only, whose addresses must not change either.
    """

    def drop(self):
        super().drop()
        self.kept = None
        self.frozen = []

    def _run(self, model, forward, cache):
        if self.kept is None:
            self.kept = [layer.addresses() for layer in cache.layers]
        assert [layer.addresses() for layer in cache.layers] == self.kept
        # the host's numbers lie: nothing in a step may read them
        table, length = cache.table, cache.table.length
        dense, stores = table.dense, table.stores
        table.length, table.dense, table.stores = 7, dense[:, :3], {}
        try:
            return super()._run(model, forward, cache)
        finally:
            table.length, table.dense, table.stores = length, dense, stores


@pytest.mark.parametrize("policy", ["oscar2", "kivi2", "rd2", "calibquant2", "kitty", "turboquant2", "bf16"])
@pytest.mark.parametrize(("family", "batch"), [("qwen3", 1), ("qwen2_5_omni", 1), ("qwen2_5_omni", 2)])
def test_a_step_reads_buffers_only(family, batch, policy):
    model, arguments = build(family), inputs(family, batch)
    tokens = generate(model, arguments, past_key_values=dynamic(model, policy), max_new_tokens=TOKENS)
    cache = make(model, policy)
    cache.graph = Recorder()
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert cache.graph.eager == TOKENS - 1


def test_no_question_to_the_device_in_a_step(monkeypatch):
    """Nothing is read back in a step of one sequence or of a padded batch: neither numbers nor tensors."""
    monkeypatch.setattr(native, "readable", lambda *_: True)  # the CPU library's own check, which no GPU makes
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", 2)
    cache = make(model)
    asked = []

    class Watching(StepGraph):
        def _run(self, *args):
            with monkeypatch.context() as patch:
                for name in ("item", "tolist", "__bool__", "__int__", "__float__", "nonzero", "numpy", "cpu"):
                    patch.setattr(torch.Tensor, name, lambda *a, name=name, **k: asked.append(name))
                return super()._run(*args)

    cache.graph = Watching()
    generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    assert cache.graph.eager == 59
    assert not asked


def test_layer_with_room_reads_like_dynamic():
    """Attention over room against attention over exact views, batch of ragged modalities."""
    policy = KVMMCache.for_model(build("llama"), "oscar2", **FIELDS).policy
    h = Harness(policy)
    h.cache = KVMMCache(h.config, policy, max_length=400)
    h.layer = h.cache.layers[0]
    h.feed(
        [
            layout((TEXT, 20), (IMAGE, 70), (TEXT, 9), (AUDIO, 40), (TEXT, 11)),
            layout((-1, 30), (TEXT, 80), (AUDIO, 33), (TEXT, 7)),
        ]
    )
    worst = 0.0
    for _ in range(100):
        h.feed([[TEXT], [TEXT]])
        assert h.layer.residual.in_place
        worst = max(worst, h.compare(1))
    assert worst < 1e-4
    assert h.cache.table.stores[TEXT].shape[1] > 32


# -- what a call must be to be replayed -------------------------------------------------------------------------------


def _prefilled(model, arguments, **options):
    cache = make(model, **options)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=5)
    return cache, ids


def test_output_is_the_model_s_own_class():
    model, arguments = build("qwen3"), inputs("qwen3")
    cache, ids = _prefilled(model, arguments)
    twin = dynamic(model)
    generate(model, arguments, past_key_values=twin, max_new_tokens=5)
    with torch.no_grad():
        expected = model(input_ids=ids[:, -1:], past_key_values=twin)
        found = model(input_ids=ids[:, -1:], past_key_values=cache)
        later = model(input_ids=ids[:, -2:-1], past_key_values=cache)
    assert type(found) is type(expected)
    assert found.past_key_values is cache
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert found.logits.data_ptr() != later.logits.data_ptr()
    assert json.dumps(cache.graph.report())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"return_dict": False}, "return_dict"),
        ({"mask": "own"}, "one's own"),
        ({"mask": "4d"}, "another form"),
        ({"attention": "decoded"}, "read decoded"),
        ({"attention": "weights"}, "attention weights"),
    ],
)
def test_other_calls_run_as_usual(change, reason):
    model, arguments = build("llama"), inputs("llama")
    cache, ids = _prefilled(model, arguments)
    twin = dynamic(model)
    generate(model, arguments, past_key_values=twin, max_new_tokens=5)
    call, length = {"input_ids": ids[:, -1:]}, ids.shape[1]
    config = model.config
    if "mask" in change:
        mask = torch.ones(1, length, dtype=torch.long)
        mask[:, 5:9] = 0
        call["attention_mask"] = mask if change["mask"] == "own" else mask[:, None, None].bool()
    elif "attention" in change:
        cache.step.reads_decoded = change["attention"] == "decoded"
        config._output_attentions = change["attention"] == "weights"
    else:
        call |= change
    try:
        with torch.no_grad():
            found, expected = (model(**call, past_key_values=c) for c in (cache, twin))
    finally:
        cache.step.reads_decoded = config._output_attentions = False
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    assert reason in cache.graph.reason
    with torch.no_grad():
        found, expected = (model(input_ids=ids[:, -2:-1], past_key_values=c) for c in (cache, twin))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert cache.graph.reason is None


def test_other_caches_and_other_models_are_left_alone():
    model, arguments = build("llama"), inputs("llama")
    tokens = generate(model, arguments)
    install_dispatcher(model)
    install_dispatcher(model)
    assert torch.equal(generate(model, arguments), tokens)
    twin = copy.deepcopy(model)
    assert twin.forward._model() is twin
    with torch.no_grad():
        twin.lm_head.weight.zero_()
        assert not model(**arguments).logits.eq(0).all()
        assert twin(**arguments).logits.eq(0).all()
    cache = make(model)
    with torch.no_grad():
        twin(**arguments, past_key_values=cache)
        twin(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
    assert "another model" in cache.graph.reason


def test_everything_goes_with_the_cache():
    model, arguments = build("llama"), inputs("llama")
    cache, _ = _prefilled(model, arguments)
    gone = weakref.ref(cache), weakref.ref(cache.graph)
    del cache
    gc.collect()
    assert gone[0]() is None
    assert gone[1]() is None


def test_model_is_not_kept_alive():
    model = copy.deepcopy(build("llama"))
    make(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# -- length and memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("max_length", [None, 20, 70])
def test_buffers_grow(max_length, graph, monkeypatch):
    """With a hint that is too small, or none; the tokens are those of a cache that was large enough."""
    monkeypatch.setattr(capacity, "_STEP", 24)
    model, arguments = build("qwen3"), inputs("qwen3", 2)
    expected = make(model, graph=graph)
    tokens = generate(model, arguments, past_key_values=expected, max_new_tokens=TOKENS)
    cache = make(model, max_length=max_length, graph=graph) if max_length or graph else static(model)
    addresses = []
    monkeypatch.setattr(cache.layers[0], "allocate", lambda own=cache.layers[0].allocate: addresses.append(own()))
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert cache.get_max_length() == -1
    assert cache.table.static.capacity >= cache.table.length
    assert cache.table.static.capacity <= cache.table.length + 24
    assert len(addresses) >= 3  # grew more than once
    torch.testing.assert_close(cache.layers[1].keys, expected.layers[1].keys, atol=1e-4, rtol=1e-4)


def test_growth_is_bounded():
    """A long answer moves its buffers seldom, and never has space for many tokens that may not come."""
    table = TokenTable(KVMMCache.for_model(build("qwen3"), "oscar2").policy, capacity.StaticCapacity())
    table.append(torch.zeros(1, 4096, dtype=torch.int8))
    layouts = []
    while table.length < 40_000:
        if table.length >= table.static.capacity:
            table.static.allocate(table)
            layouts.append(table.static.capacity)
        table.length += 1
    assert len(layouts) < 26
    assert all(new - old <= 2048 + 1 for old, new in itertools.pairwise([4096, *layouts]))


@pytest.mark.parametrize("graph", [False, True])
def test_a_long_turn_leaves_no_room_behind(graph):
    """Its tokens wait for packing in columns of their own; the same tokens come out."""
    model, first = build("qwen3"), inputs("qwen3")
    cache, expected = make(model, graph=graph), dynamic(model)
    turn = torch.randint(3, 100, (1, 700), generator=torch.Generator().manual_seed(3))
    found = []
    for each in (expected, cache):
        ids = generate(model, first, past_key_values=each, max_new_tokens=10)
        ids = torch.cat((ids, turn), 1)
        found.append(generate(model, {"input_ids": ids}, past_key_values=each, max_new_tokens=40))
    assert torch.equal(*found)
    columns = cache.layers[0].dense_key.shape[2]
    assert cache.layers[0].residual.in_place
    assert columns == cache.table.static.residual_tokens
    assert columns <= 2 + 16 + 2 * cache.table.page_sizes[TEXT] + 8  # sinks, residual, two pages, slack


def test_beams_leave_buffers_in_place():
    """Those of media too, which are not reserved: a captured step goes on to fit."""
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    cache = make(model, graph=True)
    seen = set()
    reorder = cache.reorder_cache

    def note(index):
        reorder(index)
        if cache.is_packed:
            seen.add(tuple(layer.addresses() for layer in cache.layers))

    cache.reorder_cache = note
    generate(model, arguments, past_key_values=cache, max_new_tokens=20, num_beams=3)
    assert 1 <= len(seen) <= 2


def test_graphs_that_never_pay_are_given_up():
    graph = StepGraph("auto")
    assert graph.report()["reason"] is None
    for _ in range(graphs._IDLE + 1):
        graph.captures += 1
        graph.note_capture()
    assert graph._idle == graphs._IDLE
    graph.replays += 5
    graph.captures += 1
    graph.note_capture()
    assert graph._idle == 0


def test_extend_is_a_hint():
    model, arguments = build("llama"), inputs("llama")
    dynamic(model).extend(100)  # grows by itself
    cache = make(model, max_length=20)
    generate(model, arguments, past_key_values=cache, max_new_tokens=5)
    cache.extend(3000)
    before = cache.layers[0].addresses()
    cache.extend(100)
    assert cache.layers[0].addresses() == before
    assert cache.table.static.capacity == 3000


# -- what a GPU user types first --------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """Caches take every model to be on a GPU; steps then run uncaptured through the same buffers."""
    monkeypatch.setattr(support, "_on_gpu", lambda model: True)


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_are_the_default(gpu, family):
    model, arguments = build(family), inputs(family)
    expected = generate(model, arguments, past_key_values=make(model), max_new_tokens=60)
    cache = KVMMCache.for_model(model, "oscar2", **FIELDS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=60), expected)
    report = cache.graph.report()
    assert (report["mode"], report["eager"], report["reason"]) == ("auto", 59, None)
    assert KVMMCache.for_model(model, "oscar2", graph=False).graph is None


def test_default_leaves_out_what_cannot_stay(gpu):
    model = build("qwen3")
    for options in ({"offloading": True}, {"budget": 10**6}):
        cache = KVMMCache.for_model(model, "oscar2", **options)
        assert cache.graph is None
        assert cache.table.static is None


def test_tensor_parallel_models_are_asked(gpu, monkeypatch):
    model = build("qwen3")
    monkeypatch.setattr(model, "_tp_size", 2, raising=False)
    cache = KVMMCache.for_model(model, "oscar2")
    assert cache.graph is None
    assert cache.table.static is not None
    assert KVMMCache.for_model(model, "oscar2", graph=True).graph is not None


@pytest.mark.parametrize("mode", ["auto", True])
def test_default_falls_back_silently(mode, recwarn):
    graph = StepGraph(mode)
    graph._give_up("no reason")
    assert graph.report()["reason"] == "no reason"
    assert len(recwarn) == (mode is True)


def test_saved_caches_go_on_with_graphs(gpu, tmp_path):
    model, arguments = build("qwen3"), inputs("qwen3")
    cache = KVMMCache.for_model(model, "kivi2", **FIELDS)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    cache.save(tmp_path / "cache.safetensors")
    loaded = KVMMCache.load(tmp_path / "cache.safetensors", model)
    found = generate(model, {"input_ids": ids}, past_key_values=loaded, max_new_tokens=50)
    assert torch.equal(found, generate(model, {"input_ids": ids}, past_key_values=cache, max_new_tokens=50))
    assert loaded.graph.report()["eager"] >= 49


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": "fast", "max_length": 9}, "graph="),
        ({"graph": "auto"}, "graph="),
        ({"graph": True, "budget": 10**6}, "graph="),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 2000, "budget": 10**6}, "budget"),
        ({"max_length": 2000, "offloading": True}, "offloading"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(KVMMError, match=message):
        KVMMCache.for_model(build("qwen3"), "oscar2", **options)


@pytest.mark.parametrize("batch", [1, 2])
def test_memory_counts_room(batch):
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", batch)
    cache, other = make(model, graph=False), dynamic(model)
    for each in (cache, other):
        generate(model, arguments, past_key_values=each, max_new_tokens=50)
    report = cache.memory()
    assert report.nbytes == sum(storages(cache).values())
    assert report.nbytes == sum(report.by_component.values())
    assert report.held_nbytes == sum(m["nbytes"] for m in report.by_modality.values())
    assert report.nbytes == sum(x["nbytes"] for x in report.by_layer) + cache.table.nbytes()
    assert 0 < report.reserved_nbytes < report.nbytes
    # what it holds is what a cache that grows holds, and the counters of the device
    assert report.held_nbytes - cache.table.static.nbytes() == other.memory().held_nbytes
    for name, mine in report.by_modality.items():
        assert mine["packed_bits_per_value"] == other.memory().by_modality[name]["packed_bits_per_value"]


def test_save_and_load(tmp_path):
    model, arguments = build("qwen3"), inputs("qwen3")
    cache = make(model)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    cache.save(tmp_path / "cache.safetensors")
    loaded = KVMMCache.load(tmp_path / "cache.safetensors", model)
    rest = {"input_ids": ids}
    found = generate(model, rest, past_key_values=loaded, max_new_tokens=50)
    assert torch.equal(found, generate(model, rest, past_key_values=cache, max_new_tokens=50))


# -- compiled layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "qwen2_5_omni"])
def test_compiled_layers(family, monkeypatch):
    """One compiled form serves all layers; the model is as it was between steps."""
    counters = pytest.importorskip("torch._dynamo.utils").counters
    monkeypatch.setattr(graphs, "BACKEND", "eager")
    graphs._compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    model, arguments = build(family), inputs(family, 2)
    tokens = generate(model, arguments, past_key_values=dynamic(model), max_new_tokens=60)
    cache = make(model, graph="compile")
    functions = KVMMCache.update, attention.read_packed
    try:
        assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=60), tokens)
    finally:
        graphs._compiled.cache_clear()
    assert cache.graph.report()["eager"] == 59
    assert (KVMMCache.update, attention.read_packed) == functions
    assert 3 <= counters["stats"]["unique_graphs"] <= 6
    assert all("forward" not in layer.__dict__ for layer in graphs.decoder_layers(model))
    before = counters["stats"]["calls_captured"]
    assert torch.equal(generate(model, arguments, past_key_values=dynamic(model), max_new_tokens=60), tokens)
    assert counters["stats"]["calls_captured"] == before


# -- frequencies that depend on positions -----------------------------------------------------------------------------


def _longrope(original):
    config = copy.deepcopy(build("qwen3").config)
    half = config.head_dim // 2
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * half,
        "long_factor": [1.0 + 3 * i / half for i in range(half)],
        "original_max_position_embeddings": original,
        "factor": 4.0,
    }
    config.original_max_position_embeddings = original
    torch.manual_seed(0)
    return type(build("qwen3"))(config).eval()


@pytest.mark.parametrize("batch", [1, 2])
def test_longrope_switches_at_the_same_token(batch):
    """Short frequencies become long ones while tokens are generated, also when another prompt ran in between."""
    model, arguments = _longrope(60), inputs("qwen3", batch)
    expected = generate(model, arguments, past_key_values=dynamic(model), max_new_tokens=90)
    cache = make(model)
    seen = []

    class Watching(StepGraph):
        def _run(self, model, forward, cache):
            output = super()._run(model, forward, cache)
            seen.append(self._long)
            return output

    cache.graph = Watching()
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=90), expected)
    assert len(seen) == 89
    assert seen == sorted(seen)
    assert set(seen) == {False, True}
    assert model.model.rotary_emb.rope_type == "longrope"

    tokens = expected[:, : arguments["input_ids"].shape[1] + 10]
    caches = [dynamic(model), make(model)]
    rows = []
    for each in caches:
        with torch.no_grad():
            model(**arguments, past_key_values=each)
            model(input_ids=torch.ones(1, 100, dtype=torch.long))
            step = {"input_ids": tokens[:, -1:], "past_key_values": each}
            rows.append([model(**step).logits, model(**step).logits])
    for mine, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
