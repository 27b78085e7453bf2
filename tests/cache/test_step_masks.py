"""Masks of decode steps: what transformers makes of padding alone costs a step nothing, a mask of one's own counts."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from kvmm import KVMMCache
from kvmm.cache import layer as layer_module
from kvmm.cache import token_table as table_module
from kvmm.cache.layer import KVMMLayer
from kvmm.cache.token_table import TokenTable
from kvmm.modality import PADDING, TEXT
from kvmm.policy import spec
from tests.cache.harness import Harness, layout, uniform
from tests.tiny_models import build, inputs

FIELDS = {"residual_length": 16, "flush_length": 32, "num_sink_tokens": 2}
STEPS = 3


def prefilled(implementation, batch=1, static=False):
    """A model, its packed cache and the mask of the next step."""
    model, arguments = build.__wrapped__("llama"), inputs("llama", batch)
    model.set_attn_implementation(implementation)
    options = {"max_length": 600, "graph": "never"} if static else {}
    cache = KVMMCache.for_model(model, "oscar2", **FIELDS, **options)
    with torch.no_grad():
        model(**arguments, past_key_values=cache)
    mask = arguments["attention_mask"]
    return model, cache, torch.cat((mask, mask.new_ones(batch, 1)), 1)


def steps(model, cache, mask, count=STEPS):
    """Logits ``[count, B, vocab]`` of ``count`` steps, the first with ``mask``."""
    found = []
    for token in range(count):
        ids = torch.full((mask.shape[0], 1), 5 + token)
        with torch.no_grad():
            found.append(model(input_ids=ids, attention_mask=mask, past_key_values=cache).logits[:, -1])
        mask = torch.cat((mask, mask.new_ones(mask.shape[0], 1)), 1)
    return torch.stack(found)


def spy(monkeypatch, owner, name):
    """Count the calls of ``owner.name`` and keep their arguments."""
    calls, own = [], getattr(owner, name)

    def wrapped(*args, **kwargs):
        calls.append((args, kwargs))
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


@pytest.mark.parametrize("batch", [1, 2], ids=["unpadded", "left-padded"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_alone_takes_the_step_in_place(monkeypatch, implementation, batch):
    """Also where the model's attention makes a mask in every step; one look at it serves all layers."""
    fast = spy(monkeypatch, KVMMLayer, "_step")
    looks = spy(monkeypatch, TokenTable, "_hides_tokens")
    model, cache, mask = prefilled(implementation, batch, static=True)
    found = steps(model, cache, mask)
    layers = len(cache.layers)
    assert len(fast) == STEPS * layers
    assert len(looks) == (0 if implementation == "sdpa" and batch == 1 else STEPS)
    monkeypatch.setattr(TokenTable, "beyond_padding", lambda table, mask, queries: mask)
    del fast[:]
    expected = steps(*prefilled("eager", batch, static=True))
    assert not fast  # the mask was read there
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_no_scores_are_masked_without_padding(monkeypatch, implementation):
    model, cache, mask = prefilled(implementation)
    calls = spy(monkeypatch, layer_module, "attend")
    steps(model, cache, mask)
    assert len(calls) == STEPS * len(cache.layers)
    assert all(args[4] is None for args, _ in calls)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_mask_of_ones_own_counts(implementation, static):
    """Tokens that a call hides are hidden in its steps, as the cache's own decoded keys read by SDPA say."""
    model, cache, mask = prefilled(implementation, static=static)
    mask[:, 5:9] = 0
    plain, expected = (prefilled("sdpa") for _ in range(2))
    with expected[1].reading_decoded():
        right = steps(expected[0], expected[1], mask)
    found = steps(model, cache, mask)
    torch.testing.assert_close(found, right, atol=2e-3, rtol=2e-3)
    assert (steps(*plain) - right).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("count", [1, 3])
def test_masks_of_integers_are_bools(count, dtype):
    h = Harness(uniform(spec("kivi", 4, 32), residual_length=16, flush_length=32))
    h.feed([layout((TEXT, 90)), layout((PADDING, 30), (TEXT, 60))])
    h.feed([[TEXT], [TEXT]])
    h.feed([[TEXT] * count] * 2)
    visible = h.visible(count)
    visible[..., 40:50] = False
    query = h.random(2, 6, count, 64)
    found, expected = (h.layer.attend(query, mask, 0.125) for mask in (visible.to(dtype), visible))
    assert torch.equal(found, expected)
    assert not torch.equal(h.layer.attend(query, None, 0.125), expected)


@pytest.mark.parametrize("own", [False, True])
def test_block_masks_of_padding_take_the_step_in_place(monkeypatch, own):
    """A ``BlockMask`` is written out once a step, for all layers, and read only where it hides tokens."""
    _, cache, mask = prefilled("sdpa", 2, static=True)
    mask = mask.bool()
    if own:
        mask[:, 5:9] = False
    length = mask.shape[1]

    def attend(given):
        twin = cache.fork()
        outputs, generator = [], torch.Generator().manual_seed(0)
        for index in range(len(twin.layers)):
            key, value = (torch.randn(2, 2, 1, 16, generator=generator) for _ in range(2))
            query = torch.randn(2, 4, 1, 16, generator=generator)
            twin.update(key, value, index)
            outputs.append(twin.layers[index].attend(query, given, 0.25))
        return torch.stack(outputs)

    expected = attend(mask)
    block = create_block_mask(lambda b, h, q, k: mask[b, k], 2, None, 1, length, device="cpu")
    fast, written = spy(monkeypatch, KVMMLayer, "_step"), spy(monkeypatch, table_module, "create_mask")
    found = attend(block)
    assert len(fast) == (0 if own else len(cache.layers))
    assert len(written) == 1
    assert torch.equal(found, expected)


class Operations(TorchDispatchMode):
    """Count what PyTorch computes."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", ["float", "bool"])
def test_the_look_at_a_mask_without_padding_is_one_operation(form):
    """A step of a small model takes as long as some twenty of them."""
    for batch, most in ((1, 2), (2, 12)):  # of the padded batch the table is asked, too
        _, cache, mask = prefilled("sdpa", batch)
        table = cache.table
        mask = mask[:, : table.length].bool()[:, None, None]
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min) if form == "float" else mask
        with Operations() as seen:
            assert table.beyond_padding(mask, 1) is None
        assert len([name for name in seen.names if "view" not in name and "select" not in name]) <= most, seen.names
        assert table.beyond_padding(mask, 1) is None  # known by now
        hiding = mask.clone()
        hiding[:, :, :, -3] = torch.finfo(torch.float32).min if form == "float" else False
        assert table.beyond_padding(hiding, 1) is not None
