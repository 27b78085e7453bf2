"""Layers inside a budget: a policy with retention, and a layer after a prompt and some decode steps."""

import torch

from kvmm.modality import AUDIO, IMAGE, TEXT
from kvmm.policy import KVPolicy, KVSpec, RetentionSettings, spec
from tests.cache.harness import Harness, layout

KEYS = KVSpec(spec("spherical", 0.875), spec("bf16"))


def policy(budget=10**9, kv=KEYS, **settings):
    fields = {name: settings.pop(name) for name in ("num_sink_tokens", "residual_length") if name in settings}
    settings = {"interval": 4, **settings}
    fields |= {"flush_length": 32, "retention": RetentionSettings(**settings)}
    return KVPolicy("t", "", kv, kv, kv, kv, budget=budget, **fields)


PROMPT = layout((TEXT, 20), (IMAGE, 500), (TEXT, 170), (AUDIO, 80))


def filled(chosen, prompt=PROMPT, hot=None, steps=1, seed=0):
    """A layer after a prompt and some decode steps; ``hot`` positions have keys that the queries look for."""
    h = Harness(chosen, seed=seed)
    key = h.random(1, 2, len(prompt), 64)
    h.aim = h.random(64)
    if hot is not None:
        key[:, :, hot] = h.aim + 0.2 * key[:, :, hot]
    h.feed([prompt], key)
    h.layer.observe(query(h, len(prompt)))
    for _ in range(steps):
        step(h)
    return h


def query(h, count=1):
    return h.aim + 0.3 * h.random(1, 6, count, 64)


def step(h):
    h.feed([[TEXT]])
    return h.layer.attend(query(h), None, 0.125)


def full_nbytes(**fields):
    return filled(policy(**fields)).cache.memory().nbytes


def attention_of(probe, keys, values, visible):
    """SDPA of ``probe`` ``[1, 6, q, D]`` over keys and values ``[1, 2, T, D]``, of which heads see ``[2, T]``."""
    keys, values = (x.repeat_interleave(3, 1) for x in (keys, values))
    mask = visible.repeat_interleave(3, 0)[:, None]
    return torch.nn.functional.scaled_dot_product_attention(probe, keys, values, attn_mask=mask)
