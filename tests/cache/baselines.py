"""What the tests of the published methods share: data like keys, errors, measured bits."""

from __future__ import annotations

import torch

from kvmm.codecs import EncodeContext, build_codec
from kvmm.modality import IMAGE
from kvmm.policy import CodecSpec, KVPolicy, KVSpec
from tests.cache.harness import Harness


def key_like(batch: int, heads: int, tokens: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Keys as models make them: a few channels with a large offset and a large spread, the same for all tokens."""
    generator = torch.Generator().manual_seed(seed)
    channel = torch.rand(1, heads, 1, dim, generator=generator)
    strong = torch.where(channel > 0.85, 8.0, 1.0)
    offset = 3 * strong * torch.randn(1, heads, 1, dim, generator=generator)
    return offset + strong * torch.randn(batch, heads, tokens, dim, generator=generator)


def relative_error(spec: CodecSpec, x: torch.Tensor, side: str = "key", page_size: int = 128) -> float:
    """Mean squared error over the variance of ``x`` about its channels' means."""
    codec = build_codec(spec, side)
    decoded = codec.decode(codec.encode(x, EncodeContext(page_size)))[:, :, : x.shape[2]]
    spread = (x - x.mean(2, keepdim=True)).pow(2).mean()
    return float((decoded - x).pow(2).mean() / spread)


def bits_at_3328_tokens(kv: KVSpec) -> float:
    """Measured bits a value of 3328 image tokens with 8 KV heads of 128."""
    policy = KVPolicy("test", image=kv, num_sink_tokens=0)
    h = Harness(policy, heads=8, ratio=1, dim=128)
    h.feed([[IMAGE] * 3328])
    h.cache.pack()
    return h.cache.memory().by_modality["image"]["packed_bits_per_value"]
