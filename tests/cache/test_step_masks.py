"""Masks of decode steps: what transformers makes of padding alone costs a step nothing, a mask of one's own counts."""

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache import layer as layer_module
from kvmm.cache.layer import KVMMLayer
from kvmm.cache.table import TokenTable
from tests.tiny_models import build, inputs

FIELDS = {"residual_length": 16, "num_sink_tokens": 2}
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
